/* A grep. Holds: a recursive matcher's frames deep in a backtrack, two lists of states, a compiled expression, a line of
   stdin. Argument: an expression of . [] * + ? | () ^ $ and \. Prints the lines that match; checks that a search by lists
   of states and one by backtracking agree on each line. */
#include "common.h"
#include <stdio.h>

enum op { CHARACTER, ANY, SET, FIRST, LAST, SPLIT, JUMP, MATCH };
struct code { enum op op; int x, y; };  /* a character, a set's number, or one or two targets */
static struct code program[512];
static unsigned char sets[32][32];
static int length, set_count;
static const char *at;

static void fail(const char *why) {
    fprintf(stderr, "in the expression: %s\n", why);
    exit(64);
}

static int emit(enum op op, int x, int y) {
    if (length == 512) fail("too long");
    program[length] = (struct code){op, x, y};
    return length++;
}

/* Make room for one instruction before place; targets behind it move along. */
static void insert(int place, enum op op) {
    emit(MATCH, 0, 0);
    memmove(&program[place + 1], &program[place], (size_t)(length - 1 - place) * sizeof *program);
    for (int i = place + 1; i < length; i++)
        if (program[i].op == SPLIT || program[i].op == JUMP) {
            program[i].x += program[i].x >= place;
            program[i].y += program[i].y >= place;
        }
    program[place] = (struct code){op, 0, 0};
}

static void parse_set(void) {
    if (set_count == 32) fail("too many sets");
    unsigned char *set = sets[set_count];
    int inverted = *++at == '^';
    if (inverted) at++;
    for (int first = 1; *at && (*at != ']' || first); at++, first = 0) {
        unsigned char low = (unsigned char)*at, high = low;
        if (at[1] == '-' && at[2] && at[2] != ']') high = (unsigned char)at[2], at += 2;
        for (int c = low; c <= high; c++) set[c / 8] |= (unsigned char)(1 << c % 8);
    }
    if (!*at++) fail("a set does not end");
    for (int i = 0; inverted && i < 32; i++) set[i] = (unsigned char)~set[i];
    emit(SET, set_count++, 0);
}

static void parse_choice(void);

static void parse_one(void) {
    int start = length;
    switch (*at) {
    case '(':
        at++;
        parse_choice();
        if (*at++ != ')') fail("a bracket is missing");
        break;
    case '[': parse_set(); break;
    case '.': at++, emit(ANY, 0, 0); break;
    case '^': at++, emit(FIRST, 0, 0); return;
    case '$': at++, emit(LAST, 0, 0); return;
    case '\\':
        if (!*++at) fail("nothing is escaped");
        __attribute__((fallthrough));
    default: emit(CHARACTER, (unsigned char)*at++, 0);
    }
    for (; *at == '*' || *at == '+' || *at == '?'; at++) {
        if (*at == '+') {
            emit(SPLIT, start, length + 1);
            continue;
        }
        insert(start, SPLIT);
        if (*at == '*') emit(JUMP, start, 0);
        program[start].x = start + 1, program[start].y = length;
    }
}

static void parse_choice(void) {
    int start = length;
    while (*at && *at != '|' && *at != ')') {
        if (*at == '*' || *at == '+' || *at == '?') fail("nothing to repeat");
        parse_one();
    }
    if (*at != '|') return;
    at++;
    insert(start, SPLIT);
    int out = emit(JUMP, 0, 0);
    program[start].x = start + 1, program[start].y = length;
    parse_choice();
    program[out].x = length;
}

static int accepts(const struct code *code, const char *c) {
    unsigned char byte = (unsigned char)*c;
    switch (code->op) {
    case CHARACTER: return byte == code->x;
    case ANY: return byte != 0;
    case SET: return byte && sets[code->x][byte / 8] >> byte % 8 & 1;
    default: return 0;
    }
}

/* By lists of states: each is in a list once. */
struct list { int state[512], count; unsigned mark[512], now; };

static int follow(struct list *list, int state, const char *c, const char *text) {
    if (list->mark[state] == list->now) return 0;
    list->mark[state] = list->now;
    const struct code *code = &program[state];
    switch (code->op) {
    case MATCH: return 1;
    case JUMP: return follow(list, code->x, c, text);
    case SPLIT: return follow(list, code->x, c, text) || follow(list, code->y, c, text);
    case FIRST: return c == text && follow(list, state + 1, c, text);
    case LAST: return !*c && follow(list, state + 1, c, text);
    default: list->state[list->count++] = state; return 0;
    }
}

static int search_lists(const char *text) {
    static struct list lists[2];
    struct list *now = &lists[0], *next = &lists[1];
    now->count = 0, now->now++;
    for (const char *c = text; ; c++) {
        if (follow(now, 0, c, text)) return 1;
        if (!*c) return 0;
        next->count = 0, next->now++;
        for (int i = 0; i < now->count; i++)
            if (accepts(&program[now->state[i]], c) && follow(next, now->state[i] + 1, c + 1, text)) return 1;
        struct list *swap = now;
        now = next, next = swap;
    }
}

/* By backtracking. loops: how often a split was passed without a character. */
static int match_here(int state, const char *c, const char *text, int loops) {
    for (;; state++) {
        const struct code *code = &program[state];
        switch (code->op) {
        case MATCH: return 1;
        case JUMP: state = code->x - 1; break;
        case SPLIT:
            if (loops > length) return 0;
            if (match_here(code->x, c, text, loops + 1)) return 1;
            state = code->y - 1;
            break;
        case FIRST: if (c != text) return 0; break;
        case LAST: if (*c) return 0; break;
        default:
            if (!accepts(code, c)) return 0;
            c++, loops = 0;
        }
    }
}

static int search_back(const char *text) {
    for (const char *c = text; ; c++) {
        if (match_here(0, c, text, 0)) return 1;
        if (!*c) return 0;
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return fputs("usage: regexp EXPRESSION\n", stderr), 64;
    at = argv[1];
    parse_choice();
    if (*at) fail("a bracket too many");
    emit(MATCH, 0, 0);
    char line[256];
    long lines = 0, found = 0;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        int matched = search_lists(line);
        if (matched != search_back(line)) return printf("the two searches differ: %s\n", line), 1;
        lines++;
        if (matched && ++found <= 5) puts(line);
    }
    printf("%ld of %ld lines\n", found, lines);
    return 0;
}
