/* A turn with a piece of work that is done once: several workers race for the key of the moment. Who begins
 * it has the effect at the resource and finishes it; some runs fail before they did anything, some are
 * abandoned, some overrun their lease. */
#define _GNU_SOURCE
#include "message.h"

#include <string.h>

#define ENDS_MAX 4 /* times that a finish without an answer is sent */

typedef struct attempt {
    torture_worker *w;
    char id[32], key[96];
    uint64_t sequence;
    bool rerun;
    char fingerprint[2];
    int64_t wait_ms;
    dibs_once *once;
} attempt;

void torture_key_name(const torture_plan *plan, bool rerun, int64_t key, char out[96])
{
    snprintf(out, 96, "%s:%s:%lld", plan->prefix, rerun ? "rerun" : "refuse", (long long)key);
}

/* Mostly the key that everybody wants now, sometimes one that was done before. */
static void prepare(torture_worker *w, attempt *a)
{
    int64_t now = (torture_now() - w->shared->begin) / TORTURE_KEY_SLOT;
    int64_t back = torture_chance(&w->random, 25) ? torture_between(&w->random, 1, 6) : 0;

    *a = (attempt){.w = w, .sequence = ++w->sequence, .rerun = torture_chance(&w->random, 50)};
    snprintf(a->id, sizeof a->id, "%d.%llu", w->number, (unsigned long long)a->sequence);
    torture_key_name(w->plan, a->rerun, now > back ? now - back : 0, a->key);
    a->fingerprint[0] = torture_chance(&w->random, 8) ? 'y' : 'x';
    a->wait_ms =
        torture_chance(&w->random, 40) ? DIBS_NO_WAIT : torture_between(&w->random, 200, 3000);
}

static json_t *result_of(const attempt *a, dibs_status status)
{
    size_t size = 0;
    const char *result = status == DIBS_ALREADY ? dibs_once_result(a->once, &size) : NULL;

    return result ? json_stringn(result, size) : json_null();
}

static dibs_status begin(attempt *a)
{
    const dibs_once_options how = {.lease_ms = a->w->plan->lease_ms,
                                   .keep_ms = TORTURE_KEEP_MS,
                                   .wait_ms = a->wait_ms,
                                   .fingerprint = a->fingerprint,
                                   .fingerprint_size = 1,
                                   .on_crash = a->rerun ? DIBS_CRASH_RERUN : DIBS_CRASH_REFUSE};
    dibs_error err = {0};
    int64_t call = torture_now();
    dibs_status status = dibs_once_begin(a->w->d, a->key, &how, &a->once, &err);
    int64_t back = torture_now();
    bool ours = status == DIBS_OK;

    torture_note(a->w->history, back, "begin", "{s:s,s:s,s:s,s:s,s:I,s:I,s:s,s:o,s:o,s:b,s:s}", "k",
                 a->key, "policy", a->rerun ? "rerun" : "refuse", "b", a->id, "fingerprint",
                 a->fingerprint, "wait_ms", (json_int_t)a->wait_ms, "call", (json_int_t)call,
                 "status", dibs_status_name(status), "fence",
                 ours ? json_integer((json_int_t)dibs_once_fence(a->once)) : json_null(), "result",
                 result_of(a, status), "again", ours && dibs_once_again(a->once), "message",
                 torture_text(err.message));
    return status;
}

static dibs_status end_once(attempt *a, const char *how)
{
    dibs_error err = {0};
    int64_t call = torture_now();
    bool finish = strcmp(how, "finish") == 0;
    dibs_status status;

    if (finish)
        status = dibs_once_finish(a->once, a->id, strlen(a->id), 0, &err);
    else if (strcmp(how, "fail") == 0)
        status = dibs_once_undo(a->once, &err);
    else
        status = dibs_once_abandon(a->once, &err);
    torture_note(a->w->history, torture_now(), how, "{s:s,s:s,s:I,s:s,s:s?}", "b", a->id, "k",
                 a->key, "call", (json_int_t)call, "status", dibs_status_name(status), "result",
                 finish ? a->id : NULL);
    return status;
}

/* Until there is an answer. */
static dibs_status end(attempt *a, const char *how)
{
    dibs_status status = end_once(a, how);

    for (int i = 1; i < ENDS_MAX && torture_unreachable(status); i++) {
        torture_sleep(100 * TORTURE_MS);
        status = end_once(a, how);
    }
    return status;
}

static dibs_status work(attempt *a)
{
    torture_worker *w = a->w;
    torture_message effect = {
        .kind = TORTURE_SAY_EFFECT, .sequence = a->sequence, .fence = dibs_once_fence(a->once)};
    int64_t chosen = torture_between(&w->random, 0, 99);

    torture_sleep(torture_choose_span(w));
    if (chosen < 6)
        return end(a, "fail"); /* before it did anything */
    snprintf(effect.text, sizeof effect.text, "%s", a->key);
    torture_ask(w, &effect);
    return end(a, chosen < 12 ? "abandon" : "finish");
}

bool torture_turn_once(torture_worker *w)
{
    dibs_status status;
    attempt a;

    torture_meet();
    prepare(w, &a);
    status = begin(&a);
    if (status == DIBS_OK)
        status = work(&a);
    dibs_once_free(a.once);
    return !torture_unreachable(status);
}
