/* See fixture.h. */
#define _GNU_SOURCE
#include "fixture.h"

#include "core/table.h"
#include "support/clock.h"
#include "support/sink.h"
#include "support/test.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- The sink -------------------------------------------------------------------------------- */

static void on_granted(dibs__sink *sink, const char *attempt, uint64_t fence, uint64_t floor)
{
    fixture *d = (fixture *)sink;

    (void)floor;
    pthread_mutex_lock(&d->mutex);
    snprintf(d->granted, sizeof d->granted, "%s", attempt);
    d->fence = fence;
    pthread_mutex_unlock(&d->mutex);
}

static void on_look(dibs__sink *sink, const char *attempt)
{
    fixture *d = (fixture *)sink;

    pthread_mutex_lock(&d->mutex);
    snprintf(d->looked, sizeof d->looked, "%s", attempt);
    pthread_mutex_unlock(&d->mutex);
}

static void on_changed(dibs__sink *sink, uint64_t cell)
{
    ((fixture *)sink)->changed = cell;
}

static void on_log(dibs__sink *sink, dibs_log_level level, const char *format, ...)
{
    (void)sink;
    (void)level;
    (void)format;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

dibs_status fixture_open(fixture *d, const char *url, const dibs__env *env, dibs_error *err)
{
    dibs__url parsed;
    uint64_t number;
    char id[17];
    dibs_status status = dibs__url_parse(&parsed, url, err);

    memset(d, 0, sizeof *d);
    if (status != DIBS_OK)
        return status;
    d->sink = (dibs__sink){.granted = on_granted,
                           .check = on_look,
                           .changed = on_changed,
                           .check_all = quiet_check_all,
                           .waited_for = quiet_waited_for,
                           .log = on_log};
    d->env = env ? env : &dibs__env_system;
    d->class = dibs__engine_find(parsed.scheme);
    assert_non_null(d->class);
    pthread_mutex_init(&d->mutex, NULL);
    dibs__env_system.random(NULL, &number, sizeof number);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)number);
    status = d->class->open(&(dibs__open_request){.url = &parsed,
                                                  .env = d->env,
                                                  .sink = &d->sink,
                                                  .handle_id = id,
                                                  .request_span = 5 * DIBS__SECOND,
                                                  .until = dibs__after(d->env, 5 * DIBS__SECOND)},
                            &d->engine, err);
    dibs__url_fini(&parsed);
    return status;
}

void fixture_close(fixture *d)
{
    if (d->engine)
        d->class->close(d->engine);
    d->engine = NULL;
}

/* ---- Commands -------------------------------------------------------------------------------- */

dibs_status fixture_try_enter(fixture *d, const char *name, const char *owner, uint32_t capacity,
                              int64_t window, dibs__deadline until, dibs__reply *out,
                              dibs_error *err)
{
    dibs__enter_request r = {.name = name, .window = window};

    snprintf(r.who.owner, sizeof r.who.owner, "%s", owner);
    snprintf(r.who.attempt, sizeof r.who.attempt, "%s", owner);
    snprintf(r.who.host, sizeof r.who.host, "here");
    r.who.pid = getpid();
    r.capacity = capacity ? capacity : DIBS__PLAIN;
    r.who.weight = capacity ? 1 : DIBS__PLAIN;
    r.who.lease = FIXTURE_LEASE;
    r.who.min_hold = d->min_hold;
    r.owner_named = d->owner_named;
    return d->class->enter(d->engine, &r, until, out, err);
}

dibs__reply fixture_enter(fixture *d, const char *name, const char *owner, uint32_t capacity,
                          int64_t window)
{
    dibs__reply reply = {0};
    dibs_error err = {0};

    if (fixture_try_enter(d, name, owner, capacity, window, dibs__after(d->env, 5 * DIBS__SECOND),
                          &reply, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    return reply;
}

dibs__verdict fixture_keep(fixture *d, const char *name, const char *owner, uint64_t fence)
{
    dibs__claim claim = {
        .name = name, .owner = owner, .attempt = owner, .fence = fence, .lease = FIXTURE_LEASE};

    d->class->keep(d->engine, &(dibs__claim *){&claim}, 1, dibs__after(d->env, 5 * DIBS__SECOND));
    assert_int_equal(claim.status, DIBS_OK);
    return claim.reply.verdict;
}

dibs_status fixture_try_release(fixture *d, const char *name, const char *owner, uint64_t fence,
                                dibs__reply *out, dibs_error *err)
{
    dibs__claim claim = {.name = name, .owner = owner, .attempt = owner, .fence = fence};

    return d->class->release(d->engine, &claim, dibs__after(d->env, 5 * DIBS__SECOND), out, err);
}

dibs__verdict fixture_release(fixture *d, const char *name, const char *owner, uint64_t fence)
{
    dibs__reply reply = {0};
    dibs_error err = {0};

    if (fixture_try_release(d, name, owner, fence, &reply, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    return reply.verdict;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static uint64_t fence_of(fixture *d, const char *owner)
{
    uint64_t fence;

    pthread_mutex_lock(&d->mutex);
    fence = strcmp(d->granted, owner) == 0 ? d->fence : 0;
    pthread_mutex_unlock(&d->mutex);
    return fence;
}

static bool run_events(fixture *d, int64_t end)
{
    struct pollfd p = {.fd = d->class->event_fd(d->engine), .events = POLLIN};
    int64_t left = end - clock_ms();

    if (left < 0 || poll(&p, 1, (int)left) <= 0)
        return false;
    d->class->events(d->engine, dibs__after(d->env, 5 * DIBS__SECOND));
    return true;
}

uint64_t fixture_wait(fixture *d, const char *owner, int64_t ms)
{
    int64_t end = clock_ms() + ms;

    while (fence_of(d, owner) == 0 && run_events(d, end))
        ;
    return fence_of(d, owner);
}

bool fixture_wait_look(fixture *d, const char *owner, int64_t ms)
{
    int64_t end = clock_ms() + ms;

    while (strcmp(d->looked, owner) != 0 && run_events(d, end))
        ;
    return strcmp(d->looked, owner) == 0;
}

bool fixture_wait_change(fixture *d, const char *key, int64_t ms)
{
    int64_t end = clock_ms() + ms;

    while (d->changed != dibs__hash(key) && run_events(d, end))
        continue;
    return d->changed == dibs__hash(key);
}
