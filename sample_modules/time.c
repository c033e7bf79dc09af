/* Time across a move. Holds: monotonic readings in i64 locals, a relative sleep. Arguments: readings, work between them.
   The clock must never go back, a sleep of zero must return, one of 20 ms must not return early. */
#include "common.h"
#include <stdio.h>
#include <time.h>

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static volatile unsigned worked;
static void work(long turns) {
    for (long i = 0; i < turns; i++) worked += (unsigned)i;
}

int main(int argc, char **argv) {
    long readings = argument(argc, argv, 1, 200), turns = argument(argc, argv, 2, 20000);
    int64_t first = now(), last = first;
    int backwards = 0;
    for (long i = 0; i < readings; i++) {
        work(turns);
        int64_t t = now();
        backwards += t < last;
        last = t;
    }
    struct timespec none = {0, 0}, some = {0, 20000000};
    int64_t before = now();
    nanosleep(&none, NULL);
    nanosleep(&some, NULL);
    int64_t slept = now() - before;
    int sane = last - first < 60ll * 1000000000ll;
    printf("backwards:%d slept>=20ms:%d sane:%d\n", backwards, slept >= 20000000, sane);
    return backwards == 0 && slept >= 20000000 && sane ? 0 : 1;
}
