/* A text to compress: sentences of a small vocabulary, drawn so that near words repeat; the same one in each run. */
#include "common.h"

static unsigned char *make_text(size_t size) {
    static const char *const words[] = {
        "frame", "memory", "the ", "of ", "and ", "program", "stack", "which ", "is ", "moved", "to ", "another ", "page",
        "written", "once ", "more ", "loop", "turn", "value", "kept ", "in ", "a ", "register", ", ", ". ", "\n", "0x1f",
        "call", "returns ", "before ", "after ", "every ",
    };
    unsigned char *text = malloc(size + 16);
    uint32_t state = 2463534242u;
    size_t used = 0;
    while (used < size) {
        uint32_t r = next_random(&state);
        if (r % 11 == 0 && used > 300) {  /* something from before, again */
            size_t back = r / 11 % 250 + 20, count = r / 3000 % 30 + 5;
            for (size_t i = 0; i < count && used < size; i++, used++) text[used] = text[used - back];
        } else {
            const char *word = words[(r >> 8) % (r & 1 ? 8 : 32)];
            size_t count = strlen(word);
            if (count > size - used) count = size - used;
            memcpy(text + used, word, count);
            used += count;
        }
    }
    return text;
}
