/* The best pairing of a sequence of n letters (Nussinov): a table by diagonals, four choices and a loop in each field. */
#define MOST 400
static int table[MOST][MOST];
static unsigned char letters[MOST];

static int better(int a, int b) { return a > b ? a : b; }

int run(int n) {
    unsigned state = 2463534242u, digest = 0;
    if (n < 1 || n > MOST) return -1;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        letters[i] = state >> 30;
        for (int j = 0; j < n; j++) table[i][j] = 0;
    }
    for (int i = n - 1; i >= 0; i--)
        for (int j = i + 1; j < n; j++) {
            int best = better(table[i][j - 1], table[i + 1][j]);
            if (i + 1 < j) best = better(best, table[i + 1][j - 1] + (letters[i] + letters[j] == 3));
            for (int k = i + 1; k < j; k++) best = better(best, table[i][k] + table[k + 1][j]);
            table[i][j] = best;
        }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) digest = digest * 31 + (unsigned)table[i][j];
    return (int)digest;
}
