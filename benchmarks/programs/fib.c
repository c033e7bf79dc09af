/* Recursion, nothing else: the dearest case for anything that is done per call. */
static __attribute__((noinline)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

int run(int n) { return fib(n); }
