/* Product of two n x n matrices of f64, n at most 512; the result is a digest of the product's bits. */
#define MOST 512
static double a[MOST * MOST], b[MOST * MOST], c[MOST * MOST];

int run(int n) {
    if (n < 1 || n > MOST) return -1;
    unsigned state = 2463534242u;
    for (int i = 0; i < n * n; i++) {
        state = state * 1664525u + 1013904223u;
        a[i] = (double)(state >> 8) / 16777216.0 - 0.5;
        state = state * 1664525u + 1013904223u;
        b[i] = (double)(state >> 8) / 16777216.0 - 0.5;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
    unsigned long long digest = 0;
    for (int i = 0; i < n * n; i++) {
        union { double value; unsigned long long bits; } u = {c[i]};
        digest = digest * 31 + u.bits;
    }
    return (int)(digest ^ digest >> 32);
}
