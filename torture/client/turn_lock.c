/* A turn with a lock: ask, hold for a random while, change the resource twice, give it back.
 *
 * The fenced change presents the fence first, computes and writes with the fence: this is how a program is
 * safe after it overran its lease, and no such change may ever be lost. The plain one reads, computes and
 * writes without asking anybody, which is what programs do: what is lost there is counted. */
#define _GNU_SOURCE
#include "message.h"

#include "adapter.h"

#define SAMPLE (3 * TORTURE_MS) /* between two looks at dibs_grant_held */

typedef struct attempt {
    torture_worker *w;
    char id[32], name[96];
    uint64_t sequence, fence, floor;
    uint32_t lock;
    bool shared, fenced; /* fenced: the lock gave a fence */
    int64_t wait_ms, call;
    dibs_grant *grant;
} attempt;

static const char *kind_of(const attempt *a)
{
    return a->shared ? "shared" : "exclusive";
}

static void on_lost(void *data, dibs_grant *g, dibs_loss why)
{
    static const char *const names[] = {"NONE", "EXPIRED",     "BROKEN",
                                        "GONE", "UNREACHABLE", "RESUMED"};
    attempt *a = data;

    (void)g;
    torture_note(a->w->history, torture_now(), "lost", "{s:s,s:s}", "a", a->id, "why", names[why]);
}

/* ---- Asking ----------------------------------------------------------------------------------- */

static int64_t choose_wait(uint64_t *random)
{
    int64_t chosen = torture_between(random, 0, 99);

    if (chosen < 15)
        return DIBS_NO_WAIT;
    return chosen < 30 ? 50 : torture_between(random, 1500, TORTURE_WAIT_MAX_MS);
}

static void prepare(torture_worker *w, attempt *a)
{
    *a = (attempt){.w = w, .sequence = ++w->sequence, .fenced = true};
    snprintf(a->id, sizeof a->id, "%d.%llu", w->number, (unsigned long long)a->sequence);
    a->lock = (uint32_t)torture_between(&w->random, 0, w->plan->locks - 1);
    torture_lock_name(w->plan, a->lock, a->name);
    a->shared = w->plan->shared && torture_chance(&w->random, 20);
    a->wait_ms = choose_wait(&w->random);
}

static dibs_status take(attempt *a, dibs_error *err)
{
    const dibs_lock_options how = {
        .wait_ms = a->wait_ms, .shared = a->shared, .on_lost = on_lost, .data = a};
    dibs_status status;

    if (a->w->plan->adapter)
        return torture_adapter_lock(a->w, a->name, a->wait_ms, &a->fenced, &a->fence, err);
    status = dibs_lock(a->w->d, a->name, &how, &a->grant, err);
    if (status == DIBS_OK) {
        a->fence = dibs_grant_fence(a->grant);
        a->floor = dibs_grant_floor(a->grant);
    }
    return status;
}

static dibs_status ask(attempt *a)
{
    dibs_error err = {0};
    dibs_status status;
    int fd = a->w->history;
    int64_t back;

    torture_note(fd, torture_now(), "ask", "{s:s,s:s,s:s,s:I}", "a", a->id, "lock", a->name, "kind",
                 kind_of(a), "wait_ms", (json_int_t)a->wait_ms);
    a->call = torture_now();
    status = take(a, &err);
    back = torture_now();
    if (status != DIBS_OK)
        torture_note(fd, back, "not", "{s:s,s:s,s:I,s:s,s:s}", "a", a->id, "lock", a->name, "call",
                     (json_int_t)a->call, "status", dibs_status_name(status), "message",
                     torture_text(err.message));
    else
        torture_note(fd, back, "got", "{s:s,s:s,s:s,s:I,s:o,s:o}", "a", a->id, "lock", a->name,
                     "kind", kind_of(a), "call", (json_int_t)a->call, "fence",
                     a->fenced ? json_integer((json_int_t)a->fence) : json_null(), "floor",
                     a->fenced ? json_integer((json_int_t)a->floor) : json_null());
    return status;
}

/* ---- Holding ---------------------------------------------------------------------------------- */

static void sample(attempt *a)
{
    int64_t t = torture_now();
    bool held =
        a->w->plan->adapter ? torture_adapter_held(a->w, a->name) : dibs_grant_held(a->grant);

    torture_note(a->w->history, t, "held", "{s:s,s:b}", "a", a->id, "held", held);
}

static void hold(attempt *a, int64_t span)
{
    int64_t until = torture_now() + span;

    for (sample(a); torture_now() < until; sample(a))
        torture_sleep(until - torture_now() < SAMPLE ? until - torture_now() : SAMPLE);
}

static void note_write(attempt *a, const torture_message *m, int64_t read, int64_t call)
{
    torture_note(a->w->history, torture_now(), "write", "{s:s,s:s,s:b,s:I,s:I,s:I,s:s}", "a", a->id,
                 "lock", a->name, "fenced", m->fenced, "read", (json_int_t)read, "wrote",
                 (json_int_t)read + 1, "call", (json_int_t)call, "answer",
                 m->ok ? "ok" : "refused");
}

static void store(attempt *a, bool fenced, int64_t read)
{
    torture_message m = {.kind = TORTURE_SAY_STORE,
                         .index = a->lock,
                         .sequence = a->sequence,
                         .fence = a->fence,
                         .fenced = fenced,
                         .value = read + 1};
    int64_t call = torture_now();

    torture_ask(a->w, &m);
    note_write(a, &m, read, call);
}

static void change_fenced(attempt *a, int64_t span)
{
    torture_message m = {
        .kind = TORTURE_SAY_RAISE, .index = a->lock, .sequence = a->sequence, .fence = a->fence};

    torture_ask(a->w, &m);
    hold(a, span);
    if (m.ok)
        store(a, true, m.value);
}

static void change_plain(attempt *a, int64_t span)
{
    torture_message m = {.kind = TORTURE_SAY_READ, .index = a->lock, .sequence = a->sequence};

    torture_ask(a->w, &m);
    if (a->fenced)
        torture_sleep(span);
    else
        hold(a, span);
    store(a, false, m.value);
}

/* ---- The turn --------------------------------------------------------------------------------- */

static dibs_status give_back(attempt *a)
{
    int64_t call = torture_now();
    dibs_status status =
        a->w->plan->adapter ? torture_adapter_unlock(a->w, a->name) : dibs_unlock(&a->grant, NULL);

    torture_note(a->w->history, torture_now(), "release", "{s:s,s:I,s:s}", "a", a->id, "call",
                 (json_int_t)call, "status", dibs_status_name(status));
    return status;
}

bool torture_turn_lock(torture_worker *w)
{
    int64_t span = torture_choose_span(w);
    dibs_status status;
    attempt a;

    prepare(w, &a);
    status = ask(&a);
    if (status != DIBS_OK)
        return !torture_unreachable(status);
    sample(&a);
    if (a.shared)
        hold(&a, span);
    else if (a.fenced)
        change_fenced(&a, span * 4 / 5);
    if (!a.shared) /* without a fence this is all there is, and faults choose who is at it */
        change_plain(&a, a.fenced ? span / 5 : span);
    sample(&a);
    return !torture_unreachable(give_back(&a));
}
