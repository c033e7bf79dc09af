/* Recursion that returns a lot. Holds: a first call's result waiting on the operand stack under a second call (i32 and
   i64), and two functions that call each other. Arguments: n of fib, n of the mutual recursion. */
#include "common.h"
#include <stdio.h>

__attribute__((noinline)) static uint32_t fib(uint32_t n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

/* Bit 0 is the answer. The i64 work after each call keeps the pair from becoming a loop. */
__attribute__((noinline)) static uint64_t is_odd(uint32_t n, uint64_t seen);
__attribute__((noinline)) static uint64_t is_even(uint32_t n, uint64_t seen) {
    if (n == 0) return seen << 1 | 1;
    return is_odd(n - 1, seen + n) ^ (seen * 0x9e3779b97f4a7c15ull & ~1ull);
}
__attribute__((noinline)) static uint64_t is_odd(uint32_t n, uint64_t seen) {
    if (n == 0) return seen << 1;
    return is_even(n - 1, seen * 3 + n) + (seen >> 7 << 1);
}

int main(int argc, char **argv) {
    uint32_t n = (uint32_t)argument(argc, argv, 1, 32), m = (uint32_t)argument(argc, argv, 2, 500);
    uint32_t a = 0, b = 1, result = fib(n);
    for (uint32_t i = 0; i < n; i++) { uint32_t next = a + b; a = b, b = next; }
    uint64_t even = is_even(m, 5), odd = is_odd(m, 5);
    printf("%u %016llx %016llx\n", result, (unsigned long long)even, (unsigned long long)odd);
    return result == a && (even & 1) == (m % 2 == 0) && (odd & 1) == m % 2 ? 0 : 1;
}
