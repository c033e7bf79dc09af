/* n words hashed byte by byte into an open-addressed table of counters: short loops of unknown length. */
#define SLOTS 8192
static unsigned key[SLOTS], count[SLOTS];

static unsigned hash(const char *word) {
    unsigned h = 5381;
    while (*word) h = h * 33 ^ (unsigned char)*word++;
    return h | 1;
}

int run(int n) {
    char word[16];
    unsigned state = 12345, digest = 0;
    for (int i = 0; i < SLOTS; i++) key[i] = count[i] = 0;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        unsigned bits = state >> 12, length = 4 + bits % 8;
        for (unsigned k = 0; k < length; k++) word[k] = (char)('a' + (bits >> k % 4 * 3 & 7));
        word[length] = 0;
        unsigned h = hash(word), slot = h % SLOTS, tried = 0;
        while (key[slot] && key[slot] != h && tried++ < SLOTS) slot = (slot + 1) % SLOTS;
        key[slot] = h;
        digest = digest * 31 + h + count[slot]++;
    }
    return (int)digest;
}
