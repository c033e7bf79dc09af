/* Heat in three dimensions: n x n x n points, ten turns of seven-point sums from one array to the other and back. */
#include "loops.h"
#define MOST 64
static double a[MOST][MOST][MOST], b[MOST][MOST][MOST];

static inline double step(double t[MOST][MOST][MOST], int i, int j, int k) {
    return 0.125 * (t[i + 1][j][k] - 2 * t[i][j][k] + t[i - 1][j][k])
         + 0.125 * (t[i][j + 1][k] - 2 * t[i][j][k] + t[i][j - 1][k])
         + 0.125 * (t[i][j][k + 1] - 2 * t[i][j][k] + t[i][j][k - 1]) + t[i][j][k];
}

int run(int n) {
    if (n < 3 || n > MOST) return -1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            for (int k = 0; k < n; k++) a[i][j][k] = b[i][j][k] = draw();
    for (int t = 0; t < 10; t++) {
        for (int i = 1; i < n - 1; i++)
            for (int j = 1; j < n - 1; j++)
                for (int k = 1; k < n - 1; k++) b[i][j][k] = step(a, i, j, k);
        for (int i = 1; i < n - 1; i++)
            for (int j = 1; j < n - 1; j++)
                for (int k = 1; k < n - 1; k++) a[i][j][k] = step(b, i, j, k);
    }
    return digest(&a[0][0][0], n * MOST * MOST);
}
