/* A program that mostly waits. Holds: a blocking read of stdin, a sleep, a half-filled input buffer. Argument: ms of sleep
   a line. Numbers the lines of stdin. */
#include "common.h"
#include <stdio.h>
#include <time.h>

int main(int argc, char **argv) {
    long ms = argument(argc, argv, 1, 20), lines = 0;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    uint64_t digest = DIGEST_START;
    char line[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        nanosleep(&pause, NULL);
        digest = digest_bytes(digest, line, strlen(line));
        line[strcspn(line, "\n")] = 0;
        printf("%ld: %s\n", ++lines, line);
    }
    printf("%ld lines %016llx\n", lines, (unsigned long long)digest);
    return 0;
}
