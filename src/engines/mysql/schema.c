/* The tables: made on first use if the account may, else a person is told how to.
 *
 * They can be read with a SELECT: all times are Unix time in microseconds, names and owners are
 * bytes. A lock's row has its exclusive holder in it (`held` is the fence, 0 for nobody: the other
 * columns then tell who was the last); those who share a lock, and slots, are in `holder`, the queue
 * is in `waiter`, and `wake` has what sleeping clients are woken for, and who waits for a cell. */
#include "core/error.h"
#include "engines/mysql/mysql.h"

#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHO                                                                            \
    "  owner VARBINARY(128), attempt VARBINARY(39), host VARBINARY(64), pid BIGINT,\n" \
    "  wake VARBINARY(47), weight INT UNSIGNED, lease BIGINT, min_hold BIGINT,\n"

static const char *const tables[] = {
    "CREATE TABLE IF NOT EXISTS {lock} (\n"
    "  name VARBINARY(512) NOT NULL PRIMARY KEY,\n"
    "  capacity INT UNSIGNED NOT NULL DEFAULT 0, used INT UNSIGNED NOT NULL DEFAULT 0,\n"
    "  holders INT UNSIGNED NOT NULL DEFAULT 0, waiters INT UNSIGNED NOT NULL DEFAULT 0,\n"
    "  fence BIGINT NOT NULL DEFAULT 0, place BIGINT NOT NULL DEFAULT 0,\n"
    "  broken_fence BIGINT NOT NULL DEFAULT 0, broken_at BIGINT NOT NULL DEFAULT 0,\n"
    "  broken_by VARBINARY(128), first_place BIGINT NOT NULL DEFAULT 0,\n" WHO
    "  held BIGINT NOT NULL DEFAULT 0, since BIGINT, expires BIGINT, released TINYINT,\n"
    "  listed TINYINT NOT NULL DEFAULT 1, KEY by_listed (listed, name)\n"
    ") ENGINE=InnoDB ROW_FORMAT=DYNAMIC",

    "CREATE TABLE IF NOT EXISTS {holder} (\n"
    "  name VARBINARY(512) NOT NULL,\n" WHO
    "  fence BIGINT NOT NULL, since BIGINT, expires BIGINT, released TINYINT,\n"
    "  PRIMARY KEY (name, fence), KEY by_end (name, expires), KEY by_owner (name, owner)\n"
    ") ENGINE=InnoDB ROW_FORMAT=DYNAMIC",

    "CREATE TABLE IF NOT EXISTS {waiter} (\n"
    "  name VARBINARY(512) NOT NULL,\n" WHO
    "  place BIGINT NOT NULL, since BIGINT, span BIGINT, alive_until BIGINT,\n"
    "  PRIMARY KEY (name, place), KEY by_owner (name, owner, place)\n"
    ") ENGINE=InnoDB ROW_FORMAT=DYNAMIC",

    "CREATE TABLE IF NOT EXISTS {wake} (\n"
    "  wake VARBINARY(47) NOT NULL, text VARBINARY(96) NOT NULL, at BIGINT NOT NULL,\n"
    "  PRIMARY KEY (wake, text)\n"
    ") ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
};

static const char *const cells[] = {
    "CREATE TABLE IF NOT EXISTS {cell} (\n"
    "  name VARBINARY(1151) NOT NULL PRIMARY KEY,\n"
    "  version BIGINT NOT NULL DEFAULT 0, floor BIGINT NOT NULL DEFAULT 0,\n"
    "  written BIGINT NOT NULL DEFAULT 0, expires BIGINT NOT NULL,\n"
    "  number BIGINT NOT NULL DEFAULT 0, counter TINYINT NOT NULL DEFAULT 0,\n"
    "  vacant TINYINT NOT NULL DEFAULT 0, reap BIGINT NOT NULL,\n"
    "  stamp VARBINARY(39) NOT NULL DEFAULT '', data MEDIUMBLOB NOT NULL, KEY by_reap (reap)\n"
    ") ENGINE=InnoDB ROW_FORMAT=DYNAMIC",

    "CREATE TABLE IF NOT EXISTS {request} (\n"
    "  name VARBINARY(1151) NOT NULL, request VARBINARY(512) NOT NULL,\n"
    "  number BIGINT NOT NULL, expires BIGINT NOT NULL,\n"
    "  PRIMARY KEY (name, request), KEY by_end (expires)\n"
    ") ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
};

/* The column that came last, of each: fails when a table is missing or not ours. */
static const char check[] =
    "SELECT first_place, held, listed FROM {lock} LIMIT 0; "
    "SELECT released FROM {holder} LIMIT 0; "
    "SELECT alive_until FROM {waiter} LIMIT 0; SELECT at FROM {wake} LIMIT 0";
/* The table as it was before it had `listed`, and what that adds. Locks go on meanwhile: InnoDB does both in
 * place. Rows from before are listed until UNLIST has come by. */
