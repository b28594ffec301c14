/* dibs_close while other threads are inside calls of the handle: every call comes back, with DIBS_CANCELLED or with
 * its answer, and none of them uses the handle after that. The sanitizers look on. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include "core/handle.h"

#include <stdio.h>
#include <string.h>

typedef struct caller caller;
struct caller {
    dibs *d;
    dibs_once *theirs; /* another's run */
    char name[64], text[DIBS_TOKEN_SIZE];
    dibs_status (*call)(caller *c);
    pthread_t thread;
    dibs_status status;
    dibs_error err;
};

static void *run(void *data)
{
    caller *c = data;

    c->status = c->call(c);
    return NULL;
}

/* By the handle's own count: from now on dibs_close waits for this call. */
static bool more_inside(dibs *d, int than)
{
    int64_t end = clock_ms() + LONG_MS;
    int inside = 0;

    while (clock_ms() < end) {
        pthread_mutex_lock(&d->mutex);
        inside = d->users;
        pthread_mutex_unlock(&d->mutex);
        if (inside > than)
            return true;
        sleep_ms(1);
    }
    return false;
}

static int inside(dibs *d)
{
    int n;

    pthread_mutex_lock(&d->mutex);
    n = d->users;
    pthread_mutex_unlock(&d->mutex);
    return n;
}

static void start(caller *c)
{
    int before = inside(c->d);

    assert_int_equal(pthread_create(&c->thread, NULL, run, c), 0);
    assert_true(more_inside(c->d, before));
}

/* ---- Waits ------------------------------------------------------------------------------------- */

static dibs_status lock(caller *c)
{
    dibs_grant *g = NULL;

    return dibs_lock(c->d, c->name, &(dibs_lock_options){.wait_ms = DIBS_FOREVER}, &g, &c->err);
}

static dibs_status lock_many(caller *c)
{
    const char *const names[] = {"close-free", c->name};
    dibs_grant *g[2] = {NULL, NULL};

    return dibs_lock_many(c->d, names, 2, NULL, g, &c->err);
}

/* Its object, if there is one, goes with the handle. */
static dibs_status begin(caller *c)
{
    dibs_once *o = NULL;

    return dibs_once_begin(c->d, c->name, NULL, &o, &c->err);
}

static dibs_status wait(caller *c)
{
    return dibs_once_wait(c->theirs, DIBS_FOREVER, &c->err);
}

static dibs_status break_it(caller *c)
{
    return dibs_lock_break(c->d, c->name, &(dibs_lock_break_options){.by = "operator"}, &c->err);
}

static void closing_ends_every_wait(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("close");
    caller all[] = {{.call = lock},  {.call = lock}, {.call = lock_many}, {.call = begin},
                    {.call = begin}, {.call = wait}, {.call = break_it}};
    size_t count = sizeof all / sizeof all[0];
    dibs_once *mine = NULL, *theirs = NULL;

    (void)state;
    take(a, name, &(dibs_lock_options){.no_renew = true});
    if (the.can.cells) {
        assert_status(dibs_once_begin(a, name, NULL, &mine, NULL), DIBS_OK);
        assert_status(
            dibs_once_begin(b, name, &(dibs_once_options){.wait_ms = DIBS_NO_WAIT}, &theirs, NULL),
            DIBS_RUNNING);
    }
    for (size_t i = 0; i < count; i++) {
        all[i].d = b;
        all[i].theirs = theirs;
        snprintf(all[i].name, sizeof all[i].name, "%s", name);
        if (the.can.cells || (all[i].call != begin && all[i].call != wait))
            start(&all[i]);
        else
            all[i].d = NULL;
    }
    close_handle(b);
    for (size_t i = 0; i < count; i++) {
        if (!all[i].d)
            continue;
        assert_int_equal(pthread_join(all[i].thread, NULL), 0);
        assert_status(all[i].status, DIBS_CANCELLED);
        assert_status(all[i].err.status, DIBS_CANCELLED);
    }
}

/* ---- Calls that ask ---------------------------------------------------------------------------- */

/* The engine's own table, with a gate before every answer. */
static dibs__engine_class gated;
static const dibs__engine_class *real;
static atomic_bool gate_open;

static void pass_gate(void)
{
    while (!atomic_load(&gate_open))
        sleep_ms(1);
}

