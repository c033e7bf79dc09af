/* SQLite in memory, a real program of a thousand functions. Holds: deep C calls, a B-tree in the heap, a virtual machine's
   registers, call-backs through function pointers. Argument: rows. Joins, groups and sorts; checks a sum known beforehand. */
#include "common.h"
#include "sqlite3.h"
#include <stdio.h>

static sqlite3 *db;

static int print_row(void *digest, int columns, char **text, char **names) {
    (void)names;
    for (int i = 0; i < columns; i++) {
        const char *shown = text[i] ? text[i] : "NULL";
        printf("%s%s", i ? "|" : "", shown);
        *(uint64_t *)digest = digest_bytes(*(uint64_t *)digest, shown, strlen(shown) + 1);
    }
    putchar('\n');
    return 0;
}

static void run(const char *sql, uint64_t *digest) {
    char *message = NULL;
    if (sqlite3_exec(db, sql, digest ? print_row : NULL, digest, &message) != SQLITE_OK) {
        printf("%s: %s\n", sql, message);
        exit(1);
    }
}

int main(int argc, char **argv) {
    long rows = argument(argc, argv, 1, 20000);
    uint64_t digest = DIGEST_START;
    sqlite3_stmt *insert;
    if (sqlite3_open(":memory:", &db) != SQLITE_OK) return 2;
    run("CREATE TABLE town(id INTEGER PRIMARY KEY, name TEXT, height REAL);"
        "CREATE TABLE visit(id INTEGER PRIMARY KEY, town INTEGER, day INTEGER, note TEXT);", NULL);
    for (int i = 0; i < 10; i++) {
        char sql[128];
        snprintf(sql, sizeof sql, "INSERT INTO town VALUES(%d, 'town %c', %d.5)", i, 'a' + i, i * i * 7);
        run(sql, NULL);
    }
    run("BEGIN", NULL);
    if (sqlite3_prepare_v2(db, "INSERT INTO visit(town, day, note) VALUES(?, ?, ?)", -1, &insert, NULL) != SQLITE_OK) return 2;
    uint32_t state = 2463534242u;
    long sum = 0;
    for (long i = 0; i < rows; i++) {
        char note[32];
        int day = (int)(next_random(&state) % 365);
        snprintf(note, sizeof note, "note %u", next_random(&state) % 5000);
        sqlite3_bind_int(insert, 1, (int)(next_random(&state) % 10));
        sqlite3_bind_int(insert, 2, day);
        sqlite3_bind_text(insert, 3, note, -1, SQLITE_TRANSIENT);
        if (sqlite3_step(insert) != SQLITE_DONE || sqlite3_reset(insert) != SQLITE_OK) return 2;
        sum += day;
    }
    sqlite3_finalize(insert);
    run("COMMIT; CREATE INDEX visit_note ON visit(note)", NULL);
    run("SELECT name, count(*), min(day), max(day), round(avg(height + day), 3) FROM visit JOIN town ON town.id = visit.town "
        "GROUP BY name ORDER BY 2 DESC, 1", &digest);
    run("SELECT note, count(*) AS n FROM visit GROUP BY note ORDER BY n DESC, note LIMIT 5", &digest);
    run("WITH RECURSIVE n(i, f) AS (SELECT 1, 1.0 UNION ALL SELECT i + 1, f * (i + 1) FROM n WHERE i < 15) "
        "SELECT group_concat(printf('%g', f), ' ') FROM n", &digest);
    run("SELECT upper(substr(note, 1, 6)), total(length(note)) FROM visit WHERE note LIKE '%7' GROUP BY 1 ORDER BY 1", &digest);
    sqlite3_stmt *check;
    if (sqlite3_prepare_v2(db, "SELECT sum(day), count(*) FROM visit", -1, &check, NULL) != SQLITE_OK) return 2;
    if (sqlite3_step(check) != SQLITE_ROW) return 2;
    int right = sqlite3_column_int64(check, 0) == sum && sqlite3_column_int64(check, 1) == rows;
    sqlite3_finalize(check);
    sqlite3_close(db);
    printf("%016llx\n", (unsigned long long)digest);
    return right ? 0 : 1;
}
