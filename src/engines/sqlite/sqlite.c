/* The SQLite engine: the embedded store, across the processes of one machine.
 *
 * Opening finds the place, the database, the gate and this client's files; what the dead of former
 * times left is cleared up on the way. Each slot of the engine's table is one job for the dispatcher. */
#define _GNU_SOURCE
#include "engines/sqlite/sqlite.h"
#include "core/error.h"
#include "engines/capabilities.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP_AT_ONCE 128 /* claims in one transaction: others want to get in between */

static dibs__lite *from(dibs__engine *e)
{
    return (dibs__lite *)e;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static dibs__lite *new_engine(const dibs__open_request *request)
{
    dibs__lite *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->base.class = &dibs__engine_sqlite;
    e->base.env = request->env;
    e->base.sink = request->sink;
    e->request_span = request->request_span;
    e->last = &e->first;
    e->folder = e->life = e->wake = e->epoll = -1;
    e->inotify = e->log = e->log_timer = -1;
    for (int i = 0; i < DIBS__LITE_PEERS; i++)
        e->peers[i].pidfd = e->peers[i].life = e->peers[i].wake = -1;
    if (pthread_mutex_init(&e->mutex, NULL) != 0) {
        free(e);
        return NULL;
    }
    if (pthread_mutex_init(&e->peers_mutex, NULL) != 0) {
        pthread_mutex_destroy(&e->mutex);
        free(e);
        return NULL;
    }
    pthread_mutex_init(&e->watch_mutex, NULL);
    return e;
}

/* A forked child has it no longer among its handles then. */
void dibs__lite_drop(dibs__lite *e)
{
    dibs__lite_inside();
    for (int i = 0; i < DIBS__LITE_STATEMENTS; i++) {
        sqlite3_finalize(e->sql[i]);
        e->sql[i] = NULL;
    }
    sqlite3_close(e->db);
    e->db = NULL;
    dibs__lite_outside();
}

/* Accepts what a failed open left. */
static void sqlite_close(dibs__engine *base)
{
    dibs__lite *e = from(base);

    dibs__lite_drop(e);
    dibs__lite_life_close(e);
    dibs__lite_delist(e);
    dibs__lite_wake_close(e);
    dibs__lite_gate_close(e);
    if (e->folder >= 0)
        close(e->folder);
    pthread_mutex_destroy(&e->watch_mutex);
    pthread_mutex_destroy(&e->peers_mutex);
    pthread_mutex_destroy(&e->mutex);
    free(e->notices);
    free(e);
}

/* The child has no locks that closing could drop, and no gate. */
static void sqlite_abandon(dibs__engine *base)
{
    dibs__lite *e = from(base);

    dibs__lite_shed_one(e);
    dibs__lite_wake_close(e);
    if (e->life >= 0)
        close(e->life);
    if (e->folder >= 0)
        close(e->folder);
    e->life = e->folder = -1;
}

static dibs_status open_database(dibs__lite *e, const dibs__open_request *request, dibs_error *err)
{
    dibs_status status = dibs__lite_shed(err);

    dibs__lite_enlist(e);
    dibs__lite_inside();
    if (status == DIBS_OK)
        status = dibs__lite_connect(e, request->until, err);
    if (status == DIBS_OK)
        status = dibs__lite_location_beside(e, err);
    if (status == DIBS_OK)
        status = dibs__lite_schema_open(e, request->until, err);
    dibs__lite_outside();
    return status;
}

static dibs_status open_parts(dibs__lite *e, const dibs__open_request *request, dibs_error *err)
{
    dibs_status status = dibs__lite_location(request->url, e->path, sizeof e->path, err);

    if (status == DIBS_OK)
        status = dibs__lite_location_make(request->url, e->path, err);
    if (status == DIBS_OK)
        status = dibs__lite_location_resolve(e->path, sizeof e->path, err);
    if (status == DIBS_OK)
        status = dibs__lite_location_check(e->path, err);
    if (status == DIBS_OK)
        status = open_database(e, request, err);
    if (status != DIBS_OK)
        return status;
    dibs__lite_gate_open(e, request->until);
    status = dibs__lite_life_open(e, request->handle_id, err);
    if (status == DIBS_OK)
        status = dibs__lite_wake_open(e, err);
    return status == DIBS_OK ? dibs__lite_sweep(e, request->until, err) : status;
}

static dibs_status sqlite_open(const dibs__open_request *request, dibs__engine **out,
                               dibs_error *err)
{
    dibs__lite *e = new_engine(request);
    dibs_status status;

    if (!e)
        return dibs__fail(err, DIBS_NO_MEMORY, "sqlite: out of memory");
    status = open_parts(e, request, err);
    if (status == DIBS_OK)
        *out = &e->base;
    else
        sqlite_close(&e->base);
    return status;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

/* Somebody may have died between our look and the first watch. */
static void watch(dibs__lite *e, const char *name, dibs__deadline until)
{
    dibs__lite_job job = {.kind = DIBS__LITE_SETTLE, .name = name, .until = until};

    if (dibs__lite_wake_watch(e))
        dibs__lite_do(e, &job);
}

static dibs_status sqlite_enter(dibs__engine *base, const dibs__enter_request *request,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__lite *e = from(base);
    dibs__asker who = request->who;
    dibs__lite_job job = {
        .kind = DIBS__LITE_ENTER,
        .name = request->name,
        .who = &who,
        .capacity = request->capacity,
        .window = request->window,
        .until = until,
        .err = err,
    };

    dibs__lite_mark(e, request->owner_named, who.wake);
    if (dibs__lite_do(e, &job) != DIBS_OK)
        return job.status;
    *out = job.reply;
    if (out->verdict == DIBS__QUEUED)
        watch(e, request->name, until);
    return DIBS_OK;
}

static void sqlite_keep(dibs__engine *base, dibs__claim *const claims[], size_t count,
                        dibs__deadline until)
{
    for (size_t i = 0; i < count; i += KEEP_AT_ONCE) {
        dibs__lite_job job = {
            .kind = DIBS__LITE_KEEP,
            .claims = claims + i,
            .count = count - i < KEEP_AT_ONCE ? count - i : KEEP_AT_ONCE,
            .until = until,
        };
        dibs__lite_do(from(base), &job);
    }
}

static dibs_status give_back(dibs__engine *base, dibs__lite_kind kind, const dibs__claim *claim,
                             dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__lite_job job = {.kind = kind, .claim = claim, .until = until, .err = err};

    if (dibs__lite_do(from(base), &job) == DIBS_OK)
        *out = job.reply;
    return job.status;
}

static dibs_status sqlite_release(dibs__engine *base, const dibs__claim *claim,
                                  dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    return give_back(base, DIBS__LITE_RELEASE, claim, until, out, err);
}

static dibs_status sqlite_cancel(dibs__engine *base, const dibs__claim *claim, dibs__deadline until,
                                 dibs_error *err)
{
    dibs__reply reply;

    return give_back(base, DIBS__LITE_CANCEL, claim, until, &reply, err);
}

static dibs_status sqlite_break(dibs__engine *base, const char *name, const char *by, bool at_once,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__lite_job job = {.kind = DIBS__LITE_BREAK,
                          .name = name,
                          .by = by,
                          .at_once = at_once,
                          .until = until,
                          .err = err};

    if (dibs__lite_do(from(base), &job) == DIBS_OK)
        *out = job.reply;
    return job.status;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static dibs_status sqlite_cell(dibs__engine *base, const char *key,
                               const dibs__cell_command *command, bool notify, dibs__deadline until,
                               dibs__cell_reply *out, dibs_error *err)
{
    dibs__lite_job job = {
        .kind = DIBS__LITE_CELL, .name = key, .command = command, .until = until, .err = err};

    (void)notify; /* whoever waits for a cell watches the log */
    if (command->fence > INT64_MAX || command->floor > INT64_MAX)
        return dibs__fail(err, DIBS_INVALID, "sqlite: a fence has at most 63 bits");
    if (dibs__lite_do(from(base), &job) == DIBS_OK)
        *out = job.cell;
    return job.status;
}

static dibs_status sqlite_cell_list(dibs__engine *base, const dibs__cell_range *range,
                                    dibs__deadline until, dibs__cell_page *out, dibs_error *err)
{
    return dibs__lite_cell_list(from(base), range, until, out, err);
}

/* ---- The rest -------------------------------------------------------------------------------- */

static dibs_status sqlite_inspect(dibs__engine *base, const char *name, dibs__deadline until,
                                  dibs__report_builder *out, dibs_error *err)
{
    return dibs__lite_inspect(from(base), name, until, out, err);
}

static dibs_status sqlite_list(dibs__engine *base, const char *prefix, bool idle,
                               dibs__deadline until, dibs__report_builder *out, dibs_error *err)
{
    return dibs__lite_list(from(base), prefix, idle, until, out, err);
}

static int sqlite_event_fd(dibs__engine *base)
{
    return from(base)->epoll;
}

static void sqlite_events(dibs__engine *base, dibs__deadline until)
{
    dibs__lite_wake_events(from(base), until);
}

static dibs_status sqlite_stand_in(dibs__engine *base)
{
    return dibs__lite_life_stand_in(from(base));
}

static const char *const schemes[] = {"sqlite", NULL};

const dibs__engine_class dibs__engine_sqlite = {
    .scheme = "sqlite",
    .schemes = schemes,
    .can = DIBS__SQLITE_CAN,
    .open = sqlite_open,
    .close = sqlite_close,
    .abandon = sqlite_abandon,
    .enter = sqlite_enter,
    .keep = sqlite_keep,
    .release = sqlite_release,
    .cancel = sqlite_cancel,
    .break_lock = sqlite_break,
    .inspect = sqlite_inspect,
    .list = sqlite_list,
    .cell = sqlite_cell,
    .watch = dibs__lite_watch,
    .unwatch = dibs__lite_unwatch,
    .cell_list = sqlite_cell_list,
    .event_fd = sqlite_event_fd,
    .events = sqlite_events,
    .stand_in = sqlite_stand_in,
    .examine = dibs__lite_examine,
};
