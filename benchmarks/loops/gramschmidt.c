/* Orthogonal columns by Gram and Schmidt: three nested loops of unlike length, columns across the order in memory. */
#include "loops.h"
#define MOST 320
static double a[MOST][MOST], r[MOST][MOST], q[MOST][MOST];

int run(int n) {
    if (n < 1 || n > MOST) return -1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            a[i][j] = draw() + (i == j);
            r[i][j] = 0;
        }
    for (int k = 0; k < n; k++) {
        double norm = 0;
        for (int i = 0; i < n; i++) norm += a[i][k] * a[i][k];
        r[k][k] = __builtin_sqrt(norm);
        for (int i = 0; i < n; i++) q[i][k] = a[i][k] / r[k][k];
        for (int j = k + 1; j < n; j++) {
            for (int i = 0; i < n; i++) r[k][j] += q[i][k] * a[i][j];
            for (int i = 0; i < n; i++) a[i][j] -= q[i][k] * r[k][j];
        }
    }
    return digest(&q[0][0], n * MOST);
}
