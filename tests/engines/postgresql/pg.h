/* What the tests of the PostgreSQL engine share: one private server, a connection beside the
 * engine's, and teams of threads that take one lock in turns and notice when they are not alone. */
#ifndef DIBS_TESTS_PG_H
#define DIBS_TESTS_PG_H

#include "support/calls.h"
#include "support/database.h"
#include "support/test.h"

#include <libpq-fe.h>
#include <pthread.h>
#include <stdatomic.h>

#define LONG_MS 20000

extern database pg_db;
extern char pg_url[128];
extern PGconn *pg_control; /* not the engine's */

/* Of the group: no server where there is none. */
int pg_setup(void **state);
int pg_teardown(void **state);
void pg_need(void); /* skips the case, or fails it where servers are required */

PGconn *pg_dial(void);
/* The first value of the answer, until the next call; or the case fails. */
char *pg_ask(PGconn *pg, const char *sql);

dibs *pg_open(const char *where);   /* or the case fails */
void pg_wait_for_queue(long count); /* so many in the queue, on all locks together */

/* A thread that takes a lock, counts, and gives it back. */
typedef struct worker {
    pthread_t thread;
    dibs *d;
    const char *name;
    int rounds;
    dibs_status status;
    dibs_error err;
    int *inside;
    uint64_t *last;
    atomic_int *wrong, *done;
} worker;

typedef struct team {
    worker member[64];
    size_t count;
    int inside;
    uint64_t last;
    atomic_int wrong, done;
} team;

void team_start(team *t, dibs *const handles[], size_t handle_count, size_t count, int rounds,
                const char *name);
void team_end(team *t); /* all were served, one after the other, with growing fences */

#endif