static dibs_status gated_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                 dibs__report_builder *out, dibs_error *err)
{
    dibs_status status = real->inspect(e, name, until, out, err);

    pass_gate();
    return status;
}

static dibs_status gated_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                              dibs__report_builder *out, dibs_error *err)
{
    dibs_status status = real->list(e, prefix, idle, until, out, err);

    pass_gate();
    return status;
}

static dibs_status gated_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                              bool notify, dibs__deadline until, dibs__cell_reply *out,
                              dibs_error *err)
{
    dibs_status status = real->cell(e, key, command, notify, until, out, err);

    pass_gate();
    return status;
}

static void put_gate(dibs *d)
{
    real = d->class;
    gated = *real;
    gated.inspect = gated_inspect;
    gated.list = gated_list;
    if (real->cell)
        gated.cell = gated_cell;
    atomic_store(&gate_open, false);
    d->class = &gated;
}

static dibs_status inspect(caller *c)
{
    dibs_lock_report *r = NULL;
    dibs_status status = dibs_lock_inspect(c->d, c->name, &r, &c->err);

    dibs_lock_report_free(r);
    return status;
}

static dibs_status list(caller *c)
{
    dibs_lock_report *r = NULL;
    dibs_status status = dibs_lock_list(c->d, c->name, NULL, &r, &c->err);

    dibs_lock_report_free(r);
    return status;
}

static dibs_status read_cell(caller *c)
{
    dibs_value v = {0};
    dibs_status status = dibs_cell_read(c->d, c->name, &v, &c->err);

    dibs_value_free(&v);
    return status;
}

static dibs_status count(caller *c)
{
    return dibs_counter_add(c->d, c->name, 1, NULL, NULL, &c->err);
}

static dibs_status redeem(caller *c)
{
    return dibs_token_redeem(c->d, c->text, NULL, &c->err);
}

static void *close_it(void *d)
{
    dibs_close(d);
    return NULL;
}

static bool is_closing(dibs *d)
{
    bool closing;

    pthread_mutex_lock(&d->mutex);
    closing = d->closing;
    pthread_mutex_unlock(&d->mutex);
    return closing;
}

static void closing_waits_for_calls_that_ask(void **state)
{
    caller all[] = {
        {.call = inspect}, {.call = list}, {.call = read_cell}, {.call = count}, {.call = redeem}};
    size_t count_all = the.can.cells ? sizeof all / sizeof all[0] : 2;
    dibs *a = open_handle(), *d = NULL;
    const char *name = fresh("close-ask");
    pthread_t closer;
    int before = 0;

    (void)state;
    take(a, name, NULL);
    assert_status(dibs_open(the.url, NULL, &d, NULL), DIBS_OK);
    if (the.can.cells)
        assert_status(dibs_token_issue(a, NULL, all[4].text, NULL),
                      DIBS_OK); /* no keeper of d runs yet */
    put_gate(d);
    for (size_t i = 0; i < count_all; i++) {
        all[i].d = d;
        snprintf(all[i].name, sizeof all[i].name, "%s", name);
        before = inside(d);
        start(&all[i]);
    }
    /* The call and its first command are counted each: between its two commands it is still inside. */
    if (the.can.cells)
        assert_true(more_inside(d, before + 1));
    assert_int_equal(pthread_create(&closer, NULL, close_it, d), 0);
    while (!is_closing(d))
        sleep_ms(1);
    atomic_store(&gate_open, true);
    for (size_t i = 0; i < count_all; i++) {
        assert_int_equal(pthread_join(all[i].thread, NULL), 0);
        assert_status(all[i].err.status, all[i].status);
    }
    assert_int_equal(pthread_join(closer, NULL), 0);
    assert_status(all[0].status, DIBS_OK);
    assert_status(all[1].status, DIBS_OK);
    if (the.can.cells) {
        assert_status(all[2].status, DIBS_NOT_FOUND);
        assert_status(all[3].status, DIBS_OK);
        assert_status(all[4].status, DIBS_CANCELLED); /* between its two commands */
    }
}

/* ---- Beside a drain ------------------------------------------------------------------------------ */

#define EACH 2 /* threads of each kind */

/* What a thread does again and again, until it is told to stop. It keeps what it has, and frees it then. */
typedef struct worker worker;
struct worker {
    dibs *d;
    const char *kind;
    dibs_status (*call)(worker *w);
    char name[64];
    dibs_grant *g;
    dibs_once *o;
    int64_t calls;
    dibs_status status, unlocked;
    pthread_t thread;
};

