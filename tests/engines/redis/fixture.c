#include "fixture.h"

#include "core/report.h"
#include "support/sink.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- The sink -------------------------------------------------------------------------------- */

static void note(fixture *g, const char *attempt, uint64_t fence, int *count)
{
    pthread_mutex_lock(&g->lock);
    snprintf(g->attempt, sizeof g->attempt, "%s", attempt);
    g->fence = fence;
    (*count)++;
    pthread_mutex_unlock(&g->lock);
}

static void note_granted(dibs__sink *sink, const char *attempt, uint64_t fence, uint64_t floor)
{
    (void)floor;
    note((fixture *)sink, attempt, fence, &((fixture *)sink)->granted);
}

static void note_look(dibs__sink *sink, const char *attempt)
{
    note((fixture *)sink, attempt, 0, &((fixture *)sink)->looks);
}

static void note_check_all(dibs__sink *sink, unsigned at)
{
    fixture *g = (fixture *)sink;

    (void)at;
    pthread_mutex_lock(&g->lock);
    g->looks_again++;
    pthread_mutex_unlock(&g->lock);
}

static void note_log(dibs__sink *sink, dibs_log_level level, const char *format, ...)
{
    fixture *g = (fixture *)sink;

    (void)format;
    pthread_mutex_lock(&g->lock);
    g->warnings += level == DIBS_LOG_WARNING;
    pthread_mutex_unlock(&g->lock);
}

/* ---- Life ------------------------------------------------------------------------------------ */

dibs_status fixture_open(fixture *g, const char *url, const char *handle_id, int64_t span_ms,
                         dibs_error *err)
{
    dibs__url parts;
    const dibs__engine_class *class;
    dibs_status status;

    memset(g, 0, sizeof *g);
    g->sink = (dibs__sink){.granted = note_granted,
                           .check = note_look,
                           .changed = quiet_changed,
                           .check_all = note_check_all,
                           .waited_for = quiet_waited_for,
                           .log = note_log};
    g->span = span_ms;
    pthread_mutex_init(&g->lock, NULL);
    snprintf(g->handle_id, sizeof g->handle_id, "%s", handle_id);
    status = dibs__url_parse(&parts, url, err);
    if (status == DIBS_OK) {
        dibs__open_request request = {.url = &parts,
                                      .env = &dibs__env_system,
                                      .sink = &g->sink,
                                      .handle_id = g->handle_id,
                                      .request_span = span_ms * DIBS__MS,
                                      .until = fixture_until(g)};
        class = dibs__engine_find(parts.scheme);
        status = class->open(&request, &g->engine, err);
        if (status == DIBS_OK)
            g->engine->class = class;
    }
    dibs__url_fini(&parts);
    return status;
}

void fixture_close(fixture *g)
{
    if (g->engine)
        g->engine->class->close(g->engine);
    g->engine = NULL;
    pthread_mutex_destroy(&g->lock);
}

dibs__deadline fixture_until(const fixture *g)
{
    return dibs__after(&dibs__env_system, g->span * DIBS__MS);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static void name_attempt(const fixture *g, int attempt, char out[DIBS__ATTEMPT_SIZE])
{
    snprintf(out, DIBS__ATTEMPT_SIZE, "%s-%d", g->handle_id, attempt);
}

dibs_status fixture_enter(fixture *g, const char *name, const char *owner, int attempt,
                          int64_t window_ms, dibs__reply *out, dibs_error *err)
{
    dibs__enter_request r = {.name = name, .capacity = DIBS__PLAIN};

    snprintf(r.who.owner, sizeof r.who.owner, "%s", owner);
    name_attempt(g, attempt, r.who.attempt);
    strcpy(r.who.host, "a host");
    r.who.pid = 42;
    r.who.weight = DIBS__PLAIN;
    r.who.lease = 10 * DIBS__SECOND;
    r.window = window_ms * DIBS__MS;
    return g->engine->class->enter(g->engine, &r, fixture_until(g), out, err);
}

/* `text` must live as long as the claim. */
fixture *fixture_events(fixture *g)
{
    struct pollfd p = {g->engine->class->event_fd(g->engine), POLLIN, 0};

    if (poll(&p, 1, 0) == 1)
        g->engine->class->events(g->engine, fixture_until(g));
    return g;
}

static dibs__claim claim_of(const fixture *g, const char *name, const char *owner, int attempt,
                            char text[DIBS__ATTEMPT_SIZE])
{
    name_attempt(g, attempt, text);
    return (dibs__claim){.name = name, .owner = owner, .attempt = text, .lease = 10 * DIBS__SECOND};
}

dibs_status fixture_release(fixture *g, const char *name, const char *owner, int attempt,
                            dibs__reply *out, dibs_error *err)
{
    char text[DIBS__ATTEMPT_SIZE];
    dibs__claim claim = claim_of(g, name, owner, attempt, text);

    return g->engine->class->release(g->engine, &claim, fixture_until(g), out, err);
}

dibs_status fixture_cancel(fixture *g, const char *name, const char *owner, int attempt,
                           dibs_error *err)
{
    char text[DIBS__ATTEMPT_SIZE];
    dibs__claim claim = claim_of(g, name, owner, attempt, text);

    return g->engine->class->cancel(g->engine, &claim, fixture_until(g), err);
}

dibs_status fixture_keep(fixture *g, const char *name, const char *owner, int attempt,
                         uint64_t fence, dibs__reply *out)
{
    char text[DIBS__ATTEMPT_SIZE];
    dibs__claim claim = claim_of(g, name, owner, attempt, text), *claims[1] = {&claim};

    claim.fence = fence;
    g->engine->class->keep(g->engine, claims, 1, fixture_until(g));
    *out = claim.reply;
    return claim.status;
}

bool fixture_look(fixture *g, const char *name, size_t *holders, size_t *waiters, uint64_t *fence)
{
    dibs__report_builder *b = dibs__report_new();
    dibs_lock_report *report = NULL;
    bool found = false;

    if (g->engine->class->inspect(g->engine, name, fixture_until(g), b, NULL) != DIBS_OK) {
        dibs__report_drop(b);
    } else if (dibs__report_finish(b, 0, &report, NULL) == DIBS_OK) {
        found = dibs_lock_report_count(report) == 1;
        if (found) {
            const dibs_lock_info *info = dibs_lock_report_at(report, 0);
            *holders = info->holder_count;
            *waiters = info->waiter_count;
            *fence = info->holder_count ? info->holders[0]->fence : 0;
        }
        dibs_lock_report_free(report);
    }
    return found;
}
