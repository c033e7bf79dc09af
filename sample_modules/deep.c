/* Deep recursion. Holds: one frame a level with an i64, an f64 and a pointer into the caller's part of the C stack, all
   live across the call. Argument: depth. Each level checks on the way back what it held. */
#include "common.h"
#include <stdio.h>

struct link { struct link *above; long depth; };

__attribute__((noinline)) static uint64_t descend(struct link *above, long left, uint64_t a, double b) {
    struct link here = {above, above ? above->depth + 1 : 0};
    if (left == 0) {
        /* The bottom walks through all frames' links. */
        uint64_t digest = DIGEST_START;
        for (struct link *l = &here; l; l = l->above) digest = digest_u64(digest, (uint64_t)l->depth);
        return digest;
    }
    uint64_t a_below = a * 6364136223846793005ull + 1442695040888963407ull;
    double b_below = b * 0.5 + (double)(left % 97);
    uint64_t below = descend(&here, left - 1, a_below, b_below);
    if (here.above != above || here.depth != (above ? above->depth + 1 : 0)) exit(1);
    return digest_f64(below ^ a, b) + (uint64_t)here.depth;
}

int main(int argc, char **argv) {
    long depth = argument(argc, argv, 1, 2000);
    printf("%ld %016llx\n", depth, (unsigned long long)descend(NULL, depth, 7, 1.5));
    return 0;
}
