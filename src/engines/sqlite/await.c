/* Watching cells.
 *
 * There is no list in the store of who waits for a cell. Every commit of any process writes to the database's log,
 * so that file is watched while somebody waits, and who reads the events looks at the versions. While others keep writing about
 * other things it looks less and less often: after a look the log counts again when a pause is over, which grows. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/table.h"
#include "engines/sqlite/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define FIRST_PAUSE (2 * DIBS__MS)
#define MAX_PAUSE   (100 * DIBS__MS)
#define LOOK_SPAN   (100 * DIBS__MS) /* who looks has other things to do */
#define TOGETHER    64

struct dibs__lite_watch {
    struct dibs__lite_watch *next;
    uint64_t version;
    bool over; /* its change was told */
    char key[];
};

typedef struct dibs__lite_watch watch;

/* ---- With the mutex -------------------------------------------------------------------------- */

/* The next commit, or one that has been missed meanwhile, is an event: once. */
static void mind_log(dibs__lite *e, int how)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = e->log};

    epoll_ctl(e->epoll, how, e->log, &event);
}

static void set_timer(dibs__lite *e, int64_t span)
{
    struct itimerspec at = {
        .it_value = {span / DIBS__SECOND, span % DIBS__SECOND * 1000 + (span > 0)}};

    timerfd_settime(e->log_timer, 0, &at, NULL);
}

/* Without the log, the pause is all there is. */
static void begin(dibs__lite *e)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = e->log_timer};
    char log[PATH_MAX + 8];

    snprintf(log, sizeof log, "%s-wal", e->path);
    if (e->log_timer < 0) {
        e->log_timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
        event.data.fd = e->log_timer;
        if (e->log_timer >= 0)
            epoll_ctl(e->epoll, EPOLL_CTL_ADD, e->log_timer, &event);
    }
    e->log = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (e->log >= 0 && inotify_add_watch(e->log, log, IN_MODIFY) < 0) {
        close(e->log);
        e->log = -1;
    }
    if (e->log >= 0)
        mind_log(e, EPOLL_CTL_ADD);
}

static void finish(dibs__lite *e)
{
    if (e->log >= 0)
        close(e->log); /* and it has left the epoll set */
    e->log = -1;
    set_timer(e, 0);
}

static void come(dibs__lite *e, watch *w)
{
    if (!e->watched)
        begin(e);
    else if (e->log >= 0)
        mind_log(e, EPOLL_CTL_MOD);
    w->next = e->watched;
    e->watched = w;
    e->log_pause = FIRST_PAUSE;
    if (e->log < 0)
        set_timer(e, e->log_pause);
}

static void go(dibs__lite *e, const watch *w)
{
    watch **at = &e->watched;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    if (!e->watched)
        finish(e);
}

/* ---- Looking --------------------------------------------------------------------------------- */

static dibs_status look(dibs__lite *e, const watch *w, dibs__deadline until, bool *changed,
                        dibs_error *err)
{
    dibs__lite_job job = {.kind = DIBS__LITE_PEEK, .name = w->key, .until = until, .err = err};
    dibs_status status = dibs__lite_do(e, &job);

    *changed = status == DIBS_OK && (job.cell.version != w->version || job.cell.age == INT64_MAX);
    return status;
}

/* With the mutex. How many have changed. */
static size_t look_at_all(dibs__lite *e, dibs__deadline until, uint64_t changed[TOGETHER])
{
    size_t count = 0;

    until = dibs__sooner(until, dibs__after(e->base.env, LOOK_SPAN));
    for (watch *w = e->watched; w && count < TOGETHER; w = w->next) {
        if (!w->over && look(e, w, until, &w->over, NULL) == DIBS_OK && w->over)
            changed[count++] = dibs__hash(w->key);
    }
    return count;
}

static void drain(int fd)
{
    char buffer[4096] __attribute__((aligned(__alignof__(struct inotify_event))));

    while (read(fd, buffer, sizeof buffer) > 0)
        continue;
}

bool dibs__lite_await_events(dibs__lite *e, int fd, dibs__deadline until)
{
    uint64_t changed[TOGETHER];
    size_t count = 0;
    bool ours;

    pthread_mutex_lock(&e->watch_mutex);
    ours = fd == e->log || fd == e->log_timer;
    if (ours)
        drain(fd);
    if (ours && fd == e->log_timer && e->log >= 0) {
        mind_log(e, EPOLL_CTL_MOD);
    } else if (ours && e->watched) {
        count = look_at_all(e, until, changed);
        set_timer(e, e->log_pause);
        e->log_pause = dibs__longer(e->log_pause, FIRST_PAUSE, MAX_PAUSE);
    }
    pthread_mutex_unlock(&e->watch_mutex);
    for (size_t i = 0; i < count; i++)
        e->base.sink->changed(e->base.sink, changed[i]);
    return ours;
}

/* ---- The slots ------------------------------------------------------------------------------- */

dibs_status dibs__lite_watch(dibs__engine *base, const char *key, uint64_t version,
                             dibs__deadline until, void **out, dibs_error *err)
{
    dibs__lite *e = (dibs__lite *)base;
    size_t size = strlen(key) + 1;
    watch *w = calloc(1, sizeof *w + size);
    bool changed;
    dibs_status status;

    *out = NULL;
    if (!w)
        return dibs__fail(err, DIBS_NO_MEMORY, "sqlite: out of memory");
    memcpy(w->key, key, size);
    w->version = version;
    pthread_mutex_lock(&e->watch_mutex);
    come(e, w);
    pthread_mutex_unlock(&e->watch_mutex);
    status = look(e, w, until, &changed, err);
    if (status != DIBS_OK) {
        dibs__lite_unwatch(base, w);
        return status;
    }
    *out = w;
    if (changed)
        base->sink->changed(base->sink, dibs__hash(key));
    return DIBS_OK;
}

void dibs__lite_unwatch(dibs__engine *base, void *watched)
{
    dibs__lite *e = (dibs__lite *)base;

    pthread_mutex_lock(&e->watch_mutex);
    go(e, watched);
    pthread_mutex_unlock(&e->watch_mutex);
    free(watched);
}
