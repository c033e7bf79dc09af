/* Jacobi's method in two dimensions: n x n points, n / 4 turns from one array to the other and back. */
#include "loops.h"
#define MOST 512
static double a[MOST][MOST], b[MOST][MOST];

int run(int n) {
    if (n < 3 || n > MOST) return -1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) a[i][j] = b[i][j] = draw();
    for (int t = 0; t < n / 4; t++) {
        for (int i = 1; i < n - 1; i++)
            for (int j = 1; j < n - 1; j++)
                b[i][j] = 0.2 * (a[i][j] + a[i][j - 1] + a[i][j + 1] + a[i + 1][j] + a[i - 1][j]);
        for (int i = 1; i < n - 1; i++)
            for (int j = 1; j < n - 1; j++)
                a[i][j] = 0.2 * (b[i][j] + b[i][j - 1] + b[i][j + 1] + b[i + 1][j] + b[i - 1][j]);
    }
    return digest(&a[0][0], n * MOST);
}
