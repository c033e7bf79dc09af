/* argv[1] rounds; in each it asks for a checkpoint and says what came back and whether its cache is still there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wasmckpt.h"

static unsigned char cache[1 << 20] __attribute__((aligned(65536)));
static unsigned char kept[1 << 16] __attribute__((aligned(65536)));

static void fill(unsigned char *at, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1103515245u + 12345u;
        at[i] = (unsigned char)(seed >> 16) | 1;
    }
}

/* "there", "gone" (all zero) or "broken" */
static const char *look(const unsigned char *at, size_t size) {
    size_t zeros = 0;
    for (size_t i = 0; i < size; i++) zeros += at[i] == 0;
    return zeros == 0 ? "there" : zeros == size ? "gone" : "broken";
}

int main(int count, char **argv) {
    int rounds = count > 1 ? atoi(argv[1]) : 3;
    fill(cache, sizeof cache, 1);
    fill(kept, sizeof kept, 2);
    printf("present %d, discard %d", wasmckpt_present(), wasmckpt_discard(cache, sizeof cache));
    printf(", %d, outside %d", wasmckpt_discard(kept, sizeof kept), wasmckpt_discard((void *)0xfffff000u, 0xffffu));
    printf(", keep %d\n", wasmckpt_keep(kept, sizeof kept));
    for (int i = 0; i < rounds; i++) {
        int got = wasmckpt_checkpoint_here();
        printf("%d: %d, lives %d, %s, %s\n", i, got, wasmckpt_lives(), look(cache, sizeof cache), look(kept, sizeof kept));
        fflush(stdout);
        fill(cache, sizeof cache, i);
    }
    return 0;
}
