/* A parser of JSON, one document a line of stdin. Holds: a recursive descent with half-built trees on the heap, a string
   under construction, a half-read line. Prints each document again, compact. Checks that what it printed gives the same
   when parsed again. Argument: documents to print (all are read). */
#include "common.h"
#include <stdio.h>

enum kind { NOTHING, NO, YES, NUMBER, STRING, ARRAY, OBJECT };
struct node { enum kind kind; double number; char *text; struct node *first, *next; char *name; };
struct text { char *bytes; size_t used, room; };

static const char *at, *line;
static long line_number;

static void fail(const char *why) {
    fprintf(stderr, "line %ld, byte %ld: %s\n", line_number, (long)(at - line), why);
    exit(65);
}

static void put(struct text *t, char c) {
    if (t->used == t->room && !(t->bytes = realloc(t->bytes, t->room = t->room * 2 + 16))) exit(2);
    t->bytes[t->used++] = c;
}

static void put_all(struct text *t, const char *s) { while (*s) put(t, *s++); }

static void skip(void) { while (*at == ' ' || *at == '\t') at++; }

static unsigned hex4(void) {
    unsigned code = 0;
    for (int i = 0; i < 4; i++, at++) {
        char c = *at;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) fail("four hexadecimal digits are missing");
        code = code * 16 + (unsigned)digit;
    }
    return code;
}

static void put_utf8(struct text *t, unsigned code) {
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char head[] = {0, 0xc0, 0xe0, 0xf0};
    put(t, (char)(head[more] | code >> 6 * more));
    while (more-- > 0) put(t, (char)(0x80 | (code >> 6 * more & 0x3f)));
}

static char *parse_string(void) {
    struct text out = {0};
    for (at++; *at != '"'; ) {
        if ((unsigned char)*at < ' ') fail("a string does not end");
        if (*at != '\\') {
            put(&out, *at++);
            continue;
        }
        at++;
        static const char plain[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        const char *found = *at ? strchr(plain, *at) : NULL;
        if (found) put(&out, meant[found - plain]), at++;
        else if (*at == 'u') {
            at++;
            unsigned code = hex4();
            if (code >= 0xd800 && code < 0xdc00 && at[0] == '\\' && at[1] == 'u') {
                at += 2;
                code = 0x10000 + ((code - 0xd800) << 10) + (hex4() - 0xdc00);
            }
            if (code == 0) fail("a string with a zero");
            put_utf8(&out, code);
        } else fail("an unknown escape");
    }
    at++;
    put(&out, 0);
    return out.bytes;
}

static struct node *parse(int depth) {
    struct node *node = calloc(1, sizeof *node), **tail = &node->first;
    if (!node) exit(2);
    if (depth > 500) fail("too deep");
    skip();
    switch (*at) {
    case '{': case '[': {
        char end = *at++ == '{' ? '}' : ']';
        node->kind = end == '}' ? OBJECT : ARRAY;
        for (skip(); *at != end || node->first; tail = &(*tail)->next) {
            char *name = NULL;
            skip();
            if (end == '}') {
                if (*at != '"') fail("a name is missing");
                name = parse_string();
                skip();
                if (*at++ != ':') at--, fail("a colon is missing");
            }
            *tail = parse(depth + 1);
            (*tail)->name = name;
            skip();
            if (*at == end) break;
            if (*at++ != ',') at--, fail("a comma or an end is missing");
        }
        at++;
        break;
    }
    case '"': node->kind = STRING, node->text = parse_string(); break;
    case 'n': case 't': case 'f': {
        const char *word = *at == 'n' ? "null" : *at == 't' ? "true" : "false";
        node->kind = *at == 'n' ? NOTHING : *at == 't' ? YES : NO;
        if (strncmp(at, word, strlen(word)) != 0) fail("an unknown word");
        at += strlen(word);
        break;
    }
    default: {
        char *end;
        if (*at != '-' && (*at < '0' || *at > '9')) fail("a value is missing");
        node->kind = NUMBER, node->number = strtod(at, &end), at = end;
    }
    }
    return node;
}

static void print_string(struct text *out, const char *s) {
    put(out, '"');
    for (; *s; s++) {
        char escaped[8];
        if (*s == '"' || *s == '\\') put(out, '\\'), put(out, *s);
        else if ((unsigned char)*s >= ' ') put(out, *s);
        else snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)*s), put_all(out, escaped);
    }
    put(out, '"');
}

static void print(struct text *out, const struct node *node) {
    static const char *const words[] = {"null", "false", "true"};
    char number[32];
    switch (node->kind) {
    case NUMBER: snprintf(number, sizeof number, "%.17g", node->number), put_all(out, number); break;
    case STRING: print_string(out, node->text); break;
    case ARRAY: case OBJECT:
        put(out, node->kind == ARRAY ? '[' : '{');
        for (const struct node *child = node->first; child; child = child->next) {
            if (child->name) print_string(out, child->name), put(out, ':');
            print(out, child);
            if (child->next) put(out, ',');
        }
        put(out, node->kind == ARRAY ? ']' : '}');
        break;
    default: put_all(out, words[node->kind]);
    }
}

static void forget(struct node *node) {
    for (struct node *child = node->first, *next; child; child = next) next = child->next, forget(child);
    free(node->text), free(node->name), free(node);
}

static struct text printed(const char *text) {
    struct text out = {0};
    at = line = text;
    struct node *tree = parse(0);
    skip();
    if (*at) fail("something follows the document");
    print(&out, tree);
    put(&out, 0);
    forget(tree);
    return out;
}

int main(int argc, char **argv) {
    long shown = argument(argc, argv, 1, 1000000);
    struct text in = {0};
    uint64_t digest = DIGEST_START;
    for (int c; (c = getchar()) != EOF; ) {
        if (c != '\n') {
            put(&in, (char)c);
            continue;
        }
        put(&in, 0);
        line_number++;
        struct text once = printed(in.bytes), twice = printed(once.bytes);
        if (strcmp(once.bytes, twice.bytes) != 0) return puts("printed and parsed it is another"), 1;
        if (line_number <= shown) puts(once.bytes);
        digest = digest_bytes(digest, once.bytes, once.used);
        free(once.bytes), free(twice.bytes);
        in.used = 0;
    }
    printf("%ld documents %016llx\n", line_number, (unsigned long long)digest);
    return 0;
}
