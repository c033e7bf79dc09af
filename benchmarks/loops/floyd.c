/* Shortest ways between all pairs of n points (Floyd and Warshall), in i32. */
#define MOST 512
static int way[MOST][MOST];

int run(int n) {
    unsigned state = 2463534242u, digest = 0;
    if (n < 1 || n > MOST) return -1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            state = state * 1664525u + 1013904223u;
            way[i][j] = (state >> 8) % 1000 < 200 ? (int)(state >> 20) + 1 : 1000000;
        }
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                int by = way[i][k] + way[k][j];
                if (by < way[i][j]) way[i][j] = by;
            }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) digest = digest * 31 + (unsigned)way[i][j];
    return (int)digest;
}
