/* The memory engine: the state machine itself, alive only inside this process.
 *
 * Handles opened with the same URL, `memory:` or `memory:NAME`, share one store, which lives as long
 * as any of them. Waiters are told straight through their handle's sink, under
 * the store's mutex: the core calls no engine with a lock held, so that this order of locks cannot
 * turn around. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/table.h"
#include "engines/engine.h"
#include "engines/memory/cells.h"
#include "engines/memory/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct room room;

typedef struct memory_engine {
    dibs__engine base;
    room *room;
    struct memory_engine *next; /* of the same room */
    char id[DIBS__WAKE_SIZE];
} memory_engine;

/* What handles of one name share; `memory:` has the empty one. */
struct room {
    room *next;
    int users;
    pid_t pid; /* a forked child inherits rooms, and must not enter them */
    pthread_mutex_t mutex;
    dibs__memory *memory;
    dibs__cells *cells;
    memory_engine *engines;
    char name[];
};

/* The only state of the process that outlives a call. */
static pthread_mutex_t rooms_mutex = PTHREAD_MUTEX_INITIALIZER;
static room *rooms;

/* ---- Rooms ----------------------------------------------------------------------------------- */

static room *room_new(const char *name)
{
    room *r = calloc(1, sizeof *r + strlen(name) + 1);

    if (!r)
        return NULL;
    memcpy(r->name, name, strlen(name) + 1);
    r->pid = getpid();
    r->memory = dibs__memory_new();
    r->cells = dibs__cells_new();
    if (!r->memory || !r->cells || pthread_mutex_init(&r->mutex, NULL) != 0) {
        dibs__memory_free(r->memory);
        dibs__cells_free(r->cells);
        free(r);
        return NULL;
    }
    return r;
}

static void lock_rooms(void)
{
    pthread_mutex_lock(&rooms_mutex);
}

static void unlock_rooms(void)
{
    pthread_mutex_unlock(&rooms_mutex);
}

/* Another thread could be among the rooms while the process forks: the child would wait for it. */
static void mind_forks(void)
{
    pthread_atfork(lock_rooms, unlock_rooms, unlock_rooms);
}

static room *room_enter(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    room *r;

    pthread_once(&once, mind_forks);

    pthread_mutex_lock(&rooms_mutex);
    for (r = rooms; r && (r->pid != getpid() || strcmp(r->name, name) != 0);)
        r = r->next;
    if (!r && (r = room_new(name))) {
        r->next = rooms;
        rooms = r;
    }
    if (r)
        r->users++;
    pthread_mutex_unlock(&rooms_mutex);
    return r;
}

static void room_leave(room *r)
{
    pthread_mutex_lock(&rooms_mutex);
    if (--r->users > 0) {
        pthread_mutex_unlock(&rooms_mutex);
        return;
    }
    for (room **at = &rooms; *at; at = &(*at)->next) {
        if (*at == r) {
            *at = r->next;
            break;
        }
    }
    pthread_mutex_unlock(&rooms_mutex);
    pthread_mutex_destroy(&r->mutex);
    dibs__memory_free(r->memory);
    dibs__cells_free(r->cells);
    free(r);
}

/* ---- Wake-ups -------------------------------------------------------------------------------- */

static memory_engine *engine_of(const room *r, const dibs__holder *holder)
{
    for (memory_engine *e = r->engines; e; e = e->next)
        if (strcmp(e->id, holder->who.wake) == 0)
            return e;
    return NULL;
}

static void on_granted(void *data, const dibs__holder *holder, uint64_t floor)
{
    memory_engine *e = engine_of(data, holder);

    if (e)
        e->base.sink->granted(e->base.sink, holder->who.attempt, holder->fence, floor);
}

static void on_breaking(void *data, const dibs__holder *holder)
{
    memory_engine *e = engine_of(data, holder);

    if (e)
        e->base.sink->check(e->base.sink, holder->who.attempt);
}

/* ---- Commands -------------------------------------------------------------------------------- */

static dibs__time time_now(const dibs__engine *e)
{
    return (dibs__time){e->env->boottime(e->env->ctx), e->env->wall(e->env->ctx)};
}

