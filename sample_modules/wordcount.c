/* A text tool. Holds: open files with offsets, half-filled stdio buffers, words on the heap, a sort by call-back.
   Arguments: OUT FILE ..., where - is stdin. Counts words, writes them sorted to OUT, reads OUT again from the middle to
   check it, and adds a line to log.txt beside OUT. */
#include "common.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>

struct word { char *text; long count; };
static struct word *words;
static long used, room;

static void count(const char *text) {
    for (long i = 0; i < used; i++)
        if (strcmp(words[i].text, text) == 0) {
            words[i].count++;
            return;
        }
    if (used == room && !(words = realloc(words, (size_t)(room = room * 2 + 8) * sizeof *words))) exit(2);
    words[used].count = 1;
    if (!(words[used++].text = strdup(text))) exit(2);
}

static long read_words(FILE *file) {
    char text[64];
    long read = 0, length = 0;
    for (int c;;) {
        c = fgetc(file);
        if (c != EOF && isalnum(c)) {
            if (length < 63) text[length++] = (char)tolower(c);
            continue;
        }
        if (length > 0) text[length] = 0, count(text), read++, length = 0;
        if (c == EOF) return read;
    }
}

static int more_often(const void *a, const void *b) {
    const struct word *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : strcmp(x->text, y->text);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: wordcount OUT FILE...\n"), 64;
    for (int i = 2; i < argc; i++) {
        FILE *file = strcmp(argv[i], "-") == 0 ? stdin : fopen(argv[i], "r");
        if (!file) return fprintf(stderr, "%s: %s\n", argv[i], strerror(errno)), 66;
        printf("%s: %ld\n", argv[i], read_words(file));
        if (file != stdin) fclose(file);
    }
    qsort(words, (size_t)used, sizeof *words, more_often);
    FILE *out = fopen(argv[1], "w+");
    if (!out) return fprintf(stderr, "%s: %s\n", argv[1], strerror(errno)), 73;
    long middle = 0, total = 0;
    for (long i = 0; i < used; i++) {
        if (i == used / 2) middle = ftell(out);
        fprintf(out, "%ld %s\n", words[i].count, words[i].text);
        total += words[i].count;
    }
    if (fseek(out, middle, SEEK_SET) != 0) return 74;
    long n;
    char text[64];
    for (long i = used / 2; i < used; i++)
        if (fscanf(out, "%ld %63s", &n, text) != 2 || n != words[i].count || strcmp(text, words[i].text)) return 1;
    fclose(out);
    char log_name[256], *slash = strrchr(argv[1], '/');
    snprintf(log_name, sizeof log_name, "%.*slog.txt", slash ? (int)(slash - argv[1] + 1) : 0, argv[1]);
    FILE *log = fopen(log_name, "a");
    if (!log) return 73;
    fprintf(log, "%ld words, %ld different\n", total, used);
    fclose(log);
    printf("%ld words, %ld different\n", total, used);
    return 0;
}
