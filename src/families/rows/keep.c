/* keep-alives of many: holders first, then those who wait, then those whose row somebody keeps locked.
 *
 * Nobody waits for a row before all others have been renewed: the keeper has one thread, and a lease that ends
 * meanwhile is lost. A row that is locked at the moment is asked for again after a short pause, because most
 * are locked for a millisecond or two. One that is still locked then is a stranger's, or one that many queue
 * for, and whoever does not queue never gets it. So at the end one name is really waited for, within a bound,
 * another one each time. Its tasks are told if that was in vain, the core asks again later, and from then on
 * the name comes last. */
#define _GNU_SOURCE
#include "families/rows/inner.h"

#include "core/error.h"

#include <time.h>

#define ROUNDS 5                /* after pauses of 1, 2, 4, 8, 16 ms */
#define BUDGET (100 * DIBS__MS) /* for all whose rows are known to be locked */
#define QUEUE  (150 * DIBS__MS) /* for those who wait: longer than others do (tasks.c) */
#define LEAST  (5 * DIBS__MS)   /* less is no wait */

typedef enum turn { HOLDERS, WAITERS, KNOWN_LOCKED, TURNS } turn;

static turn turn_of(const dibs__sql_task *t)
{
    if (t->was_locked)
        return KNOWN_LOCKED;
    return t->fence ? HOLDERS : WAITERS;
}

typedef struct keep_alives {
    dibs__sql *e;
    dibs__conn_slot *conn_slot;
    dibs__sql_job *job;
    dibs_error *err;
    dibs__sql_task *part[DIBS__SQL_BATCH];
    size_t count;
} keep_alives;

static void send_part(keep_alives *s, dibs__deadline until)
{
    if (s->count > 0)
        dibs__sql_tasks_do(s->e, s->conn_slot, s->part, s->count, until, s->err);
    s->count = 0;
}

static void add(keep_alives *s, dibs__sql_task *t)
{
    s->part[s->count++] = t;
    if (s->count == DIBS__SQL_BATCH)
        send_part(s, s->job->until);
}

static void send_turn(keep_alives *s, turn which)
{
    for (size_t i = 0; i < s->job->count; i++)
        if (turn_of(&s->job->task[i]) == which)
            add(s, &s->job->task[i]);
    send_part(s, s->job->until);
}

static bool is_locked_now(const dibs__sql_task *t)
{
    return t->locked && !t->was_locked;
}

static bool any_locked(const dibs__sql_job *job)
{
    for (size_t i = 0; i < job->count; i++)
        if (is_locked_now(&job->task[i]))
            return true;
    return false;
}

static void send_again(keep_alives *s)
{
    for (size_t i = 0; i < s->job->count; i++)
        if (is_locked_now(&s->job->task[i]))
            add(s, &s->job->task[i]);
    send_part(s, s->job->until);
}

/* All of one name that are left go together: they need the same row. Tasks are sorted by name. Returns how many
 * were looked at. */
static size_t send_name(keep_alives *s, size_t at)
{
    const dibs__sql_task *first = &s->job->task[at];
    size_t i = at;

    for (; i < s->job->count && s->count < DIBS__SQL_BATCH; i++) {
        dibs__sql_task *t = &s->job->task[i];
        if (t->hash != first->hash)
            break;
        if (t->locked || turn_of(t) == KNOWN_LOCKED)
            s->part[s->count++] = t;
    }
    send_part(s, s->job->until);
    return i - at;
}

/* Name by name, from another one on each time: those at the end have their turn, too. */
static void send_locked(keep_alives *s)
{
    size_t count = s->job->count, first = s->e->keep_first % (count ? count : 1);
    dibs__deadline until = dibs__after(s->e->base.env, BUDGET);

    for (size_t i = 0; i < count;) {
        size_t at = (first + i) % count;
        dibs__sql_task *t = &s->job->task[at];
        if (turn_of(t) == KNOWN_LOCKED && dibs__now(s->e->base.env) < until) {
            i += send_name(s, at);
            continue;
        }
        if (turn_of(t) == KNOWN_LOCKED) {
            t->status = DIBS_UNAVAILABLE;
            t->locked = true;
        }
        i++;
    }
}

/* Nobody of the handle has less time than the caller gives us. */
static dibs__deadline queue_until(const keep_alives *s)
{
    int64_t now = dibs__now(s->e->base.env), left = s->job->until - now;

    return now + (left / 3 < QUEUE ? left / 3 : QUEUE);
}

/* The first of them waits for all of it, if it must; what it leaves is the next one's. */
static void send_waiting(keep_alives *s)
{
    size_t count = s->job->count, first = s->e->keep_first++;
    dibs__deadline until = queue_until(s);
    size_t i = 0;

    s->conn_slot->hasty = false;
    while (i < count) {
        size_t at = (first + i) % count;
        int64_t left = until - dibs__now(s->e->base.env);
        if (left < LEAST)
            break;
        if (!s->job->task[at].locked) {
            i++;
            continue;
        }
        s->conn_slot->patience = left;
        i += send_name(s, at);
        s->e->keep_first = first + i;
    }
    s->conn_slot->patience = 0;
}

void dibs__sql_keep_batch(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                          dibs_error *err)
{
    keep_alives s = {.e = e, .conn_slot = conn_slot, .job = job, .err = err};
    int64_t pause = DIBS__MS;

    conn_slot->hasty = true;
    for (size_t i = 0; i < job->count; i++) {
        job->task[i].was_locked = dibs__sql_hint(e, job->task[i].hash) & DIBS__SQL_STUCK;
        job->task[i].locked = false;
    }
    send_turn(&s, HOLDERS);
    send_turn(&s, WAITERS);
    for (int round = 0; round < ROUNDS && any_locked(job); round++) {
        dibs__sleep(e->base.env, pause);
        pause = dibs__longer(pause, DIBS__MS, DIBS__SECOND);
        send_again(&s);
    }
    send_locked(&s);
    send_waiting(&s);
    for (size_t i = 0; i < job->count; i++)
        if (job->task[i].locked)
            dibs__sql_hint_stuck(e, job->task[i].hash, true);
    conn_slot->hasty = false;
}
