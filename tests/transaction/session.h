/* One face for the three client libraries, so that a test is written once: sessions on the database
 * under test, each with a transaction of its own. What goes wrong here fails the test, in whichever
 * thread. */
#ifndef DIBS_TESTS_SQL_SESSION_H
#define DIBS_TESTS_SQL_SESSION_H

#include "dibs_sql.h"
#include "support/test.h"

#include <stdatomic.h>

typedef enum make { MAKE_SQLITE, MAKE_POSTGRESQL, MAKE_MARIADB } make;

/* The database under test. */
extern make under_test;
int database_open(make kind); /* 0, 1: not installed, -1 */
void database_close(void);
bool is_sqlite(void);
bool is_postgresql(void);
bool is_mariadb(void);

typedef struct session {
    void *connection;
    dibs_sql db;
} session;

void session_open(session *s);
void session_close(session *s); /* an open transaction is rolled back */

/* Runs one statement; true when it was accepted. */
bool session_try(session *s, const char *sql);
/* The same, and it must be accepted. */
void session_say(session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The number in the first column of the first row, -1 when there is none. */
int64_t session_number(session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Runs one statement that changes rows; how many it has changed, by the client library's count. */
int64_t session_changed(session *s, const char *sql);
/* The server's number for this session. */
int64_t session_id(session *s);

/* `level`: "READ COMMITTED" or "REPEATABLE READ". SQLite has one level of its own. */
void session_begin(session *s, const char *level);
void session_commit(session *s);
void session_rollback(session *s);

/* True for what asks to start again. */
bool must_start_again(dibs_status status);

/* Fails the test from any thread with a message. */
#define must(condition)                                \
    do {                                               \
        if (!(condition))                              \
            must_fail(#condition, __FILE__, __LINE__); \
    } while (0)
void must_fail(const char *what, const char *file, int line) __attribute__((noreturn));

/* Is this the status? Prints the message that came instead. */
void must_be(dibs_status status, dibs_status expected, const dibs_error *err);

/* `count` threads that run `fn(ctx, i)`. */
void in_threads(int count, void (*fn)(void *ctx, int i), void *ctx);

/* One thread that runs beside the test, and waiting until the database shows that it waits. */
typedef struct beside {
    void *handle;
} beside;
beside run_beside(void (*fn)(void *ctx, int i), void *ctx);
void join_beside(beside a);
/* Until `count` statements of other sessions wait for a lock. */
void wait_for_waiters(session *s, int64_t count);

#endif
