/* What small programs do with WASI: arguments, environment, standard input, files, directories, clocks, exit code. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list(const char *path) {
    char *names[32];
    int count = 0;
    DIR *dir = opendir(path);
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) names[count++] = strdup(entry->d_name);
    closedir(dir);
    qsort(names, count, sizeof names[0], by_name);
    printf("%s:", path);
    for (int i = 0; i < count; i++) printf(" %s", names[i]);
    printf("\n");
}

static void expect_failure(const char *what, int result) {
    printf("%s: %d %s\n", what, result, result < 0 ? strerror(errno) : "went well");
}

int main(int argc, char **argv) {
    for (int i = 0; i < argc; i++) printf("argument %d: %s\n", i, argv[i]);
    printf("HOME=%s NONE=%s\n", getenv("HOME"), getenv("NONE") ? "set" : "not set");

    char line[256];
    unsigned long sum = 0, lines = 0;
    while (fgets(line, sizeof line, stdin)) {
        lines++;
        for (char *c = line; *c; c++) sum = sum * 31 + (unsigned char)*c;
    }
    printf("%lu lines, sum %lx\n", lines, sum);

    int append = open("/d/log.txt", O_CREAT | O_WRONLY | O_APPEND | O_TRUNC, 0600), reader = open("/d/log.txt", O_RDONLY);
    char buffer[64] = {0};
    write(append, "one\n", 4);
    read(reader, buffer, 1);
    write(append, "two\n", 4);
    read(reader, buffer + 1, 60);
    printf("read back: %s", buffer);
    printf("positions %lld %lld\n", (long long)lseek(append, 0, SEEK_CUR), (long long)lseek(reader, 0, SEEK_CUR));
    close(append);
    close(reader);

    FILE *file = fopen("/d/data.bin", "w+b");
    for (int i = 0; i < 100000; i++) fwrite(&i, sizeof i, 1, file);
    fseek(file, 4 * 77777L, SEEK_SET);
    int found = 0;
    fread(&found, sizeof found, 1, file);
    printf("data[77777] = %d, at %ld\n", found, ftell(file));
    fclose(file);
    struct stat info;
    stat("/d/data.bin", &info);
    printf("size %lld, regular %d\n", (long long)info.st_size, S_ISREG(info.st_mode));

    expect_failure("mkdir", mkdir("/d/sub", 0777));
    expect_failure("mkdir again", mkdir("/d/sub", 0777));
    expect_failure("rename", rename("/d/data.bin", "/d/sub/moved"));
    expect_failure("symlink", symlink("sub/moved", "/d/link"));
    expect_failure("rmdir", rmdir("/d/sub"));
    list("/d");
    list("/d/sub");
    expect_failure("open missing", open("/d/missing", O_RDONLY));
    expect_failure("escape", open("/d/../../etc/passwd", O_RDONLY));
    expect_failure("not granted", open("/etc/passwd", O_RDONLY));
    expect_failure("write to a reader", (int)write(open("/d/link", O_RDONLY), "x", 1));
    expect_failure("closed", (int)write(99, "x", 1));
    expect_failure("unlink", unlink("/d/sub/moved"));
    expect_failure("dangling", open("/d/link", O_RDONLY));
    expect_failure("unlink", unlink("/d/link"));
    expect_failure("rmdir", rmdir("/d/sub"));
    list("/d");

    struct timespec begin, end, rest = {0, 20000000};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    nanosleep(&rest, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    long long slept = (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec;
    printf("slept long enough: %d, terminal: %d\n", slept >= 20000000, isatty(1));
    fprintf(stderr, "%s", "");
    printf("done\n");
    return 7;
}
