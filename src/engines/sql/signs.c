/* Signs of life of many: holders first, then those who wait, then those whose row somebody keeps locked.
 *
 * Nobody waits for a row here: the keeper has one thread, and a lease that ends meanwhile is lost. A row
 * that is locked at the moment is asked for again after a short pause, because most are locked for a
 * millisecond or two. One that stays locked is a stranger's: its task is told so, the core asks again
 * later, and from then on the name comes last, within a bound. */
#define _GNU_SOURCE
#include "engines/sql/inner.h"

#include "core/error.h"

#include <time.h>

#define ROUNDS 5                /* after pauses of 1, 2, 4, 8, 16 ms */
#define BUDGET (100 * DIBS__MS) /* for all whose rows are known to be locked */

typedef enum turn { HOLDERS, WAITERS, KNOWN_LOCKED, TURNS } turn;

static turn turn_of(const dibs__sql_task *t)
{
    if (t->was_locked)
        return KNOWN_LOCKED;
    return t->fence ? HOLDERS : WAITERS;
}

typedef struct signs {
    dibs__sql *e;
    dibs__sql_seat *seat;
    dibs__sql_job *job;
    dibs_error *err;
    dibs__sql_task *part[DIBS__SQL_BATCH];
    size_t count;
} signs;

static void send_part(signs *s, dibs__deadline until)
{
    if (s->count > 0)
        dibs__sql_run_all(s->e, s->seat, s->part, s->count, until, s->err);
    s->count = 0;
}

static void add(signs *s, dibs__sql_task *t)
{
    s->part[s->count++] = t;
    if (s->count == DIBS__SQL_BATCH)
        send_part(s, s->job->until);
}

static void send_turn(signs *s, turn which)
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

static void send_again(signs *s)
{
    for (size_t i = 0; i < s->job->count; i++)
        if (is_locked_now(&s->job->task[i]))
            add(s, &s->job->task[i]);
    send_part(s, s->job->until);
}

/* One by one, from another one on each time: those at the end have their turn, too. */
static void send_locked(signs *s)
{
    size_t count = s->job->count, first = s->e->signs_first++;
    dibs__deadline until = dibs__after(s->e->base.env, BUDGET);

    for (size_t i = 0; i < count; i++) {
        dibs__sql_task *t = &s->job->task[(first + i) % count];
        if (turn_of(t) != KNOWN_LOCKED)
            continue;
        if (dibs__now(s->e->base.env) >= until) {
            t->status = DIBS_UNAVAILABLE;
            continue;
        }
        s->part[s->count++] = t;
        send_part(s, s->job->until);
    }
}

void dibs__sql_signs(dibs__sql *e, dibs__sql_seat *seat, dibs__sql_job *job, dibs_error *err)
{
    signs s = {.e = e, .seat = seat, .job = job, .err = err};
    struct timespec pause = {.tv_nsec = 1000000};

    seat->hasty = true;
    for (size_t i = 0; i < job->count; i++) {
        job->task[i].was_locked = dibs__sql_hint(e, job->task[i].hash) & DIBS__SQL_STUCK;
        job->task[i].locked = false;
    }
    send_turn(&s, HOLDERS);
    send_turn(&s, WAITERS);
    for (int round = 0; round < ROUNDS && any_locked(job); round++) {
        nanosleep(&pause, NULL);
        pause.tv_nsec *= 2;
        send_again(&s);
    }
    send_locked(&s);
    for (size_t i = 0; i < job->count; i++)
        if (job->task[i].locked)
            dibs__sql_hint_stuck(e, job->task[i].hash, true);
    seat->hasty = false;
}
