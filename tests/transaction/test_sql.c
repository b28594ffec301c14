/* dibs_sql.h on one database: test_sql sqlite|postgresql|mariadb. Every claim is tested with
 * concurrent sessions, under READ COMMITTED and under REPEATABLE READ. */
#include "suite.h"
#include "support/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TESTS_MAX 128

static const char *const levels[] = {"READ COMMITTED", "REPEATABLE READ"};

typedef struct one_run {
    const sql_test *test;
    const char *level;
    char name[160];
} one_run;

static one_run runs[TESTS_MAX];
static struct CMUnitTest tests[TESTS_MAX];
static size_t count;

bool is_snapshot(const char *level)
{
    return strcmp(level, "REPEATABLE READ") == 0 && !is_sqlite();
}

void start_over(session *s)
{
    session_say(s, "DELETE FROM note");
    session_say(s, "DELETE FROM stock");
    session_say(s, "DELETE FROM dibs_fence");
    session_say(s, "DELETE FROM dibs_once");
    session_say(s, "INSERT INTO stock (item, left_over, version, changed) VALUES (1, 50, 0, 0)");
}

static void run(void **state)
{
    const one_run *r = *state;

    r->test->fn(r->level);
}

static bool applies(const sql_test *t)
{
    return t->on == ALL || (t->on == SERVERS && !is_sqlite()) ||
           (t->on == ONLY_MARIADB && is_mariadb()) || (t->on == ONLY_SQLITE && is_sqlite()) ||
           (t->on == NO_MARIADB && !is_mariadb());
}

static void add_group(const sql_test *group)
{
    for (; group->name; group++) {
        if (!applies(group))
            continue;
        for (size_t i = 0; i < (group->once || is_sqlite() ? 1 : 2); i++) {
            one_run *r = &runs[count];
            *r = (one_run){.test = group, .level = levels[i]};
            snprintf(r->name, sizeof r->name, "%s%s%s", group->name, group->once ? "" : ", ",
                     group->once   ? ""
                     : is_sqlite() ? "sqlite"
                                   : levels[i]);
            tests[count++] =
                (struct CMUnitTest){.name = r->name, .test_func = run, .initial_state = r};
        }
    }
}

/* Our tables, and tables as a caller would have them. */
static void make_tables(void)
{
    session s;
    dibs_error err = {0};

    session_open(&s);
    must_be(dibs_sql_prepare(s.db, &err), DIBS_OK, &err);
    session_say(&s, "CREATE TABLE note (id INTEGER, body VARCHAR(100))");
    session_say(&s, "CREATE TABLE stock (item INTEGER PRIMARY KEY, left_over INTEGER, "
                    "fence BIGINT NOT NULL DEFAULT 0, writes INTEGER NOT NULL DEFAULT 0, "
                    "version BIGINT, changed BIGINT, request VARCHAR(100))");
    session_close(&s);
}

static int skip_all(const char *name)
{
    if (server_required()) {
        printf("1..1\nnot ok 1 - %s is not installed, and servers are required here\n", name);
        return 1;
    }
    printf("1..0 # SKIP %s is not installed\n", name);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const makes[] = {"sqlite", "postgresql", "mariadb"};
    make kind = MAKE_SQLITE;
    int opened, failed;

    while (argc == 2 && kind < MAKE_MARIADB && strcmp(argv[1], makes[kind]) != 0)
        kind++;
    if (argc != 2 || strcmp(argv[1], makes[kind]) != 0) {
        fprintf(stderr, "usage: test_sql sqlite|postgresql|mariadb\n");
        return 64;
    }
    opened = database_open(kind);
    if (opened != 0)
        return opened > 0 ? skip_all(makes[kind]) : 1;
    make_tables();
    add_group(sql_tables);
    add_group(sql_fence);
    add_group(sql_lock);
    add_group(sql_once);
    add_group(sql_update);
    add_group(sql_alloc);
    failed = _cmocka_run_group_tests("sql", tests, count, NULL, NULL);
    database_close();
    return failed;
}