/* With the room's mutex: points a cursor at the lock. */
static dibs_status begin(dibs__engine *e, const char *name, dibs__memory_cursor *cursor,
                         dibs__time *now, dibs_error *err)
{
    room *r = ((memory_engine *)e)->room;

    pthread_mutex_lock(&r->mutex);
    *now = time_now(e);
    if (!dibs__memory_begin(cursor, r->memory, name, now->wall)) {
        pthread_mutex_unlock(&r->mutex);
        return dibs__fail(err, DIBS_NO_MEMORY, "memory: out of memory");
    }
    cursor->granted = on_granted;
    cursor->breaking = on_breaking;
    cursor->data = r;
    return DIBS_OK;
}

static dibs_status end(dibs__engine *e, dibs__memory_cursor *cursor)
{
    dibs__memory_end(cursor);
    pthread_mutex_unlock(&((memory_engine *)e)->room->mutex);
    return DIBS_OK;
}

static dibs_status memory_enter(dibs__engine *e, const dibs__enter_request *request,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__memory_cursor cursor;
    dibs__time now;
    dibs__asker who = request->who;
    dibs_status status = begin(e, request->name, &cursor, &now, err);

    (void)until;
    if (status != DIBS_OK)
        return status;
    memcpy(who.wake, ((memory_engine *)e)->id, sizeof who.wake);
    dibs__state_acquire(&dibs__memory_store, &cursor, now, &who, request->capacity, request->window,
                        out);
    return end(e, &cursor);
}

static dibs_status keep_one(dibs__engine *e, dibs__claim *c)
{
    dibs__memory_cursor cursor;
    dibs__time now;
    dibs_status status = begin(e, c->name, &cursor, &now, NULL);

    if (status != DIBS_OK)
        return status;
    dibs__state_keep(&dibs__memory_store, &cursor, now, c->owner, c->attempt, c->fence, c->lease,
                     &c->reply);
    return end(e, &cursor);
}

static void memory_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                        dibs__deadline until)
{
    (void)until;
    for (size_t i = 0; i < count; i++)
        claims[i]->status = keep_one(e, claims[i]);
}

static dibs_status memory_release(dibs__engine *e, const dibs__claim *c, dibs__deadline until,
                                  dibs__reply *out, dibs_error *err)
{
    dibs__memory_cursor cursor;
    dibs__time now;
    dibs_status status = begin(e, c->name, &cursor, &now, err);

    (void)until;
    if (status != DIBS_OK)
        return status;
    dibs__state_release(&dibs__memory_store, &cursor, now, c->owner, c->attempt, c->fence, out);
    return end(e, &cursor);
}

static dibs_status memory_cancel(dibs__engine *e, const dibs__claim *c, dibs__deadline until,
                                 dibs_error *err)
{
    dibs__memory_cursor cursor;
    dibs__time now;
    dibs__reply reply;
    dibs_status status = begin(e, c->name, &cursor, &now, err);

    (void)until;
    if (status != DIBS_OK)
        return status;
    dibs__state_cancel(&dibs__memory_store, &cursor, now, c->owner, c->attempt, &reply);
    return end(e, &cursor);
}

static dibs_status memory_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__memory_cursor cursor;
    dibs__time now;
    dibs_status status = begin(e, name, &cursor, &now, err);

    (void)until;
    if (status != DIBS_OK)
        return status;
    dibs__state_break(&dibs__memory_store, &cursor, now, by, at_once, out);
    return end(e, &cursor);
}

/* ---- Looking --------------------------------------------------------------------------------- */

static dibs_status memory_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                  dibs__report_builder *out, dibs_error *err)
{
    dibs__memory_cursor cursor;
    dibs__time now;
    dibs__reply reply;
    dibs_status status = begin(e, name, &cursor, &now, err);

    (void)until;
    if (status != DIBS_OK)
        return status;
    dibs__state_settle(&dibs__memory_store, &cursor, now, &reply);
    dibs__memory_report(((memory_engine *)e)->room->memory, name, now, out);
    return end(e, &cursor);
}

