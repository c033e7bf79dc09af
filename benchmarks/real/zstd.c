/* Zstandard: a text is compressed at levels 1, 5 and 12 and decompressed again. Argument: KiB of text. Checks that what
   comes back is what went in. */
#include "text.h"
#include "zstd.h"
#include <stdio.h>

int main(int argc, char **argv) {
    static const int levels[] = {1, 5, 12};
    size_t size = (size_t)argument(argc, argv, 1, 256) << 10, room = ZSTD_compressBound(size);
    unsigned char *text = make_text(size), *packed = malloc(room), *again = malloc(size);
    for (int i = 0; i < 3; i++) {
        size_t used = ZSTD_compress(packed, room, text, size, levels[i]);
        if (ZSTD_isError(used)) return 1;
        memset(again, 0, size);
        if (ZSTD_decompress(again, size, packed, used) != size || memcmp(again, text, size)) return 2;
        printf("level %d: %lu of %lu %016llx\n", levels[i], (unsigned long)used, (unsigned long)size,
               (unsigned long long)digest_bytes(DIGEST_START, packed, used));
    }
    return 0;
}
