/* Gauss and Seidel's method on nine points, in place: each sum waits for the one before it. */
#include "loops.h"
#define MOST 512
static double a[MOST][MOST];

int run(int n) {
    if (n < 3 || n > MOST) return -1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) a[i][j] = draw();
    for (int t = 0; t < n / 16; t++)
        for (int i = 1; i < n - 1; i++)
            for (int j = 1; j < n - 1; j++)
                a[i][j] = (a[i - 1][j - 1] + a[i - 1][j] + a[i - 1][j + 1] + a[i][j - 1] + a[i][j] + a[i][j + 1]
                           + a[i + 1][j - 1] + a[i + 1][j] + a[i + 1][j + 1]) / 9.0;
    return digest(&a[0][0], n * MOST);
}