static dibs_status memory_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err)
{
    room *r = ((memory_engine *)e)->room;

    (void)until;
    (void)err;
    pthread_mutex_lock(&r->mutex);
    dibs__memory_report_all(r->memory, prefix, idle, time_now(e), out);
    pthread_mutex_unlock(&r->mutex);
    return DIBS_OK;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static dibs_status memory_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                               bool notify, dibs__deadline until, dibs__cell_reply *out,
                               dibs_error *err)
{
    room *r = ((memory_engine *)e)->room;
    dibs__cell_answer answer;
    dibs__time now;
    bool done;

    (void)until;
    pthread_mutex_lock(&r->mutex);
    now = time_now(e);
    done = dibs__cells_run(r->cells, key, now, command, &answer) == 0 &&
           dibs__cell_reply_of(command, &answer, now, out);
    for (memory_engine *m = notify ? r->engines : NULL; m; m = m->next)
        m->base.sink->changed(m->base.sink, dibs__hash(key));
    pthread_mutex_unlock(&r->mutex);
    return done ? DIBS_OK : dibs__fail(err, DIBS_NO_MEMORY, "memory: out of memory");
}

/* Every change is told to all handles: there is nothing to remember. */
static dibs_status memory_watch(dibs__engine *e, const char *key, uint64_t version,
                                dibs__deadline until, void **out, dibs_error *err)
{
    room *r = ((memory_engine *)e)->room;
    bool same;

    (void)until;
    (void)err;
    *out = NULL;
    pthread_mutex_lock(&r->mutex);
    same = dibs__cells_version(r->cells, key, time_now(e)) == version;
    pthread_mutex_unlock(&r->mutex);
    if (!same)
        e->sink->changed(e->sink, dibs__hash(key));
    return DIBS_OK;
}

static dibs_status memory_cell_list(dibs__engine *e, const dibs__cell_range *range,
                                    dibs__deadline until, dibs__cell_page *out, dibs_error *err)
{
    room *r = ((memory_engine *)e)->room;

    (void)until;
    (void)err;
    pthread_mutex_lock(&r->mutex);
    dibs__cells_list(r->cells, range, time_now(e), out);
    pthread_mutex_unlock(&r->mutex);
    return DIBS_OK;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static dibs_status memory_open(const dibs__open_request *request, dibs__engine **out,
                               dibs_error *err)
{
    const dibs__url *url = request->url;
    memory_engine *e;
    dibs_status status = dibs__url_all_taken(url, "", err);

    if (status != DIBS_OK)
        return status;
    if (url->authority)
        return dibs__fail(err, DIBS_INVALID, "memory: has no host: write memory: or memory:NAME");
    e = calloc(1, sizeof *e);
    if (!e || !(e->room = room_enter(url->path))) {
        free(e);
        return dibs__fail(err, DIBS_NO_MEMORY, "memory: out of memory");
    }
    strncpy(e->id, request->handle_id, sizeof e->id - 1);
    pthread_mutex_lock(&e->room->mutex);
    e->base.sink = request->sink;
    e->base.env = request->env;
    e->next = e->room->engines;
    e->room->engines = e;
    pthread_mutex_unlock(&e->room->mutex);
    *out = &e->base;
    return DIBS_OK;
}

static void memory_close(dibs__engine *base)
{
    memory_engine *e = (memory_engine *)base;

    pthread_mutex_lock(&e->room->mutex);
    for (memory_engine **at = &e->room->engines; *at; at = &(*at)->next) {
        if (*at == e) {
            *at = e->next;
            break;
        }
    }
    pthread_mutex_unlock(&e->room->mutex);
    room_leave(e->room);
    free(e);
}

/* The parent's mutexes may be held in the child for ever: nothing to do but forget. */
static void memory_abandon(dibs__engine *e)
{
    (void)e;
}

static int memory_event_fd(dibs__engine *e)
{
    (void)e;
    return -1;
}

extern const dibs__engine_class dibs__engine_memory;
const dibs__engine_class dibs__engine_memory = {
    .scheme = "memory",
    .schemes = (const char *const[]){"memory", NULL},
    .can = {.first_come = true,
            .names_holder = true,
            .notifies_holders = true,
            .never_waits = true,
            .cells = true,
            .value_max = DIBS_VALUE_MAX},
    .open = memory_open,
    .close = memory_close,
    .abandon = memory_abandon,
    .enter = memory_enter,
    .keep = memory_keep,
    .release = memory_release,
    .cancel = memory_cancel,
    .break_lock = memory_break,
    .inspect = memory_inspect,
    .list = memory_list,
    .cell = memory_cell,
    .watch = memory_watch,
    .cell_list = memory_cell_list,
    .event_fd = memory_event_fd,
};
