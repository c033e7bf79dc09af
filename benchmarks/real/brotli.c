/* Brotli: a text is compressed at qualities 2, 5 and 9 and decompressed again. Argument: KiB of text. Checks that what
   comes back is what went in. */
#include "text.h"
#include <brotli/decode.h>
#include <brotli/encode.h>
#include <stdio.h>

int main(int argc, char **argv) {
    static const int qualities[] = {2, 5, 9};
    size_t size = (size_t)argument(argc, argv, 1, 256) << 10, room = BrotliEncoderMaxCompressedSize(size);
    unsigned char *text = make_text(size), *packed = malloc(room), *again = malloc(size);
    for (int i = 0; i < 3; i++) {
        size_t used = room, back = size;
        if (!BrotliEncoderCompress(qualities[i], 20, BROTLI_MODE_TEXT, size, text, &used, packed)) return 1;
        memset(again, 0, size);
        if (BrotliDecoderDecompress(used, packed, &back, again) != BROTLI_DECODER_RESULT_SUCCESS || back != size
            || memcmp(again, text, size)) return 2;
        printf("quality %d: %lu of %lu %016llx\n", qualities[i], (unsigned long)used, (unsigned long)size,
               (unsigned long long)digest_bytes(DIGEST_START, packed, used));
    }
    return 0;
}
