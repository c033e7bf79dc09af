/* Ways to end. Holds: handlers registered with atexit, unflushed output. Arguments: how (return, exit, quick, abort, trap),
   code. */
#include "common.h"
#include <stdio.h>

static void last_words(void) { puts("last words"); }

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "return";
    int code = (int)argument(argc, argv, 2, 0);
    atexit(last_words);
    printf("%s %d\n", how, code);
    if (strcmp(how, "return") == 0) return code;
    if (strcmp(how, "exit") == 0) exit(code);
    fflush(stdout);
    if (strcmp(how, "quick") == 0) _Exit(code);
    if (strcmp(how, "abort") == 0) abort();
    if (strcmp(how, "trap") == 0) __builtin_trap();
    return 64;
}
