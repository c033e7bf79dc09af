/* Correlations of n columns of n numbers: means, deviations, products of columns (against the order in memory). */
#include "loops.h"
#define MOST 320
static double data[MOST][MOST], corr[MOST][MOST], mean[MOST], deviation[MOST];

int run(int n) {
    if (n < 2 || n > MOST) return -1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) data[i][j] = draw() + j;
    for (int j = 0; j < n; j++) {
        mean[j] = 0;
        for (int i = 0; i < n; i++) mean[j] += data[i][j];
        mean[j] /= n;
        deviation[j] = 0;
        for (int i = 0; i < n; i++) deviation[j] += (data[i][j] - mean[j]) * (data[i][j] - mean[j]);
        deviation[j] = __builtin_sqrt(deviation[j]);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) data[i][j] = (data[i][j] - mean[j]) / deviation[j];
    for (int i = 0; i < n; i++) {
        corr[i][i] = 1;
        for (int j = i + 1; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += data[k][i] * data[k][j];
            corr[i][j] = corr[j][i] = sum;
        }
    }
    return digest(&corr[0][0], n * MOST);
}
