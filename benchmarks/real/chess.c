/* Chess: counts the positions after so many half-moves (which checks the rules against known numbers), then searches a
   position by alpha and beta with a sorted list of moves. Arguments: half-moves to count, half-moves to search.
   Board of 10 x 12 fields, so that a piece that leaves it meets a border; no castling, no capture in passing, promotion to
   queens only, so the counts are those of that game (the first three half-moves are those of the real one). */
#include "common.h"
#include <stdio.h>

enum { NONE, PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING, BORDER = 64 };
struct move { unsigned char from, to, taken, promoted; int order; };

static signed char board[120];  /* white pieces above zero, black ones below */
static long visited;
static const int worth[] = {0, 100, 320, 330, 500, 900, 20000};
static const signed char steps[] = {-11, -9, 9, 11, -10, -1, 1, 10}, jumps[] = {-21, -19, -12, -8, 8, 12, 19, 21};

static void set_up(const char *rows) {
    static const char names[] = ".PNBRQK";
    memset(board, BORDER, sizeof board);
    for (int i = 0; i < 64; i++) {
        char c = rows[i], upper = c >= 'a' ? c - 32 : c;
        int piece = (int)(strchr(names, upper) - names);
        board[21 + i / 8 * 10 + i % 8] = (signed char)(c >= 'a' ? -piece : piece);
    }
}

static int attacked(int field, int by) {  /* by: 1 white, -1 black */
    for (int i = 0; i < 8; i++) if (board[field + jumps[i]] == by * KNIGHT) return 1;
    if (board[field + by * 9] == by * PAWN || board[field + by * 11] == by * PAWN) return 1;
    for (int i = 0; i < 8; i++) {
        int at = field + steps[i];
        if (board[at] == by * KING) return 1;
        while (board[at] == NONE) at += steps[i];
        if (board[at] == by * QUEEN || board[at] == by * (i < 4 ? BISHOP : ROOK)) return 1;
    }
    return 0;
}

static int king_of(int side) {
    for (int at = 21; at < 99; at++) if (board[at] == side * KING) return at;
    return 0;
}

static struct move *add(struct move *list, int from, int to, int promoted) {
    int taken = abs(board[to]);
    *list = (struct move){(unsigned char)from, (unsigned char)to, (unsigned char)taken, (unsigned char)promoted,
                          (taken ? 10 * worth[taken] - worth[abs(board[from])] + 10000 : 0) + (promoted ? 9000 : 0)};
    return list + 1;
}

static struct move *moves_of(int side, struct move *list) {
    for (int from = 21; from < 99; from++) {
        int piece = board[from] * side;
        if (piece <= 0 || piece == BORDER || board[from] == BORDER) continue;
        if (piece == PAWN) {
            int ahead = from - 10 * side, last = side > 0 ? ahead < 30 : ahead > 90, first = side > 0 ? from > 80 : from < 40;
            if (board[ahead] == NONE) {
                list = add(list, from, ahead, last);
                if (first && board[ahead - 10 * side] == NONE) list = add(list, from, ahead - 10 * side, 0);
            }
            for (int side_step = -1; side_step <= 1; side_step += 2) {
                int to = ahead + side_step;
                if (board[to] != BORDER && board[to] * side < 0) list = add(list, from, to, last);
            }
            continue;
        }
        for (int i = piece == ROOK ? 4 : 0; i < (piece == BISHOP ? 4 : 8); i++) {
            int step = piece == KNIGHT ? jumps[i] : steps[i], to = from + step;
            for (; board[to] == NONE; to += step) {
                list = add(list, from, to, 0);
                if (piece == KNIGHT || piece == KING) break;
            }
            if (board[to] != NONE && board[to] != BORDER && board[to] * side < 0) list = add(list, from, to, 0);
        }
    }
    return list;
}

static int make(struct move m, int side) {  /* whether it was allowed; it is made anyhow */
    board[m.to] = (signed char)(m.promoted ? side * QUEEN : board[m.from]);
    board[m.from] = NONE;
    return !attacked(king_of(side), -side);
}

static void unmake(struct move m, int side) {
    board[m.from] = (signed char)(m.promoted ? side * PAWN : board[m.to]);
    board[m.to] = (signed char)(-side * m.taken);
}

static long count(int side, int depth) {
    struct move list[256], *end = moves_of(side, list);
    long all = 0;
    for (struct move *m = list; m < end; m++) {
        if (make(*m, side)) all += depth > 1 ? count(-side, depth - 1) : 1;
        unmake(*m, side);
    }
    return all;
}

static int value(int side) {
    int sum = 0;
    for (int at = 21; at < 99; at++) {
        int piece = board[at];
        if (piece == NONE || piece == BORDER) continue;
        int row = at / 10 - 2, column = at % 10 - 1, centre = 6 - abs(2 * row - 7) / 2 - abs(2 * column - 7) / 2;
        sum += piece > 0 ? worth[piece] + centre * 4 : -worth[-piece] - centre * 4;
    }
    return sum * side;
}

static int by_order(const void *a, const void *b) {
    const struct move *x = a, *y = b;
    if (x->order != y->order) return y->order - x->order;
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

static int search(int side, int depth, int alpha, int beta) {
    struct move list[256], *end = moves_of(side, list);
    int legal = 0;
    visited++;
    if (depth <= 0) {  /* captures only, from here on */
        int now = value(side);
        if (now >= beta) return now;
        if (now > alpha) alpha = now;
    }
    qsort(list, (size_t)(end - list), sizeof *list, by_order);
    for (struct move *m = list; m < end; m++) {
        if (depth <= 0 && (!m->taken || depth < -6)) break;
        int allowed = make(*m, side), found = 0;
        if (allowed) found = -search(-side, depth - 1, -beta, -alpha);
        unmake(*m, side);
        if (!allowed) continue;
        legal++;
        if (found > alpha) alpha = found;
        if (alpha >= beta) return alpha;
    }
    if (depth > 0 && !legal) return attacked(king_of(side), -side) ? -30000 - depth : 0;
    return alpha;
}

int main(int argc, char **argv) {
    static const long known[] = {20, 400, 8902};
    int depth = (int)argument(argc, argv, 1, 4), far = (int)argument(argc, argv, 2, 4);
    set_up("rnbqkbnrpppppppp................................PPPPPPPPRNBQKBNR");
    for (int i = 1; i <= depth; i++) {
        long found = count(1, i);
        if (i <= 3 && found != known[i - 1]) return 1;
        printf("%d: %ld\n", i, found);
    }
    set_up("r..qk..rppp..ppp..np.n..b.b.p.B...B.P.....NP.N..PPP..PPPR..QK..R");
    int found = search(1, far, -40000, 40000);
    printf("%d after %ld positions\n", found, visited);
    return 0;
}
