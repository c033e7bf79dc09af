/* SHA-256 chained over a message. Holds: eight i32 working variables and a 64-word schedule in a fixed-length loop.
   Argument: number of 4 KiB rounds. Checks the standard's "abc" vector first. */
#include "common.h"
#include <stdio.h>

struct sha256 { uint32_t state[8]; uint64_t length; unsigned char block[64]; };

static const uint32_t start_state[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(uint32_t *state, const unsigned char *block) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void begin(struct sha256 *s) {
    memcpy(s->state, start_state, sizeof start_state);
    s->length = 0;
}

static void update(struct sha256 *s, const void *data, size_t count) {
    const unsigned char *byte = data;
    for (; count > 0; count--) {
        s->block[s->length++ % 64] = *byte++;
        if (s->length % 64 == 0) compress(s->state, s->block);
    }
}

static void finish(struct sha256 *s, unsigned char *out) {
    uint64_t bits = s->length * 8;
    unsigned char end[8];
    for (int i = 0; i < 8; i++) end[i] = (unsigned char)(bits >> (56 - 8 * i));
    update(s, "\x80", 1);
    while (s->length % 64 != 56) update(s, "", 1);
    update(s, end, 8);
    for (int i = 0; i < 32; i++) out[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

static void hex(const unsigned char *digest, char *text) {
    for (int i = 0; i < 32; i++) sprintf(text + 2 * i, "%02x", digest[i]);
}

int main(int argc, char **argv) {
    long rounds = argument(argc, argv, 1, 1500);
    struct sha256 s;
    unsigned char digest[32], message[4096];
    char text[65];
    begin(&s);
    update(&s, "abc", 3);
    finish(&s, digest);
    hex(digest, text);
    if (strcmp(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")) return puts(text), 1;
    for (long r = 0; r < rounds; r++) {
        for (size_t i = 0; i < sizeof message; i++) message[i] = (unsigned char)(digest[i % 32] + i);
        begin(&s);
        update(&s, message, sizeof message);
        finish(&s, digest);
    }
    hex(digest, text);
    puts(text);
    return 0;
}
