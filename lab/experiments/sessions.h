/* Two sessions on one database, side by side, and what the second one meets. */
#ifndef DIBS_LAB_SESSIONS_H
#define DIBS_LAB_SESSIONS_H

#include "lab/finding.h"
#include "lab/raw.h"

#include <pthread.h>

typedef struct lab_sessions {
    lab_buyer buyer;
    lab_server server;
    lab_sql *a, *b; /* b gives up waiting for a lock after a second */
    char why[256];
} lab_sessions;

/* False: x->why; nothing is left. */
bool lab_sessions_open(lab_sessions *x, const lab_site *site, lab_server server);
void lab_sessions_close(lab_sessions *x);

/* Each runs what it is told; false: `why` (also kept in buyer.note). */
bool lab_a(lab_sessions *x, const char *sql);
bool lab_b(lab_sessions *x, const char *sql);
/* Does this statement of b's wait for a? Whatever it did is rolled back. */
bool lab_b_waits(lab_sessions *x, const char *sql);

/* A statement that may have to wait, in a thread of its own. */
typedef struct lab_later {
    lab_buyer buyer;
    lab_sql *sql;
    const char *text;
    bool done;       /* when it has ended; else buyer.note says why not */
    int64_t took_us; /* how long it took */
    bool started;
    pthread_t thread;
} lab_later;

bool lab_later_start(lab_later *l, const lab_site *site, lab_sql *sql, const char *text);
void lab_later_end(lab_later *l); /* waits for it; may be called twice */

/* Until the engine itself says that `count` sessions wait for a lock with statements that begin with
 * `begin`, asked through session b. False: not within five seconds. */
bool lab_waiting(lab_sessions *x, const char *begin, int count);
/* What the engine says about the locks that are waited for on tables that begin with `table`. */
void lab_lock_words(lab_sessions *x, const char *table, char out[256]);

/* The strategy of that word on this database. */
const lab_strategy *lab_twin(const char *word, lab_server server);

/* An experiment on MariaDB and its twin on PostgreSQL, from go(site, server, out). */
#define LAB_ON_BOTH(symbol, row, word, text, go)                                   \
    static void symbol##_on_mariadb(const lab_site *site, lab_finding *out)        \
    {                                                                              \
        go(site, LAB_MARIADB, out);                                                \
    }                                                                              \
    static void symbol##_on_postgresql(const lab_site *site, lab_finding *out)     \
    {                                                                              \
        go(site, LAB_POSTGRESQL, out);                                             \
    }                                                                              \
    const lab_experiment symbol##_mariadb = {.id = row,                            \
                                             .name = word "-mariadb",              \
                                             .title = text " (MariaDB)",           \
                                             .needs = LAB_NEED(LAB_MARIADB),       \
                                             .run = symbol##_on_mariadb};          \
    const lab_experiment symbol##_postgresql = {.id = row,                         \
                                                .name = word "-postgresql",        \
                                                .title = text " (PostgreSQL)",     \
                                                .needs = LAB_NEED(LAB_POSTGRESQL), \
                                                .run = symbol##_on_postgresql}

/* Rows for a finding's table. */
typedef struct lab_rows lab_rows;
lab_rows *lab_rows_new(const char *heading); /* cells separated by tabs */
void lab_rows_add(lab_rows *rows, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *lab_rows_end(lab_rows *rows); /* the finding's to free */

#endif
