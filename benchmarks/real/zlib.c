/* zlib: a text is deflated at levels 1, 6 and 9 and inflated again. Argument: KiB of text. Checks that what comes back is
   what went in. */
#include "text.h"
#include "zlib.h"
#include <stdio.h>

int main(int argc, char **argv) {
    static const int levels[] = {1, 6, 9};
    uLong size = (uLong)argument(argc, argv, 1, 256) << 10, room = compressBound(size);
    unsigned char *text = make_text(size), *packed = malloc(room), *again = malloc(size);
    for (int i = 0; i < 3; i++) {
        uLongf used = room, back = size;
        if (compress2(packed, &used, text, size, levels[i]) != Z_OK) return 1;
        memset(again, 0, size);
        if (uncompress(again, &back, packed, used) != Z_OK || back != size || memcmp(again, text, size)) return 2;
        printf("level %d: %lu of %lu %016llx\n", levels[i], (unsigned long)used, (unsigned long)size,
               (unsigned long long)digest_bytes(DIGEST_START, packed, used));
    }
    return 0;
}
