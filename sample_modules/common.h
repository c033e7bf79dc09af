/* Shared by the C samples: numbers without a clock or a host's random source, and a digest of what was computed. */
#ifndef WASMCKPT_SAMPLE_COMMON_H
#define WASMCKPT_SAMPLE_COMMON_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline uint32_t next_random(uint32_t *state) {
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

/* FNV-1a, 64 bit. */
#define DIGEST_START 0xcbf29ce484222325ull
static inline uint64_t digest_bytes(uint64_t digest, const void *data, size_t count) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < count; i++) digest = (digest ^ byte[i]) * 0x100000001b3ull;
    return digest;
}

static inline uint64_t digest_u64(uint64_t digest, uint64_t value) {
    for (int i = 0; i < 8; i++, value >>= 8) digest = (digest ^ (value & 0xff)) * 0x100000001b3ull;
    return digest;
}

static inline uint64_t digest_f64(uint64_t digest, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return digest_u64(digest, bits);
}

/* The i-th argument as a number, or what it is without one. */
static inline long argument(int argc, char **argv, int i, long otherwise) {
    return i < argc ? strtol(argv[i], NULL, 10) : otherwise;
}
#endif
