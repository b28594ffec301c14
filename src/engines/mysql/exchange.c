/* One exchange, and what a failure means.
 *
 * It goes well: START TRANSACTION if need be, the operations, COMMIT; then KILL QUERY for each
 * handle that has a wake-up waiting in the table: its sleeping connection wakes and reads it (see
 * wake.c). That comes after the commit, and how it ends is nobody's concern; nor is how those are
 * notified who wait for a cell that was changed (notify.c).
 *
 * The server stops at the first statement that fails and says which. If that is one before the
 * COMMIT, nothing of the batch counts; if no answer came at all, nobody knows. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/mysql/mysql.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <string.h>

#define GRACE (200 * DIBS__MS) /* for a rollback after the caller's deadline */

static dibs_status unknown(dibs__my_conn *c, dibs_error *err)
{
    return dibs__fail(err, DIBS_UNKNOWN, "mysql: %s: no answer to a commit: retry",
                      ((dibs__my *)c->base.e)->address.label);
}

/* Errors after which a commit that was under way may have happened. */
static bool is_doubtful(unsigned number)
{
    return number != CR_SERVER_GONE_ERROR &&
           (dibs__my_fatal(number) || number == ER_QUERY_INTERRUPTED);
}

static dibs_status say_why(dibs__my_conn *c, dibs__my_outcome what, dibs_error *err)
{
    dibs__my *e = (dibs__my *)c->base.e;

    if (what == DIBS__MY_FAILED)
        return dibs__my_fault(e, c->m, "asking", &c->base.again, err);
    if (what == DIBS__MY_LATE)
        return dibs__my_late(e, "asking", err);
    return dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
}

static dibs_status fail(dibs__my_conn *c, dibs__my_outcome what, bool may_be_committed,
                        dibs__deadline until, dibs_error *err)
{
    unsigned number = mysql_errno(c->m);
    bool in_doubt = may_be_committed && (what != DIBS__MY_FAILED || is_doubtful(number));
    dibs__deadline grace = dibs__after(c->base.e->base.env, GRACE);
    dibs_status status = say_why(c, what, err);

    if (what != DIBS__MY_FAILED || dibs__my_fatal(number))
        c->base.broken = true;
    if (number == ER_MAX_PREPARED_STMT_COUNT_REACHED) {
        c->prepares = false; /* it works without */
        c->base.again = true;
    }
    memset(c->prepared, 0, sizeof c->prepared); /* some may not have come that far */
    c->row_wait = -1;
    if (in_doubt)
        c->base.again = false;
    dibs__my_rollback(&c->base, grace > until ? grace : until);
    return in_doubt ? unknown(c, err) : status;
}

static void report_denied(dibs__my *e)
{
    if (!atomic_exchange(&e->denied_reported, true))
        e->base.base.sink->log(
            e->base.base.sink, DIBS_LOG_WARNING,
            "mysql: %s: a client of another account waits and may not be woken by this one: it "
            "looks "
            "by itself every few seconds; use one account, or grant CONNECTION ADMIN",
            e->address.label);
}

/* A wake signal did not ring: its handle sleeps no more, or belongs to an account that we may not wake.
 * The wake signals after it have not been tried yet. */
static void ring_the_rest(dibs__my_conn *c, const dibs__sql_batch *b, size_t at,
                          dibs__deadline until)
{
    dibs__my_outcome what = DIBS__MY_FAILED;

    while (what == DIBS__MY_FAILED) {
        if (mysql_errno(c->m) == ER_KILL_DENIED_ERROR)
            report_denied((dibs__my *)c->base.e);
        c->base.broken = dibs__my_fatal(mysql_errno(c->m));
        if (c->base.broken || !dibs__my_build_wake_signals(c, b, c->statement[at].command + 1))
            return;
        what = dibs__my_ask(c, b, until, &at);
    }
    c->base.broken = what != DIBS__MY_READ_ALL;
}

/* The first message and, if a look asked for too little, a second. */
static dibs__my_outcome ask(dibs__my_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                            size_t *at)
{
    dibs__my_outcome what = dibs__my_ask(c, b, until, at);

    if (what == DIBS__MY_READ_ALL && c->forecast_count > 0 && dibs__my_build_looks(c, b))
        what = c->text.failed ? DIBS__MY_NO_MEMORY : dibs__my_ask(c, b, until, at);
    return what;
}

