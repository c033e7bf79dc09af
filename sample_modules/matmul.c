/* Product of two f64 matrices. Holds: three nested loops, a running sum in an f64 local, three heap blocks.
   Argument: n. Checks (A B) x = A (B x). */
#include "common.h"
#include <math.h>
#include <stdio.h>

static void multiply(long n, const double *a, const double *b, double *c) {
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            double sum = 0;
            for (long k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

static void apply(long n, const double *a, const double *x, double *y) {
    for (long i = 0; i < n; i++) {
        double sum = 0;
        for (long k = 0; k < n; k++) sum += a[i * n + k] * x[k];
        y[i] = sum;
    }
}

int main(int argc, char **argv) {
    long n = argument(argc, argv, 1, 200);
    size_t bytes = (size_t)(n * n) * sizeof(double);
    double *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes), *v = malloc(4 * (size_t)n * sizeof(double));
    if (!a || !b || !c || !v) return 2;
    uint32_t state = 2463534242u;
    for (long i = 0; i < n * n; i++) {
        a[i] = (double)(next_random(&state) >> 8) / 16777216.0 - 0.5;
        b[i] = (double)(next_random(&state) >> 8) / 16777216.0 - 0.5;
    }
    multiply(n, a, b, c);
    for (long i = 0; i < n; i++) v[i] = (double)(i % 7) - 3;
    apply(n, b, v, v + n);
    apply(n, a, v + n, v + 2 * n);
    apply(n, c, v, v + 3 * n);
    double worst = 0;
    for (long i = 0; i < n; i++) worst = fmax(worst, fabs(v[2 * n + i] - v[3 * n + i]));
    printf("%ld %.12g %016llx\n", n, c[n * n - 1], (unsigned long long)digest_bytes(DIGEST_START, c, bytes));
    free(a), free(b), free(c), free(v);
    return worst < 1e-9 ? 0 : 1;
}
