/* What the tests of the MariaDB engine share: one private server, and a person at its console. */
#ifndef DIBS_TESTS_MYSQL_SUITE_H
#define DIBS_TESTS_MYSQL_SUITE_H

#include "support/calls.h"
#include "support/clock.h"
#include "support/database.h"
#include "support/server.h"
#include "support/test.h"

#include <mysql.h>
#include <pthread.h>
#include <stdatomic.h>

#define SOON_MS 10000
#define LONG_MS 20000

/* The server of all cases that need nothing special. Its accounts have all rights on the database
 * `dibs`, their names are their passwords. */
extern database the_server;

/* Skips the case where there is no server. */
void need_server(void);
const char *url_of(const database *d, const char *account,
                   const char *more); /* of the last 8 calls */

/* As root. The first cell of the first row, 0 when there is none. */
int64_t ask(const database *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Makes the database and the accounts app and other. */
void make_accounts(const database *d);

dibs *open_url(const char *url);
dibs *open_app(void); /* account app on the_server */
dibs_grant *take(dibs *d, const char *name, int64_t lease_ms);
void wait_for_waiters(dibs *d, const char *name, size_t count);

/* A thread that locks, notes, and (unless it keeps it) unlocks. */
typedef struct waiter {
    pthread_t thread;
    dibs *d;
    char name[64];
    int64_t lease_ms;
    bool keep;
    atomic_bool done;
    dibs_status status;
    dibs_error err;
    dibs_grant *g;
    uint64_t fence;
    int64_t at;
} waiter;

void waiter_start(waiter *w, dibs *d, const char *name, int64_t lease_ms, bool keep);
void waiter_join(waiter *w);

void tls_end(void); /* the server of tls_cases */

typedef struct cases {
    const struct CMUnitTest *test;
    size_t count;
} cases;

extern const cases open_cases, wake_cases, fault_cases, token_cases, tls_cases, cell_cases,
    await_cases;

#define CASE(name)                    \
    {                                 \
#name, name, NULL, NULL, NULL \
    }
#define CASES(id, array) const cases id = {array, sizeof array / sizeof array[0]}

#endif