static dibs_status work_lock(worker *w)
{
    if (w->g)
        unlock(w->g);
    w->g = NULL;
    return dibs_lock(w->d, w->name, NULL, &w->g, NULL);
}

static dibs_status work_renew(worker *w)
{
    return w->g ? dibs_renew(w->g, NULL) : dibs_lock(w->d, w->name, NULL, &w->g, NULL);
}

static dibs_status work_many(worker *w)
{
    const char *const names[] = {w->name, "drain-many"};
    dibs_grant *g[2];
    dibs_status status = dibs_lock_many(w->d, names, 2, NULL, g, NULL);

    if (status == DIBS_OK) {
        unlock(g[0]);
        unlock(g[1]);
    }
    return status;
}

static dibs_status work_wait(worker *w)
{
    return dibs_lock(w->d, "drain-held", NULL, &w->g, NULL);
}

static dibs_status work_look(worker *w)
{
    dibs_lock_report *r = NULL;
    dibs_status status = dibs_lock_inspect(w->d, "drain-held", &r, NULL);

    dibs_lock_report_free(r);
    return status;
}

static dibs_status work_list(worker *w)
{
    dibs_lock_report *r = NULL;
    dibs_status status = dibs_lock_list(w->d, "drain-", NULL, &r, NULL);

    dibs_lock_report_free(r);
    return status;
}

static dibs_status work_break(worker *w)
{
    return dibs_lock_break(w->d, w->name, &(dibs_lock_break_options){.by = "me", .now = true},
                           NULL);
}

static dibs_status work_top(worker *w)
{
    uint64_t top;

    return dibs_fence_top(w->d, &top, NULL);
}

static dibs_status work_adopt(worker *w)
{
    char text[DIBS_GRANT_SIZE];
    dibs_status status =
        dibs_lock(w->d, w->name, &(dibs_lock_options){.portable = true}, &w->g, NULL);

    if (status == DIBS_OK)
        status = dibs_grant_export(w->g, text, NULL);
    if (status == DIBS_OK)
        status = dibs_grant_detach(&w->g, NULL);
    if (status == DIBS_OK)
        status = dibs_grant_adopt(w->d, text, NULL, &w->g, NULL);
    if (status == DIBS_OK) {
        status = unlock(w->g);
        w->g = NULL;
    }
    return status == DIBS_LOST ? DIBS_CANCELLED : status; /* drained between two of these */
}

static dibs_status work_start(worker *w)
{
    return dibs_start(w->d, &(dibs_request){.op = DIBS_OP_LOCK_INSPECT, .name = w->name}, NULL,
                      NULL);
}

static dibs_status work_cell(worker *w)
{
    return dibs_cell_swap(w->d, w->name, DIBS_ANY_VERSION, "x", 1, NULL, NULL, NULL);
}

static dibs_status work_count(worker *w)
{
    int64_t n;

    return dibs_counter_add(w->d, w->name, 1, NULL, &n, NULL);
}

static dibs_status work_token(worker *w)
{
    char token[DIBS_TOKEN_SIZE];
    dibs_status status = dibs_token_issue(w->d, NULL, token, NULL);

    return status == DIBS_OK ? dibs_token_redeem(w->d, token, NULL, NULL) : status;
}

/* Runs are finished, or freed as they are. */
static dibs_status work_once(worker *w)
{
    char key[80];
    dibs_status status;

    snprintf(key, sizeof key, "%s-%lld", w->name, (long long)w->calls);
    dibs_once_free(w->o);
    status = dibs_once_begin(w->d, key, NULL, &w->o, NULL);
    return status == DIBS_OK && w->calls % 2 ? dibs_once_finish(w->o, "r", 1, 0, NULL) : status;
}

static dibs_status work_keys(worker *w)
{
    dibs_once_report *r = NULL;
    dibs_status status = dibs_once_list(w->d, NULL, NULL, &r, NULL);

    dibs_once_report_free(r);
    return status;
}

/* The machine may be too busy for an answer in time. */
static bool is_slow(dibs_status status)
{
    return status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN;
}

static void *work(void *data)
{
    worker *w = data;

    do {
        w->status = w->call(w);
        w->calls++;
    } while (w->status == DIBS_OK || w->status == DIBS_NOT_FOUND || is_slow(w->status));
    w->unlocked = DIBS_OK;
    if (w->g)
        w->unlocked = unlock(w->g);
    dibs_once_free(w->o);
    return NULL;
}

