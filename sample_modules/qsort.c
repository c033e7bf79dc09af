/* Sorting through function pointers: an own quicksort and libc's. Holds: recursion, a function index in a local, calls
   through the table while two array elements are in locals. Argument: number of records. */
#include "common.h"
#include <stdio.h>

struct record { uint32_t key; double weight; char name[8]; };
typedef int (*comparator)(const void *, const void *);

static int by_key(const void *a, const void *b) {
    uint32_t x = ((const struct record *)a)->key, y = ((const struct record *)b)->key;
    return (x > y) - (x < y);
}
static int by_weight(const void *a, const void *b) {
    double x = ((const struct record *)a)->weight, y = ((const struct record *)b)->weight;
    return x < y ? -1 : x > y ? 1 : by_key(a, b);
}
static int by_name(const void *a, const void *b) {
    int order = strcmp(((const struct record *)a)->name, ((const struct record *)b)->name);
    return order ? order : by_key(a, b);
}
static int by_key_down(const void *a, const void *b) { return by_key(b, a); }

/* volatile, or the compiler would call the comparators directly and no call_indirect would be left. */
static comparator volatile comparators[] = {by_key, by_weight, by_name, by_key_down};
#define COMPARATORS (sizeof comparators / sizeof *comparators)

static void quicksort(struct record *r, long low, long high, comparator compare) {
    while (low < high) {
        struct record pivot = r[low + (high - low) / 2], swap;
        long i = low, j = high;
        while (i <= j) {
            while (compare(&r[i], &pivot) < 0) i++;
            while (compare(&r[j], &pivot) > 0) j--;
            if (i <= j) swap = r[i], r[i++] = r[j], r[j--] = swap;
        }
        if (j - low < high - i) quicksort(r, low, j, compare), low = i;
        else quicksort(r, i, high, compare), high = j;
    }
}

static void fill(struct record *r, long count) {
    uint32_t state = 88172645u;
    for (long i = 0; i < count; i++) {
        memset(&r[i], 0, sizeof r[i]);
        r[i].key = next_random(&state);
        r[i].weight = (double)(next_random(&state) % 1000) / 8 - 50;
        for (int k = 0; k < 4; k++) r[i].name[k] = (char)('a' + next_random(&state) % 6);
    }
}

int main(int argc, char **argv) {
    long count = argument(argc, argv, 1, 40000);
    struct record *own = malloc((size_t)count * sizeof *own), *libc = malloc((size_t)count * sizeof *libc);
    if (!own || !libc) return 2;
    for (size_t c = 0; c < COMPARATORS; c++) {
        comparator compare = comparators[c];
        fill(own, count);
        fill(libc, count);
        quicksort(own, 0, count - 1, compare);
        qsort(libc, (size_t)count, sizeof *libc, compare);
        uint64_t digest = DIGEST_START;
        for (long i = 0; i < count; i++) {
            if (i > 0 && compare(&own[i - 1], &own[i]) > 0) return 1;
            if (own[i].key != libc[i].key) return 1;
            digest = digest_u64(digest, own[i].key);
        }
        printf("%u %016llx\n", (unsigned)c, (unsigned long long)digest);
    }
    free(own), free(libc);
    return 0;
}
