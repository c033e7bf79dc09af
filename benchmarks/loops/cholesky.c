/* Cholesky's factor of a positive definite matrix: triangular loops, a square root and a division in each row. */
#include "loops.h"
#define MOST 512
static double a[MOST][MOST];

int run(int n) {
    if (n < 1 || n > MOST) return -1;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) a[i][j] = draw();
        a[i][i] = n;
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            for (int k = 0; k < j; k++) a[i][j] -= a[i][k] * a[j][k];
            a[i][j] /= a[j][j];
        }
        for (int k = 0; k < i; k++) a[i][i] -= a[i][k] * a[i][k];
        a[i][i] = __builtin_sqrt(a[i][i]);
    }
    return digest(&a[0][0], n * MOST);
}