static const worker kinds[] = {
    {.kind = "lock", .call = work_lock},   {.kind = "renew", .call = work_renew},
    {.kind = "many", .call = work_many},   {.kind = "wait", .call = work_wait},
    {.kind = "look", .call = work_look},   {.kind = "list", .call = work_list},
    {.kind = "break", .call = work_break}, {.kind = "fence_top", .call = work_top},
    {.kind = "start", .call = work_start}, {.kind = "adopt", .call = work_adopt},
    {.kind = "cell", .call = work_cell},   {.kind = "counter", .call = work_count},
    {.kind = "token", .call = work_token}, {.kind = "once", .call = work_once},
    {.kind = "keys", .call = work_keys},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static bool can_work(const worker *w)
{
    if (w->call == work_adopt)
        return !the.can.lease_of_handle;
    return the.can.cells || (w->call != work_cell && w->call != work_count &&
                             w->call != work_token && w->call != work_once && w->call != work_keys);
}

/* Nobody has to know what the other threads are doing: the handle is drained, they come back, it is closed. */
static void calls_may_go_on_beside_a_drain(void **state)
{
    dibs *a = open_handle(), *d = open_handle();
    static worker all[KINDS * EACH];
    const char *own = fresh("drain");
    dibs_grant *held = take(a, "drain-held", NULL);
    dibs_outcome o;

    (void)state;
    for (size_t i = 0; i < KINDS * EACH; i++) {
        all[i] = kinds[i % KINDS];
        all[i].d = can_work(&all[i]) ? d : NULL;
        snprintf(all[i].name, sizeof all[i].name, "%s-%zu", own, i);
        if (all[i].d)
            assert_int_equal(pthread_create(&all[i].thread, NULL, work, &all[i]), 0);
    }
    sleep_ms(200);
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_DRAIN}, NULL, NULL), DIBS_OK);
    for (size_t i = 0; i < KINDS * EACH; i++) {
        if (!all[i].d)
            continue;
        assert_int_equal(pthread_join(all[i].thread, NULL), 0);
        if (all[i].status != DIBS_CANCELLED)
            fail_msg("%s: %s", all[i].kind, dibs_status_name(all[i].status));
        if (all[i].unlocked != DIBS_OK && all[i].unlocked != DIBS_LOST && !is_slow(all[i].unlocked))
            fail_msg("%s: unlock: %s", all[i].kind, dibs_status_name(all[i].unlocked));
    }
    do {
        while (!dibs_take(d, &o))
            sleep_ms(1);
        dibs_lock_report_free(o.lock_report);
    } while (o.op != DIBS_OP_DRAIN);
    close_handle(d);
    for (size_t i = 0; i < KINDS * EACH; i++)
        if (all[i].d && all[i].call != work_adopt) /* what was detached stays for its lease */
            unlock(take(a, all[i].name, NULL));
    unlock(held);
}

/* What was held is said to be lost to the drain. */
static void a_drained_grant_is_lost(void **state)
{
    dibs *a = open_handle(), *d = open_handle();
    const char *name = fresh("drained");
    loss_note note = {0};
    dibs_grant *g = take(d, name, &(dibs_lock_options){.on_lost = note_loss, .data = &note});
    dibs_error err = {0};
    dibs_outcome o;

    (void)state;
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_DRAIN}, NULL, NULL), DIBS_OK);
    while (!dibs_take(d, &o))
        sleep_ms(1);
    assert_int_equal(o.op, DIBS_OP_DRAIN);
    assert_false(dibs_grant_held(g));
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_CLOSED);
    assert_status(try_lock(a, name), DIBS_OK);
    assert_status(dibs_renew(g, &err), DIBS_CANCELLED);
    assert_status(dibs_unlock(&g, &err), DIBS_LOST);
    assert_non_null(strstr(err.message, "drained"));
    assert_int_equal(atomic_load(&note.count), 0);
}

static const struct CMUnitTest tests[] = {
    CASE(closing_ends_every_wait),
    CASE(closing_waits_for_calls_that_ask),
    CASE(calls_may_go_on_beside_a_drain),
    CASE(a_drained_grant_is_lost),
};
CASES(close_cases, tests);
