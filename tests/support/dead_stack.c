/* What lies below the stack pointer: in a red zone, left over from earlier calls, deep down and given back. */

static volatile unsigned salt = 7; /* data, whose place shows where the stack is */

static unsigned turn(unsigned x) { return x * 1664525u + 1013904223u; }

/* Calls nothing, so its array lies below the stack pointer, which it does not move. */
unsigned red_zone(unsigned n) {
    volatile unsigned cells[8];
    for (unsigned i = 0; i < 8; i++) cells[i] = turn(i);
    for (unsigned i = 0; i < n; i++) cells[i & 7] = turn(cells[i & 7] ^ cells[(i + 3) & 7]);
    return cells[0] ^ cells[5];
}

__attribute__((noinline)) static unsigned fill(unsigned x) {
    volatile unsigned cells[2048];
    for (unsigned i = 0; i < 2048; i++) cells[i] = x = turn(x);
    return cells[x & 2047];
}

__attribute__((noinline)) static unsigned peek(unsigned at) {
    volatile unsigned cells[2048];
    return cells[at & 2047];
}

__attribute__((noinline)) static unsigned spin(unsigned n) {
    unsigned x = n;
    for (unsigned i = 0; i < n; i++) x = turn(x) ^ i;
    return x;
}

/* Reads what an earlier call left on the stack: that is undefined, and happens. */
unsigned left_over(unsigned n) {
    fill(n);
    spin(n);
    return peek(1000);
}

__attribute__((noinline)) static unsigned down(unsigned depth, unsigned x) {
    volatile unsigned cells[64];
    for (unsigned i = 0; i < 64; i++) cells[i] = x = turn(x);
    return depth ? down(depth - 1, x) ^ cells[x & 63] : x;
}

/* Down and up again, deeper each time: what was dead is alive again, and dead again. */
unsigned waves(unsigned n) {
    unsigned x = salt;
    for (unsigned i = 0; i < n; i++) x ^= down(i % 150, x) + spin(i & 63);
    return x;
}
