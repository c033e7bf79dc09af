/* Pancake flips over all permutations. Holds: small arrays on the C stack, counters of deeply nested loops, loops left
   from the middle. Argument: n. */
#include "common.h"
#include <stdio.h>

#define MOST 12

int main(int argc, char **argv) {
    int n = (int)argument(argc, argv, 1, 9);
    if (n < 2 || n > MOST) return 2;
    int permutation[MOST], flipped[MOST], count[MOST], most = 0, checksum = 0, r = n, turn = 0;
    for (int i = 0; i < n; i++) permutation[i] = i;
    for (;;) {
        for (; r > 1; r--) count[r - 1] = r;
        memcpy(flipped, permutation, sizeof permutation);
        int flips = 0;
        for (int first; (first = flipped[0]) != 0; flips++)
            for (int i = 0, j = first; i < j; i++, j--) {
                int swap = flipped[i];
                flipped[i] = flipped[j], flipped[j] = swap;
            }
        if (flips > most) most = flips;
        checksum += turn++ % 2 ? -flips : flips;
        for (;; r++) {
            if (r == n) {
                printf("%d\nmost flips of %d: %d\n", checksum, n, most);
                return 0;
            }
            int first = permutation[0];
            for (int i = 0; i < r; i++) permutation[i] = permutation[i + 1];
            permutation[r] = first;
            if (--count[r] > 0) break;
        }
    }
}
