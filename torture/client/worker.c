/* A worker: opens a handle (again and again, if the engine is away), takes turns until it is told to stop,
 * and closes in order. */
#define _GNU_SOURCE
#include "message.h"

#include "adapter.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKOFF_MIN (50 * TORTURE_MS)
#define MEETING     (20 * TORTURE_MS)
#define MOMENT      (TORTURE_SECOND / 4)
#define BACKOFF_MAX (800 * TORTURE_MS)

void torture_lock_name(const torture_plan *plan, int64_t lock, char out[96])
{
    snprintf(out, 96, "%s:lock:%d", plan->prefix, (int)lock);
}

bool torture_unreachable(dibs_status status)
{
    return status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_ENGINE_FAILED ||
           status == DIBS_DENIED;
}

void torture_ask(torture_worker *w, torture_message *m)
{
    ssize_t n;

    do
        n = send(w->socket, m, sizeof *m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *m)
        _exit(0); /* the coordinator is gone, and its end is ours */
    do
        n = recv(w->socket, m, sizeof *m, 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *m)
        _exit(0);
}

/* ---- Opening and closing ---------------------------------------------------------------------- */

static dibs_status open_once(torture_worker *w, dibs_error *err)
{
    const dibs_options how = {.lease_ms = w->plan->lease_ms,
                              .request_ms = TORTURE_REQUEST_MS,
                              .connect_ms = TORTURE_REQUEST_MS};

    if (w->plan->adapter)
        return torture_adapter_open(w, err);
    return dibs_open(w->plan->url, &how, &w->d, err);
}

static void close_once(torture_worker *w)
{
    int64_t call = torture_now();

    if (w->plan->adapter)
        torture_adapter_close(w);
    dibs_close(w->d);
    w->d = NULL;
    torture_note(w->history, torture_now(), "closed", "{s:I}", "call", (json_int_t)call);
}

static bool is_open(const torture_worker *w)
{
    return w->d || w->adapter;
}

static int64_t longer(int64_t pause)
{
    return pause * 2 < BACKOFF_MAX ? pause * 2 : BACKOFF_MAX;
}

/* Until it is open, or the run is over. */
static void open_again(torture_worker *w)
{
    torture_message opened = {.kind = TORTURE_SAY_OPENED};
    int64_t pause = BACKOFF_MIN;

    while (!is_open(w) && !atomic_load(&w->shared->stopping)) {
        dibs_error err = {0};
        int64_t call = torture_now();
        dibs_status status = open_once(w, &err);
        if (status == DIBS_OK) {
            torture_note(w->history, torture_now(), "opened", "{s:I}", "call", (json_int_t)call);
            torture_ask(w, &opened);
            w->reopen = torture_now() + torture_between(&w->random, 3, 15) *
                                            (w->plan->adapter ? 10 : 1) * TORTURE_SECOND;
            return;
        }
        torture_note(w->history, torture_now(), "open_failed", "{s:I,s:s,s:s}", "call",
                     (json_int_t)call, "status", dibs_status_name(status), "message",
                     torture_text(err.message));
        torture_sleep(pause + torture_between(&w->random, 0, pause));
        pause = longer(pause);
    }
}

/* ---- What turns share ------------------------------------------------------------------------- */

void torture_meet(void)
{
    torture_sleep(MEETING - torture_now() % MEETING);
}

int64_t torture_choose_span(torture_worker *w)
{
    int64_t lease = w->plan->lease_ms * TORTURE_MS;

    if (torture_between(&w->random, 0, 199) < 3)
        return torture_between(&w->random, lease / 3, lease + lease / 4);
    return torture_between(&w->random, 0, (torture_chance(&w->random, 50) ? 5 : 60) * TORTURE_MS);
}

/* ---- Turns ------------------------------------------------------------------------------------ */

/* Half of the turns are what all workers do in this moment, so that they meet; the others are chance. */
static bool take_turn(torture_worker *w)
{
    static const struct {
        unsigned work;
        int percent;
        bool (*turn)(torture_worker *);
    } turns[] = {{TORTURE_LOCKS, 60, torture_turn_lock},
                 {TORTURE_ONCE, 16, torture_turn_once},
                 {TORTURE_TOKENS, 10, torture_turn_token},
                 {TORTURE_COUNTS, 14, torture_turn_counter}};
    uint64_t moment = (uint64_t)(w->plan->seed + torture_now() / MOMENT);
    int all = 0, chosen;

    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++)
        all += w->plan->work & turns[i].work ? turns[i].percent : 0;
    chosen =
        (int)torture_between(torture_chance(&w->random, 50) ? &moment : &w->random, 0, all - 1);
    for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        if (!(w->plan->work & turns[i].work))
            continue;
        if (chosen < turns[i].percent)
            return turns[i].turn(w);
        chosen -= turns[i].percent;
    }
    return true;
}

int torture_worker_main(torture_worker *w)
{
    int64_t pause = BACKOFF_MIN;

    torture_note(w->history, torture_now(), "start", "{s:i,s:i,s:i}", "worker", w->number, "pid",
                 (int)getpid(), "slot", w->slot);
    while (!atomic_load(&w->shared->stopping)) {
        open_again(w);
        if (!is_open(w))
            break;
        if (take_turn(w)) {
            pause = BACKOFF_MIN;
            torture_sleep(torture_between(&w->random, 0, 15 * TORTURE_MS));
        } else {
            torture_sleep(pause);
            pause = longer(pause);
        }
        if (is_open(w) && torture_now() >= w->reopen)
            close_once(w);
    }
    if (is_open(w))
        close_once(w);
    torture_note(w->history, torture_now(), "end", "{}");
    return 0;
}
