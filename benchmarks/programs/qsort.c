/* Quicksort of n (at most 65536) numbers through a comparator in the table: a call_indirect a comparison. */
#define MOST 65536
static unsigned item[MOST];
typedef int (*comparator)(const unsigned *, const unsigned *);

static int up(const unsigned *a, const unsigned *b) { return (*a > *b) - (*a < *b); }
static int down(const unsigned *a, const unsigned *b) { return (*a < *b) - (*a > *b); }
static int by_low_bits(const unsigned *a, const unsigned *b) {
    unsigned x = *a & 0xffff, y = *b & 0xffff;
    return x != y ? (x > y) - (x < y) : up(a, b);
}
static comparator volatile comparators[] = {up, down, by_low_bits};

static void sort(int low, int high, comparator compare) {
    while (low < high) {
        unsigned pivot = item[low + (high - low) / 2], swap;
        int i = low, j = high;
        while (i <= j) {
            while (compare(&item[i], &pivot) < 0) i++;
            while (compare(&item[j], &pivot) > 0) j--;
            if (i <= j) swap = item[i], item[i++] = item[j], item[j--] = swap;
        }
        if (j - low < high - i) sort(low, j, compare), low = i;
        else sort(i, high, compare), high = j;
    }
}

int run(int n) {
    if (n < 1 || n > MOST) return -1;
    unsigned digest = 0;
    for (int c = 0; c < 3; c++) {
        comparator compare = comparators[c];
        unsigned state = 88172645u;
        for (int i = 0; i < n; i++) item[i] = state = state * 1664525u + 1013904223u;
        sort(0, n - 1, compare);
        for (int i = 0; i < n; i++) {
            if (i > 0 && compare(&item[i - 1], &item[i]) > 0) return -1;
            digest = digest * 31 + item[i];
        }
    }
    return (int)digest;
}
