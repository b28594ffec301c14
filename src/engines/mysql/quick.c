/* The repeated path: one fast operation alone, as a prepared statement in the binary protocol. Nothing is
 * parsed, neither there nor here, and it commits by itself. */
#include "engines/mysql/mysql.h"

#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

#define PARAMETERS 24

/* Which statement that would be; -1: none. */
static int number_of(const dibs__sql_batch *b)
{
    if (b->failed || b->mode != DIBS__SQL_WHOLE || b->count != 1)
        return -1;
    switch (b->command[0].op) {
    case DIBS__SQL_TAKE:
        return 0;
    case DIBS__SQL_GIVE:
        return 1;
    case DIBS__SQL_EXTEND:
        return 2;
    default:
        return -1;
    }
}

bool dibs__my_is_quick(const dibs__my_conn *c, const dibs__sql_batch *b)
{
    return c->binary && number_of(b) >= 0 && !dibs__my_is_new(c, b, 0) &&
           dibs__my_waits_right(c, b);
}

/* The parameters in the order in which the pattern names them. */
static void bind(MYSQL_BIND *out, const char *pattern, const dibs__sql_value *args)
{
    for (const char *at = strchr(pattern, '$'); at; at = strchr(at + 2, '$')) {
        const dibs__sql_value *v = &args[at[1] <= '9' ? at[1] - '1' : at[1] - 'a' + 9];
        memset(out, 0, sizeof *out);
        if (v->kind == DIBS__SQL_NUMBER) {
            out->buffer_type = MYSQL_TYPE_LONGLONG;
            out->buffer = (void *)&v->number;
        } else {
            out->buffer_type = MYSQL_TYPE_BLOB;
            out->buffer = (void *)v->bytes;
            out->buffer_length = v->size;
        }
        out++;
    }
}

static dibs__my_outcome outcome_of(dibs__my_conn *c, MYSQL_STMT *s, int late)
{
    if (late < 0)
        return DIBS__MY_LATE;
    if (mysql_stmt_errno(s) == 0)
        return DIBS__MY_READ_ALL;
    return mysql_errno(c->m) != 0 ? DIBS__MY_FAILED : DIBS__MY_NO_MEMORY;
}

/* A statement that could not be prepared is kept for the next time: closing it would wipe out the error. */
static dibs__my_outcome prepare(dibs__my_conn *c, const dibs__sql_batch *b, int number,
                                dibs__deadline until)
{
    const dibs__my_form *form = &dibs__my_forms[b->command[0].op];
    dibs__my_outcome what;

    if (!c->quick[number])
        c->quick[number] = mysql_stmt_init(c->m);
    c->text.length = 0;
    c->text.failed = false;
    dibs__my_add_template(&c->text, ((dibs__my *)c->base.e)->address.prefix,
                          form->statement[0].pattern, dibs__sql_args(b, &b->command[0]));
    if (!c->quick[number] || c->text.failed)
        return DIBS__MY_NO_MEMORY;
    what = outcome_of(c, c->quick[number],
                      dibs__my_stmt_prepare(c->m, c->quick[number], c->text.data, c->text.length,
                                            c->base.e->base.env, until));
    c->ready[number] = what == DIBS__MY_READ_ALL;
    if (what == DIBS__MY_FAILED && mysql_errno(c->m) == ER_MAX_PREPARED_STMT_COUNT_REACHED)
        c->binary = false;
    return what;
}

dibs__my_outcome dibs__my_ask_quick(dibs__my_conn *c, const dibs__sql_batch *b,
                                    dibs__deadline until)
{
    int number = number_of(b);
    MYSQL_BIND parameter[PARAMETERS];
    dibs__my_outcome what = DIBS__MY_READ_ALL;
    dibs__sql_value fence = {.kind = DIBS__SQL_NUMBER};

    if (!c->ready[number])
        what = prepare(c, b, number, until);
    if (what != DIBS__MY_READ_ALL)
        return what;
    bind(parameter, dibs__my_forms[b->command[0].op].statement[0].pattern,
         dibs__sql_args(b, &b->command[0]));
    if (mysql_stmt_bind_param(c->quick[number], parameter))
        return DIBS__MY_NO_MEMORY;
    what = outcome_of(c, c->quick[number],
                      dibs__my_stmt_execute(c->m, c->quick[number], c->base.e->base.env, until));
    if (what != DIBS__MY_READ_ALL || mysql_stmt_affected_rows(c->quick[number]) != 1)
        return what;
    fence.number = (int64_t)mysql_stmt_insert_id(c->quick[number]);
    return b->row(b->ctx, 0, &fence, 1) < 0 ? DIBS__MY_NO_MEMORY : DIBS__MY_READ_ALL;
}

/* After the connection is closed nothing is sent any more. */
void dibs__my_quick_fini(dibs__my_conn *c)
{
    for (size_t i = 0; i < DIBS__MY_QUICK; i++)
        if (c->quick[i])
            mysql_stmt_close(c->quick[i]);
}
