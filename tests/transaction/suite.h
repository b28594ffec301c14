/* The groups of test_sql: each runs on the database under test, in both isolation levels. */
#ifndef DIBS_TESTS_SQL_SUITE_H
#define DIBS_TESTS_SQL_SUITE_H

#include "session.h"

typedef enum where { ALL, SERVERS, ONLY_MARIADB, ONLY_SQLITE, NO_MARIADB } where;

typedef struct sql_test {
    const char *name;
    void (*fn)(const char *level);
    bool once; /* the level makes no difference */
    where on;
} sql_test;

/* Each ends with a nameless one. */
extern const sql_test sql_tables[];
extern const sql_test sql_fence[];
extern const sql_test sql_lock[];
extern const sql_test sql_once[];
extern const sql_test sql_update[];
extern const sql_test sql_alloc[];

/* Is this the level that reads from a snapshot? */
bool is_snapshot(const char *level);

/* Empties what the tests share: a table `note (id, text)` for rows of a caller's own, a table
 * `stock (item, left_over, version, changed, request)` with item 1, and our own tables. */
void start_over(session *s);

#endif