static const char check_older[] = "SELECT first_place, held, released FROM {lock} LIMIT 0";
static const char add_listed[] = "ALTER TABLE {lock} ADD COLUMN listed TINYINT NOT NULL DEFAULT 1, "
                                 "ADD KEY by_listed (listed, name)";
static const char check_cells[] =
    "SELECT data, reap FROM {cell} LIMIT 0; SELECT expires FROM {request} LIMIT 0";

static char *finish(dibs__bytes *t)
{
    dibs__bytes_add(t, "", 1);
    if (t->failed) {
        dibs__bytes_fini(t);
        return NULL;
    }
    return t->data;
}

static void add_tables(dibs__bytes *t, const char *prefix, const char *const all[], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dibs__my_add_pattern(t, prefix, all[i], NULL);
        dibs__my_add(t, ";\n");
    }
}

static char *lock_tables(const char *prefix)
{
    dibs__bytes t = {0};

    add_tables(&t, prefix, tables, sizeof tables / sizeof tables[0]);
    return finish(&t);
}

static char *cell_tables(const char *prefix)
{
    dibs__bytes t = {0};

    add_tables(&t, prefix, cells, sizeof cells / sizeof cells[0]);
    return finish(&t);
}

/* All of it, for a person. */
char *dibs__my_schema(const char *prefix)
{
    dibs__bytes t = {0};

    add_tables(&t, prefix, tables, sizeof tables / sizeof tables[0]);
    add_tables(&t, prefix, cells, sizeof cells / sizeof cells[0]);
    return finish(&t);
}

static char *check_text(const char *prefix, const char *pattern)
{
    dibs__bytes t = {0};

    dibs__my_add_pattern(&t, prefix, pattern, NULL);
    return finish(&t);
}

static dibs_status execute(dibs__my_conn *c, char *text, dibs__deadline until, dibs_error *err)
{
    dibs_status status;

    if (!text)
        return dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
    status = dibs__my_do(c, text, until, err);
    free(text);
    return status;
}

/* Only a table of ours is changed. Another may be at it: then the column is there by now. */
static dibs_status bring_up_to_date(dibs__my_conn *c, dibs__deadline until, dibs_error *err)
{
    const dibs__my *e = (dibs__my *)c->base.e;
    dibs_status status = execute(c, check_text(e->address.prefix, check_older), until, err);

    if (status != DIBS_OK)
        return status;
    status = execute(c, check_text(e->address.prefix, add_listed), until, err);
    if (status == DIBS_DENIED)
        return dibs__fail(err, DIBS_DENIED,
                          "mysql: %s: the table %slock is of an older version and this account may "
                          "not change it: let an administrator run \"ALTER TABLE %slock ADD COLUMN "
                          "listed TINYINT NOT NULL DEFAULT 1, ADD KEY by_listed (listed, name)\"",
                          e->address.label, e->address.prefix, e->address.prefix);
    return execute(c, check_text(e->address.prefix, check), until, err);
}

/* `make` NULL: none are created. `names`: for the message. */
static dibs_status see_to(dibs__my_conn *c, const char *pattern, char *(*make)(const char *prefix),
                          const char *names, dibs__deadline until, dibs_error *err)
{
    const dibs__my *e = (dibs__my *)c->base.e;
    const char *prefix = e->address.prefix;
    dibs_status status = execute(c, check_text(prefix, pattern), until, err);

    if (status != DIBS_OK && mysql_errno(c->m) == ER_BAD_FIELD_ERROR && pattern == check)
        return bring_up_to_date(c, until, err);
    if (status == DIBS_OK || mysql_errno(c->m) != ER_NO_SUCH_TABLE)
        return status;
    if (!make)
        return DIBS_NOT_FOUND;
    status = execute(c, make(prefix), until, err);
    if (status == DIBS_DENIED)
        return dibs__fail(err, DIBS_DENIED,
                          "mysql: %s: the tables %s are missing and this account may not create "
                          "them: `dibs schema --url URL` prints the SQL for an administrator",
                          e->address.label, names);
    return status == DIBS_OK ? execute(c, check_text(prefix, pattern), until, err) : status;
}

dibs_status dibs__my_prepare(dibs__sql_conn *base, dibs__deadline until, dibs_error *err)
{
    const char *prefix = ((dibs__my *)base->e)->address.prefix;
    char names[4 * DIBS__MY_PREFIX_MAX + 40];

    snprintf(names, sizeof names, "%slock, %sholder, %swaiter and %swake", prefix, prefix, prefix,
             prefix);
    return see_to((dibs__my_conn *)base, check, lock_tables, names, until, err);
}

dibs_status dibs__my_prepare_cells(dibs__sql_conn *base, bool make, dibs__deadline until,
                                   dibs_error *err)
{
    const char *prefix = ((dibs__my *)base->e)->address.prefix;
    char names[2 * DIBS__MY_PREFIX_MAX + 40];

    snprintf(names, sizeof names, "%scell and %srequest", prefix, prefix);
    return see_to((dibs__my_conn *)base, check_cells, make ? cell_tables : NULL, names, until, err);
}
