/* Pancake flips over all permutations of n (at most 12): checksum * 100 + most flips. */
#define MOST 12

int run(int n) {
    if (n < 2 || n > MOST) return -1;
    int permutation[MOST], flipped[MOST], count[MOST], most = 0, checksum = 0, r = n;
    for (int i = 0; i < n; i++) permutation[i] = i;
    for (int turn = 0;; turn++) {
        for (; r > 1; r--) count[r - 1] = r;
        for (int i = 0; i < n; i++) flipped[i] = permutation[i];
        int flips = 0;
        for (int first; (first = flipped[0]) != 0; flips++)
            for (int i = 0, j = first; i < j; i++, j--) {
                int swap = flipped[i];
                flipped[i] = flipped[j], flipped[j] = swap;
            }
        if (flips > most) most = flips;
        checksum += turn % 2 ? -flips : flips;
        for (;; r++) {
            if (r == n) return checksum * 100 + most;
            int first = permutation[0];
            for (int i = 0; i < r; i++) permutation[i] = permutation[i + 1];
            permutation[r] = first;
            if (--count[r] > 0) break;
        }
    }
}
