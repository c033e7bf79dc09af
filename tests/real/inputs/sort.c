/* Sorts in three ways, for a compiler to chew on. */
typedef unsigned char u8;
typedef struct { int key; u8 tag; } item;
static item items[24];
volatile u8 out;

static int compare(const item *a, const item *b) { return a->key != b->key ? a->key - b->key : a->tag - b->tag; }

static void insertion(item *v, int n) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && compare(&v[j - 1], &v[j]) > 0; j--) { item t = v[j]; v[j] = v[j - 1]; v[j - 1] = t; }
}

static void quick(item *v, int lo, int hi) {
    while (lo < hi) {
        int i = lo, j = hi, p = v[(lo + hi) / 2].key;
        while (i <= j) {
            while (v[i].key < p) i++;
            while (v[j].key > p) j--;
            if (i <= j) { item t = v[i]; v[i++] = v[j]; v[j--] = t; }
        }
        if (j - lo < hi - i) { quick(v, lo, j); lo = i; } else { quick(v, i, hi); hi = j; }
    }
}

static long checksum(const item *v, int n) {
    long sum = 0;
    for (int i = 0; i < n; i++) sum = sum * 31 + (v[i].key ^ v[i].tag);
    return sum;
}

int main(void) {
    long total = 0;
    for (int round = 0; round < 8; round++) {
        unsigned seed = 12345 + round;
        for (int i = 0; i < 24; i++) {
            seed = seed * 25173 + 13849;
            items[i].key = seed >> 3 & 63;
            items[i].tag = i;
        }
        if (round & 1) insertion(items, 24); else quick(items, 0, 23);
        total += checksum(items, 24) / (round + 1);
        switch (round) {
        case 0: out = 1; break; case 1: out ^= 7; break; case 2: out += total; break; case 5: out <<= 2; break;
        default: out = total >> 8;
        }
    }
    return (int) total;
}
