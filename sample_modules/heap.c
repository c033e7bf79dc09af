/* Memory that grows while it is written to. Holds: a large heap, a few hot and many cold pages, a line of output a round.
   Arguments: MiB at the end, rounds, writes a round. Checks each round's sum against one kept apart. */
#include "common.h"
#include <stdio.h>

#define PAGE 4096

int main(int argc, char **argv) {
    long mib = argument(argc, argv, 1, 16), rounds = argument(argc, argv, 2, 10), writes = argument(argc, argv, 3, 20000);
    long chunks = mib * 16, held = 0; /* of 64 KiB */
    unsigned char **chunk = calloc((size_t)chunks, sizeof *chunk);
    if (!chunk || rounds < 1) return 2;
    uint32_t state = 2463534242u;
    uint64_t expected = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (long round = 0; round < rounds; round++) {
        for (; held < chunks * (round + 1) / rounds; held++)
            if (!(chunk[held] = calloc(1, 65536))) return 2;
        if (held == 0) continue;
        uint32_t pages = (uint32_t)held * 16;
        for (long i = 0; i < writes; i++) {
            /* Nine writes of ten go to an eighth of the pages. */
            uint32_t page = next_random(&state) % 10 ? next_random(&state) % (pages / 8 + 1) : next_random(&state) % pages;
            unsigned char *cell = &chunk[page / 16][page % 16 * PAGE + next_random(&state) % PAGE];
            unsigned char value = (unsigned char)next_random(&state);
            expected += (uint64_t)value - *cell;
            *cell = value;
        }
        uint64_t sum = 0, digest = DIGEST_START;
        for (long c = 0; c < held; c++)
            for (long i = 0; i < 65536; i += 8) {
                uint64_t word;
                memcpy(&word, chunk[c] + i, 8);
                if (!word) continue;
                digest = (digest ^ word) * 0x100000001b3ull;
                for (; word; word >>= 8) sum += word & 0xff;
            }
        printf("round %ld: %ld KiB %016llx\n", round, held * 64, (unsigned long long)digest);
        if (sum != expected) return 1;
    }
    return 0;
}
