/* O_APPEND and a second writer. Holds: two descriptors of one file, one appending, one with a read offset of its own.
   Argument: work between the lines. If a test adds "host\n" to log.txt during the work, it stands between the two. */
#include "common.h"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static volatile unsigned worked;
static void work(long turns) {
    for (long i = 0; i < turns; i++) worked += (unsigned)i;
}

int main(int argc, char **argv) {
    int writer = open("log.txt", O_CREAT | O_WRONLY | O_APPEND | O_TRUNC, 0600), reader = open("log.txt", O_RDONLY);
    if (writer < 0 || reader < 0) return perror("log.txt"), 66;
    char first[2] = {0}, rest[64] = {0};
    if (write(writer, "one\n", 4) != 4 || read(reader, first, 1) != 1) return 74;
    work(argument(argc, argv, 1, 2000000));
    if (write(writer, "two\n", 4) != 4) return 74;
    ssize_t count = read(reader, rest, 63);
    printf("%s|%d|%s", first, (int)count, rest);
    return 0;
}
