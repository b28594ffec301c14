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
    dibs_once *told; /* another's run */
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
    return dibs_once_wait(c->told, DIBS_FOREVER, &c->err);
}

static dibs_status break_it(caller *c)
{
    return dibs_lock_break(c->d, c->name, &(dibs_break_options){.by = "operator"}, &c->err);
}

static void closing_ends_every_wait(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("close");
    caller all[] = {{.call = lock},  {.call = lock}, {.call = lock_many}, {.call = begin},
                    {.call = begin}, {.call = wait}, {.call = break_it}};
    size_t count = sizeof all / sizeof all[0];
    dibs_once *mine = NULL, *told = NULL;

    (void)state;
    take(a, name, &(dibs_lock_options){.no_renew = true});
    if (the.can.cells) {
        assert_status(dibs_once_begin(a, name, NULL, &mine, NULL), DIBS_OK);
        assert_status(
            dibs_once_begin(b, name, &(dibs_once_options){.wait_ms = DIBS_NO_WAIT}, &told, NULL),
            DIBS_RUNNING);
    }
    for (size_t i = 0; i < count; i++) {
        all[i].d = b;
        all[i].told = told;
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
                              bool tell, dibs__deadline until, dibs__cell_reply *out,
                              dibs_error *err)
{
    dibs_status status = real->cell(e, key, command, tell, until, out, err);

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
    dibs_report *r = NULL;
    dibs_status status = dibs_lock_inspect(c->d, c->name, &r, &c->err);

    dibs_report_free(r);
    return status;
}

static dibs_status list(caller *c)
{
    dibs_report *r = NULL;
    dibs_status status = dibs_lock_list(c->d, c->name, NULL, &r, &c->err);

    dibs_report_free(r);
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

static const struct CMUnitTest tests[] = {
    CASE(closing_ends_every_wait),
    CASE(closing_waits_for_calls_that_ask),
};
CASES(close_cases, tests);
