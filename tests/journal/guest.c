/* Does everything that a journal is about, says so on standard output, in a file, and at the end of another file, and
   leaves with code 99 if a file, a folder or a clock is not what it left. Arguments: number of turns, bytes of input
   that will come, turns of computing in each. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int output, appended;

static void check(int good, const char *what) {
    if (good) return;
    dprintf(2, "%s: %s\n", what, strerror(errno));
    _exit(99);
}

static void put(int fd, const char *data, int length) {
    for (int done = 0; done < length;) {
        int n = write(fd, data + done, length - done);
        check(n > 0, "write");
        done += n;
    }
}

static void say(const char *data, int length) {
    put(1, data, length);
    put(output, data, length);
    put(appended, data, length);
}

static int take(int most) {
    char data[256], text[300];
    int n = read(0, data, most < 200 ? most : 200);
    check(n >= 0, "read");
    int m = snprintf(text, sizeof text, "in %d ", n);
    memcpy(text + m, data, n);
    text[m + n] = '\n';
    say(text, m + n + 1);
    return n;
}

static void folders(int i) {
    char folder[64], name[64], other[64];
    struct stat info;
    snprintf(folder, sizeof folder, "/d/t%d", i);
    snprintf(name, sizeof name, "/d/t%d/a", i);
    snprintf(other, sizeof other, "/d/t%d/b", i);
    check(!mkdir(folder, 0777), "mkdir");
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0666);
    check(fd >= 0, "create");
    put(fd, "contents", 8);
    close(fd);
    check(!rename(name, other), "rename");
    check(stat(name, &info) && errno == ENOENT, "old name");
    check(!symlink("b", name), "symlink");
    check(!unlink(name), "unlink the link");
    check(!link(other, name), "link");
    check(!unlink(other), "unlink");
    fd = open(name, O_RDONLY);
    char data[9] = "";
    check(read(fd, data, 8) == 8 && !strcmp(data, "contents"), "contents");
    check(!close(fd), "close");
    check(!truncate(name, 3), "truncate");
    check(!stat(name, &info) && info.st_size == 3, "size");
    check(!unlink(name), "unlink");
    check(!rmdir(folder), "rmdir");
}

int main(int argc, char **argv) {
    int turns = atoi(argv[1]), input = atoi(argv[2]), work = atoi(argv[3]);
    unsigned long long hash = 1469598103934665603u;
    struct timespec last = {0, 0};
    output = open("/d/output", O_CREAT | O_TRUNC | O_WRONLY, 0666);
    appended = open("/d/appended", O_CREAT | O_APPEND | O_WRONLY, 0666);
    check(output >= 0 && appended >= 0, "open");
    for (int i = 0; i < turns; i++) {
        struct timespec now;
        unsigned char random[4];
        char text[200];
        clock_gettime(CLOCK_MONOTONIC, &now);
        check(now.tv_sec > last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec >= last.tv_nsec), "clock");
        last = now;
        extern int getentropy(void *, size_t);
        getentropy(random, 4);
        for (int k = 0; k < work; k++) hash = (hash ^ random[k & 3]) * 1099511628211u;
        int n = snprintf(text, sizeof text, "%d %lld.%09ld %02x%02x%02x%02x %llx\n", i, (long long)now.tv_sec,
                         now.tv_nsec, random[0], random[1], random[2], random[3], hash);
        say(text, n);
        if (i % 4 == 1 && input > 0) input -= take(input);
        if (i % 5 == 2) folders(i);
        if (i % 7 == 3) {
            struct timespec pause = {0, 300000};
            nanosleep(&pause, NULL);
        }
    }
    while (input > 0) {
        int n = take(input);
        check(n > 0, "input is missing");
        input -= n;
    }
    say("end\n", 4);
    return 7;
}
