/* A hash table of strings. Holds: byte loops of unknown length, chains of heap blocks, a table that is enlarged and
   refilled while in use. Argument: number of words. Looks each word up again. */
#include "common.h"
#include <stdio.h>

struct entry { struct entry *next; uint32_t hash, count; char word[]; };
struct table { struct entry **slot; uint32_t slots, used; };

static uint32_t hash(const char *word) {
    uint32_t h = 5381;
    while (*word) h = h * 33 ^ (unsigned char)*word++;
    return h;
}

static void enlarge(struct table *t) {
    uint32_t slots = t->slots * 2;
    struct entry **slot = calloc(slots, sizeof *slot);
    if (!slot) exit(2);
    for (uint32_t i = 0; i < t->slots; i++)
        for (struct entry *e = t->slot[i], *next; e; e = next) {
            next = e->next;
            e->next = slot[e->hash % slots];
            slot[e->hash % slots] = e;
        }
    free(t->slot);
    t->slot = slot, t->slots = slots;
}

static struct entry *look_up(struct table *t, const char *word, int add) {
    uint32_t h = hash(word);
    for (struct entry *e = t->slot[h % t->slots]; e; e = e->next)
        if (e->hash == h && strcmp(e->word, word) == 0) return e;
    if (!add) return NULL;
    if (t->used++ >= t->slots) enlarge(t);
    struct entry *e = malloc(sizeof *e + strlen(word) + 1);
    if (!e) exit(2);
    e->next = t->slot[h % t->slots], e->hash = h, e->count = 0;
    strcpy(e->word, word);
    return t->slot[h % t->slots] = e;
}

/* Words of one to nine letters; short ones come again and again. */
static void make_word(uint32_t *state, char *word) {
    int length = 1 + (int)(next_random(state) % 9);
    for (int i = 0; i < length; i++) word[i] = (char)('a' + next_random(state) % 12);
    word[length] = 0;
}

int main(int argc, char **argv) {
    long words = argument(argc, argv, 1, 200000), repeated = 0;
    struct table t = {calloc(8, sizeof *t.slot), 8, 0};
    if (!t.slot) return 2;
    char word[16];
    uint64_t digest = DIGEST_START;
    uint32_t state = 12345;
    for (long i = 0; i < words; i++) {
        make_word(&state, word);
        struct entry *e = look_up(&t, word, 1);
        repeated += e->count++ > 0;
        digest = digest_u64(digest, e->hash + e->count);
    }
    state = 12345;
    for (long i = 0; i < words; i++) {
        make_word(&state, word);
        if (!look_up(&t, word, 0)) return 1;
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < t.slots; i++)
        for (struct entry *e = t.slot[i]; e; e = e->next) total += e->count;
    printf("%u words, %ld repeated, %016llx\n", t.used, repeated, (unsigned long long)digest);
    return total == (uint64_t)words && (long)t.used + repeated == words ? 0 : 1;
}
