/* What the loops share: numbers to begin with, and a digest of the bits of what came out. */
typedef unsigned long long u64;

static unsigned drawn = 2463534242u;

/* The next number between -0.5 and 0.5, the same ones in each run. */
static inline double draw(void) {
    drawn = drawn * 1664525u + 1013904223u;
    return (double)(drawn >> 8) / 16777216.0 - 0.5;
}

static inline int digest(const double *values, int count) {
    u64 all = 0;
    for (int i = 0; i < count; i++) {
        union { double value; u64 bits; } u = {values[i]};
        all = all * 31 + u.bits;
    }
    drawn = 2463534242u;
    return (int)(all ^ all >> 32);
}
