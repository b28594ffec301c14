/* Change a row if it is still what was read: one UPDATE that carries the condition.
 *
 * It goes well in one statement. When no row was changed, a locking look at the row tells why: it
 * is not there, the change was made before, or the condition no longer holds. If the condition
 * holds after all (it came true in between, or MariaDB did not count a row that already had these
 * values), the row is locked now and the second UPDATE decides. Where an UPDATE counts every row that it
 * met, and it met none although the row is there and locked, somebody keeps it from changing: a trigger or a
 * rule. */
#include "transaction/sql.h"

#include "core/bytes.h"
#include "core/error.h"

#include <stdio.h>
#include <string.h>

/* SQL text whose placeholders are numbered through. */
typedef struct text {
    dibs__bytes sql;
    bool numbered;
    int placeholders;
} text;

static void add(text *t, const char *sql)
{
    dibs__bytes_add(&t->sql, sql, strlen(sql));
}

/* The next ? that is not inside quotes, or NULL. */
static const char *next_placeholder(const char *at)
{
    char quote = '\0';

    for (; *at; at++) {
        if (quote)
            quote = *at == quote ? '\0' : quote;
        else if (*at == '\'' || *at == '"' || *at == '`')
            quote = *at;
        else if (*at == '?')
            return at;
    }
    return NULL;
}

static size_t count_placeholders(const char *fragment)
{
    size_t count = 0;

    while (fragment && (fragment = next_placeholder(fragment))) {
        count++;
        fragment++;
    }
    return count;
}

static void add_fragment(text *t, const char *fragment)
{
    const char *mark;
    char number[16];

    while ((mark = next_placeholder(fragment))) {
        dibs__bytes_add(&t->sql, fragment, (size_t)(mark - fragment));
        snprintf(number, sizeof number, "$%d", ++t->placeholders);
        add(t, t->numbered ? number : "?");
        fragment = mark + 1;
    }
    add(t, fragment);
}

static void write_update(text *t, const dibs_sql_change *c)
{
    add(t, "UPDATE ");
    add(t, c->table);
    add(t, " SET ");
    add_fragment(t, c->set);
    add(t, " WHERE (");
    add_fragment(t, c->row);
    add(t, ") AND (");
    add_fragment(t, c->still);
    dibs__bytes_add(&t->sql, ")", 2); /* and its end */
}

/* The values come in the order set, row, still, made; this one asks for still, made, row. */
static void write_look(text *t, const dibs_sql_change *c, const char *for_update)
{
    add(t, "SELECT CASE WHEN (");
    add_fragment(t, c->still);
    add(t, ") THEN 1 ELSE 0 END, CASE WHEN (");
    add_fragment(t, c->made ? c->made : "1 = 0");
    add(t, ") THEN 1 ELSE 0 END FROM ");
    add(t, c->table);
    add(t, " WHERE (");
    add_fragment(t, c->row);
    add(t, ")");
    dibs__bytes_add(&t->sql, for_update, strlen(for_update) + 1);
}

typedef struct job {
    const dibs__tx_driver *driver;
    void *connection;
    const dibs_sql_change *change;
    size_t in_set, in_row, in_still, in_made; /* placeholders */
    text update, look;
    dibs_sql_value look_values[DIBS_SQL_VALUES_MAX];
} job;

static dibs_status set_up(job *j, dibs_error *err)
{
    const dibs_sql_change *c = j->change;
    size_t expected;

    j->in_set = count_placeholders(c->set);
    j->in_row = count_placeholders(c->row);
    j->in_still = count_placeholders(c->still);
    j->in_made = count_placeholders(c->made);
    expected = j->in_set + j->in_row + j->in_still + j->in_made;
    if (expected != c->value_count)
        return dibs__fail(err, DIBS_INVALID, "%zu placeholders and %zu values", expected,
                          c->value_count);
    j->update.numbered = j->look.numbered = j->driver->numbered;
    write_update(&j->update, c);
    write_look(&j->look, c, j->driver->for_update);
    if (j->update.sql.failed || j->look.sql.failed)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory for an UPDATE");
    return DIBS_OK;
}

static dibs_status look(job *j, int64_t *rows, int64_t numbers[2], dibs_error *err)
{
    const dibs_sql_value *still = j->change->values + j->in_set + j->in_row;
    size_t after = j->in_still + j->in_made;

    if (after > 0)
        memcpy(j->look_values, still, after * sizeof *still);
    if (j->in_row > 0)
        memcpy(j->look_values + after, j->change->values + j->in_set, j->in_row * sizeof *still);
    return j->driver->look(j->connection, j->look.sql.data, j->look_values, after + j->in_row, rows,
                           numbers, err);
}

/* Why no row was changed. DIBS_OK: the condition holds now. */
static dibs_status explain(job *j, dibs_error *err)
{
    int64_t rows = 0, numbers[2] = {0, 0};
    dibs_status status = look(j, &rows, numbers, err);

    if (status != DIBS_OK)
        return status;
    if (rows == 0)
        return dibs__fail(err, DIBS_NOT_FOUND, "%s has no row with %s", j->change->table,
                          j->change->row);
    if (rows > 1)
        return dibs__fail(err, DIBS_INVALID, "%s has %lld rows with %s: name one", j->change->table,
                          (long long)rows, j->change->row);
    if (numbers[1])
        return dibs__fail(err, DIBS_ALREADY, "the change was made before");
    if (!numbers[0])
        return dibs__fail(err, DIBS_CONFLICT, "%s: %s no longer holds", j->change->table,
                          j->change->still);
    return DIBS_OK;
}

/* DIBS_OK with `changed`, or without when there was no row to change. */
static dibs_status try_update(job *j, bool *changed, dibs_error *err)
{
    int64_t rows = 0;
    dibs_status status = j->driver->update(j->connection, j->update.sql.data, j->change->values,
                                           j->in_set + j->in_row + j->in_still, &rows, err);

    if (status == DIBS_OK && rows > 1)
        return dibs__fail(err, DIBS_INVALID,
                          "%s changed %lld rows of %s: name one, and roll this back",
                          j->change->row, (long long)rows, j->change->table);
    *changed = rows == 1;
    return status;
}

static dibs_status work(job *j, dibs_error *err)
{
    bool changed = false;
    dibs_status status = try_update(j, &changed, err);

    if (status != DIBS_OK || changed)
        return status;
    status = explain(j, err);
    if (status != DIBS_OK)
        return status;
    status = try_update(j, &changed, err);
    if (status == DIBS_OK && !changed && j->driver->counts_matched)
        return dibs__fail(err, DIBS_DENIED,
                          "%s: a trigger or rule of the table prevents the change",
                          j->change->table);
    return status; /* unchanged: it has these values already */
}

dibs_status dibs__tx_change(const dibs__tx_driver *driver, void *connection,
                            const dibs_sql_change *change, dibs_error *err)
{
    job j = {.driver = driver, .connection = connection, .change = change};
    dibs_status status = set_up(&j, err);

    if (status == DIBS_OK)
        status = work(&j, err);
    dibs__bytes_fini(&j.update.sql);
    dibs__bytes_fini(&j.look.sql);
    return status;
}