/* Whose row does another session keep locked? */
static void note_locked(dibs__my_conn *c, dibs__my_outcome what, size_t command)
{
    unsigned number = mysql_errno(c->m);

    c->base.locked = what == DIBS__MY_FAILED &&
                     (number == ER_LOCK_WAIT_TIMEOUT || number == ER_STATEMENT_TIMEOUT);
    c->base.culprit = command;
}

static dibs_status exchange_quick(dibs__my_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                                  dibs_error *err)
{
    dibs__my_outcome what = dibs__my_ask_quick(c, b, until);

    if (what == DIBS__MY_READ_ALL)
        return DIBS_OK;
    note_locked(c, what, 0);
    return fail(c, what, true, until, err);
}

/* Nothing was sent. (The server would end the connection over a message that is too long for it.) */
static dibs_status cannot_send(dibs__my_conn *c, bool was_open, dibs__deadline until,
                               dibs_error *err)
{
    bool failed = c->text.failed;
    size_t size = c->text.length;

    memset(c->prepared, 0, sizeof c->prepared);
    c->row_wait = -1;
    c->open = was_open;
    dibs__my_rollback(&c->base, until);
    if (failed)
        return dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
    return dibs__fail(
        err, DIBS_INVALID,
        "mysql: %s: a message of %zu bytes is larger than the server's max_allowed_packet, %zu: "
        "raise it (4M is enough), or store less",
        ((dibs__my *)c->base.e)->address.label, size, c->packet_max);
}

/* What was done is done, however the wake signals went. */
static void committed(dibs__my_conn *c, const dibs__sql_batch *b, dibs__my_outcome what, size_t at,
                      dibs__deadline until)
{
    c->open = false;
    if (what == DIBS__MY_FAILED)
        ring_the_rest(c, b, at, until);
    else if (what != DIBS__MY_READ_ALL)
        c->base.broken = true;
    dibs__my_watchers_notify(c, until);
    c->base.again = false;
}

static dibs_status exchange(dibs__my_conn *c, const dibs__sql_batch *b, dibs__deadline until,
                            dibs_error *err)
{
    bool was_open = c->open;
    size_t commit = dibs__my_build(c, b), at = 0;
    bool commits = commit != SIZE_MAX;
    dibs__my_outcome what;

    if (c->text.failed || c->text.length >= c->packet_max)
        return cannot_send(c, was_open, until, err);
    what = ask(c, b, until, &at);
    if (commits && (what == DIBS__MY_READ_ALL || at > commit)) {
        committed(c, b, what, at, until);
    } else if (what != DIBS__MY_READ_ALL) { /* a statement before the COMMIT took all of it along */
        note_locked(c, what, at < c->count ? c->statement[at].command : SIZE_MAX);
        return fail(c, what,
                    commits && (what != DIBS__MY_FAILED || at == commit ||
                                dibs__my_fatal(mysql_errno(c->m))),
                    until, err);
    }
    return DIBS_OK;
}

dibs_status dibs__my_exchange(dibs__sql_conn *base, const dibs__sql_batch *b, dibs__deadline until,
                              dibs_error *err)
{
    dibs__my_conn *c = (dibs__my_conn *)base;
    dibs_status status;

    base->again = false;
    c->watcher_count = 0;
    status = dibs__my_latch_hold(c, until, err);
    if (status != DIBS_OK) {
        base->again = true;
        return status;
    }
    return dibs__my_is_quick(c, b) ? exchange_quick(c, b, until, err) : exchange(c, b, until, err);
}

dibs_status dibs__my_do(dibs__my_conn *c, const char *text, dibs__deadline until, dibs_error *err)
{
    static const dibs__sql_batch nothing = {0};
    size_t at;
    dibs__my_outcome what = DIBS__MY_NO_MEMORY;
    dibs_status status;

    c->count = c->text.length = 0;
    c->text.failed = false;
    dibs__my_add(&c->text, text);
    if (!c->text.failed)
        what = dibs__my_ask(c, &nothing, until, &at);
    if (what == DIBS__MY_READ_ALL)
        return DIBS_OK;
    status = say_why(c, what, err);
    c->base.again = false;
    if (what == DIBS__MY_LATE || dibs__my_fatal(mysql_errno(c->m)))
        c->base.broken = true;
    return status;
}

void dibs__my_rollback(dibs__sql_conn *base, dibs__deadline until)
{
    dibs__my_conn *c = (dibs__my_conn *)base;
    bool again = base->again;

    if (!c->open || base->broken)
        return;
    c->open = false;
    if (dibs__my_do(c, "ROLLBACK", until, NULL) != DIBS_OK)
        base->broken = true;
    base->again = again;
}
