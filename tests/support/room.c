#define _GNU_SOURCE
#include "support/room.h"

#include "core/error.h"
#include "core/thread.h"
#include "support/alloc.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LOOKS_MAX 2000000 /* at the clock: what looks oftener turns in a circle */
#define SHOWN     8       /* names of an exchange in the log; of more, the number */

room_state room;

static int looks;
static long live; /* allocations, before the handle was opened */

const dibs__reply granted = {
    .verdict = DIBS__GRANTED, .fence = 7, .floor = 6, .remaining = REMAINS};
const dibs__reply in_queue = {.verdict = DIBS__QUEUED};
const dibs__reply released = {.verdict = DIBS__RELEASED};

/* ---- The log --------------------------------------------------------------------------------- */

static void put(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void put(const char *format, ...)
{
    size_t n = strlen(room.log);
    va_list args;

    va_start(args, format);
    vsnprintf(room.log + n, sizeof room.log - n, format, args);
    va_end(args);
}

static void put_time(dibs__deadline at)
{
    int64_t us = at - room.began;

    put(us % DIBS__MS ? "%lld.%03lld" : "%lld", (long long)(us / DIBS__MS),
        (long long)(us % DIBS__MS));
}

void room_note(const char *what)
{
    if (room.log[0])
        put("; ");
    put_time(now());
    put(" %s", what);
}

static void put_exchange(const char *what, dibs__claim *const claims[], size_t count,
                         dibs__deadline until)
{
    room.until = until;
    room_note(what);
    if (count > SHOWN)
        put(" %zu", count);
    for (size_t i = 0; count <= SHOWN && i < count; i++)
        put(" %s", claims[i]->name);
    if (room.untils) {
        put(" <");
        put_time(until);
    }
}

void room_forget_answers(void)
{
    room.count = room.calls = 0;
}

void room_begin(void)
{
    room.log[0] = '\0';
    room.began = now();
    room.steps = room.steps_done = 0;
    if (room.calls >= room.count)
        room_forget_answers();
}

/* ---- The engine ------------------------------------------------------------------------------ */

void will_answer(dibs_status status, dibs__reply reply, int64_t takes)
{
    assert_true(room.count < (int)(sizeof room.next / sizeof room.next[0]));
    room.next[room.count++] = (answer){status, reply, takes};
}

/* NULL: as usual. */
static const answer *next_answer(void)
{
    void (*inside)(void) = room.inside;
    const answer *a = room.calls < room.count ? &room.next[room.calls] : NULL;

    assert_false(room.locked);
    if (!a && !room.generous)
        fail_msg("nobody expected this exchange: %s", room.log);
    room.calls++;
    room.inside = NULL;
    if (inside)
        inside();
    pass(a ? a->takes : 0);
    return a;
}

static dibs_status say(const dibs__reply *usual, dibs__reply *out, dibs_error *err)
{
    const answer *a = next_answer();

    *out = a ? a->reply : *usual;
    return a && a->status != DIBS_OK ? dibs__fail(err, a->status, "as it was told") : DIBS_OK;
}

static void note_claim(const dibs__claim *claim)
{
    room.claim = *claim;
    snprintf(room.attempt, sizeof room.attempt, "%s", claim->attempt);
}

static dibs_status enter(dibs__engine *e, const dibs__enter_request *request, dibs__deadline until,
                         dibs__reply *out, dibs_error *err)
{
    dibs__claim claim = {.name = request->name};

    (void)e;
    room.entered = *request;
    put_exchange("enter", &(dibs__claim *){&claim}, 1, until);
    return say(&granted, out, err);
}

static void answer_claim(dibs__claim *claim, const answer *a)
{
    if (a && a->status == DIBS_UNKNOWN)
        return; /* as it was */
    claim->status = a ? a->status : DIBS_OK;
    claim->reply = a ? a->reply : claim->fence ? granted : in_queue;
}

/* One answer for all. */
static void keep(dibs__engine *e, dibs__claim *const claims[], size_t count, dibs__deadline until)
{
    const answer *a;

    (void)e;
    for (size_t i = 0; i < count; i++) {
        assert_true(i == 0 || strcmp(claims[i - 1]->name, claims[i]->name) <= 0);
        note_claim(claims[i]);
    }
    put_exchange("keep", claims, count, until);
    a = next_answer();
    for (size_t i = 0; i < count; i++)
        answer_claim(claims[i], a);
}

static dibs_status release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                           dibs__reply *out, dibs_error *err)
{
    dibs__claim copy = *claim;

    (void)e;
    note_claim(claim);
    put_exchange("release", &(dibs__claim *){&copy}, 1, until);
    return say(&released, out, err);
}

static dibs_status cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                          dibs_error *err)
{
    dibs__claim copy = *claim;
    dibs__reply reply;

    (void)e;
    note_claim(claim);
    put_exchange("cancel", &(dibs__claim *){&copy}, 1, until);
    return say(&released, &reply, err);
}

static int event_fd(dibs__engine *e)
{
    assert_non_null(e);
    return room.event_fd;
}

static void events(dibs__engine *e, dibs__deadline until)
{
    void (*event)(void) = room.event;
    uint64_t ignored;

    (void)e;
    assert_false(room.locked);
    put_exchange("events", NULL, 0, until);
    eventfd_read(room.event_fd, &ignored);
    room.event = NULL;
    if (event)
        event();
}

void room_event(void (*event)(void))
{
    room.event = event;
    eventfd_write(room.event_fd, 1);
}

/* ---- Set up ---------------------------------------------------------------------------------- */

static int64_t look(void *sim)
{
    if (++looks > LOOKS_MAX)
        fail_msg("it turns in a circle: %s", room.log);
    return ((sim_env *)sim)->boottime;
}

static void sleep_for(void *sim, int64_t span)
{
    room.slept += span;
    sim_env_pass(sim, span);
}

static void note_line(void *unused, dibs_log_level level, const char *line)
{
    (void)unused;
    room.logged++;
    room.level = level;
    snprintf(room.line, sizeof room.line, "%s", line);
    if (room.heard)
        room.heard();
    room.heard = NULL;
}

int room_set_up(void **state)
{
    static char out[BUFSIZ];

    (void)state;
    setvbuf(stdout, out, _IOLBF, sizeof out); /* no allocation in the middle of a case */
    memset(&room, 0, sizeof room);
    looks = 0;
    live = alloc_live();
    sim_env_init(&room.sim, 1);
    room.sim.env.boottime = look;
    room.sim.env.sleep = sleep_for;
    room.timer = room.keeper_until = DIBS__NEVER;
    room.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_status(dibs__open_in(&room.sim.env, "memory:room", &(dibs_options){.log = note_line},
                                &room.d, NULL),
                  DIBS_OK);
    room.real = room.d->class;
    room.class = *room.real;
    room.class.enter = enter;
    room.class.keep = keep;
    room.class.release = release;
    room.class.cancel = cancel;
    room.class.event_fd = event_fd;
    room.class.events = events;
    room.d->class = &room.class;
    room_begin();
    return 0;
}

/* Nothing is left of the handle, or the case fails. One that has failed may have left the mutex locked. */
int room_tear_down(void **state)
{
    (void)state;
    if (room.locked)
        pthread_mutex_unlock(&room.d->mutex);
    looks = 0;
    room.generous = true;
    room.keeper = NULL;
    dibs_cancel(room.d, NULL);
    take_all(room.d);
    room.d->keeper_stops = false;
    room.d->workers.count = room.d->users = 0;
    room.joins = room.d->keeper_runs;
    room_woken();
    dibs_close(room.d);
    close(room.event_fd);
    room.d = NULL;
    return room.joins != 0 || (alloc_balances && alloc_live() != live);
}

/* ---- Time ------------------------------------------------------------------------------------ */

void room_after(int64_t us, void (*run)(void))
{
    assert_true(room.steps < (int)(sizeof room.step / sizeof room.step[0]));
    room.step[room.steps].at = now() + us;
    room.step[room.steps++].run = run;
}

static int64_t next_step(void)
{
    return room.steps_done < room.steps ? room.step[room.steps_done].at : DIBS__NEVER;
}

/* To the next step, or to `until`, whichever comes first; the step is done. */
static void pass_until(int64_t until)
{
    int64_t step = next_step(), at = dibs__sooner(step, until);

    if (at == DIBS__NEVER)
        fail_msg("it sleeps for ever: %s", room.log);
    if (at > now())
        pass(at - now());
    if (step <= until)
        room.step[room.steps_done++].run();
}

static void keep_until(int64_t until)
{
    room.keeper_until = until;
    room.in_keeper = true;
    room.keeper(room.d);
    room.in_keeper = false;
    room.keeper_until = DIBS__NEVER;
    room.d->keeper_stops = false;
}

void room_keep(int64_t us)
{
    pthread_mutex_lock(&room.d->mutex);
    assert_true(dibs__keeper_start(room.d));
    pthread_mutex_unlock(&room.d->mutex);
    room.signalled = NULL;
    keep_until(now() + us);
}

bool room_work(void)
{
    bool any = room.d->workers.first != NULL;

    if (room.worker)
        room.worker(room.d);
    room.d->workers.started = 0;
    room.d->workers.stop = false;
    return any;
}

bool room_woken(void)
{
    eventfd_t ignored;

    return eventfd_read(room.d->wake_fd, &ignored) == 0;
}

/* ---- What sleeps, replaced at the link ------------------------------------------------------- */

bool __wrap_dibs__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);
ssize_t __real_read(int fd, void *out, size_t size);
ssize_t __wrap_read(int fd, void *out, size_t size);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old);
void __wrap_dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                             dibs__deadline until);
int __wrap_dibs__word_sleep(_Atomic int *word, int value, const dibs__env *env,
                            dibs__deadline until);
void __real_dibs__word_wake(_Atomic int *word);
void __wrap_dibs__word_wake(_Atomic int *word);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_join(pthread_t thread, void **result);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __real_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __real_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);

bool __wrap_dibs__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    assert_ptr_equal(arg, room.d);
    if (room.no_threads)
        return false;
    if (out == &room.d->keeper)
        room.keeper = run;
    else
        room.worker = run;
    return true;
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old)
{
    assert_int_equal(fd, room.d->timer_fd);
    assert_int_equal(flags, TFD_TIMER_ABSTIME);
    assert_null(old);
    assert_int_equal(at->it_interval.tv_sec, 0);
    assert_int_equal(at->it_interval.tv_nsec, 0);
    room.timers++;
    room.timer = at->it_value.tv_sec * DIBS__SECOND + at->it_value.tv_nsec / 1000;
    return 0;
}

static int stop_keeper(void)
{
    room.d->keeper_stops = true;
    errno = EINTR;
    return -1;
}

/* The keeper sleeps until its timer rings; room_keep ends, or the thread that sleeps beside it is woken. */
static int keeper_polls(struct pollfd *fds, nfds_t count, int timeout)
{
    assert_int_equal(count, 3);
    assert_int_equal(timeout, -1);
    for (;;) {
        int ready = __real_poll(fds, count, 0);
        int64_t end = dibs__sooner(room.timer, room.keeper_until);
        if (room.timer <= now()) {
            fds[1].revents = POLLIN;
            room.rung = true;
            room.timer = DIBS__NEVER;
            ready++;
        }
        if (ready > 0)
            return ready;
        if (room.signalled || now() >= room.keeper_until)
            return stop_keeper();
        pass_until(end);
    }
}

/* A thread that waits reads events: the engine's descriptor, and its own. */
static int leader_polls(struct pollfd *fds, nfds_t count, int timeout)
{
    int64_t end = timeout < 0 ? DIBS__NEVER : now() + timeout * DIBS__MS;

    assert_int_equal(count, 2);
    for (;;) {
        int ready = __real_poll(fds, count, 0);
        if (ready > 0 || now() >= end)
            return ready;
        pass_until(end);
    }
}

/* The timer is read only when poll has seen it ring: another ring would be lost. */
ssize_t __wrap_read(int fd, void *out, size_t size)
{
    if (room.d && fd == room.d->timer_fd) {
        assert_true(room.rung);
        room.rung = false;
    }
    return __real_read(fd, out, size);
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    assert_false(room.locked);
    room.polls++;
    if (room.poll_errno) {
        errno = room.poll_errno;
        room.poll_errno = 0;
        return -1;
    }
    return fds[0].fd == room.d->wake_fd ? keeper_polls(fds, count, timeout)
                                        : leader_polls(fds, count, timeout);
}

/* Until it is woken; without a keeper beside it, until the next step is done. */
static void sleep_until(int64_t until)
{
    room.signalled = NULL;
    if (room.keeper && !room.in_keeper)
        keep_until(until);
    else
        pass_until(until);
}

void __wrap_dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                             dibs__deadline until)
{
    (void)cond;
    (void)env;
    pthread_mutex_unlock(mutex);
    sleep_until(until);
    pthread_mutex_lock(mutex);
}

/* It wakes when it was woken and finds another value; either alone leaves it asleep. */
int __wrap_dibs__word_sleep(_Atomic int *word, int value, const dibs__env *env,
                            dibs__deadline until)
{
    (void)env;
    assert_false(room.locked);
    while (atomic_load(word) == value && now() < until)
        sleep_until(until);
    return atomic_load(word);
}

void __wrap_dibs__word_wake(_Atomic int *word)
{
    room.signalled = word;
    room.signalled_locked = room.locked;
    __real_dibs__word_wake(word);
}

/* The handle's is never locked twice, and never given back by somebody who has not got it. */
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (room.d && mutex == &room.d->mutex) {
        assert_false(room.locked);
        room.locked = true;
    }
    return __real_pthread_mutex_lock(mutex);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (room.d && mutex == &room.d->mutex) {
        assert_true(room.locked);
        room.locked = false;
    }
    return __real_pthread_mutex_unlock(mutex);
}

/* The keeper, which ends when it was told so and woken. */
int __wrap_pthread_join(pthread_t thread, void **result)
{
    (void)thread;
    (void)result;
    assert_true(room.d->keeper_stops && room_woken());
    room.joins--;
    return 0;
}

/* A worker that has nothing to do ends. */
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    if (!room.d || cond != &room.d->workers.wake)
        return __real_pthread_cond_wait(cond, mutex);
    room.d->workers.stop = true;
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    room.signalled = cond;
    return __real_pthread_cond_signal(cond);
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    if (room.d && cond != &room.d->quiet)
        room.signalled = cond;
    return __real_pthread_cond_broadcast(cond);
}

/* ---- Grants ---------------------------------------------------------------------------------- */

dibs_grant *take_named(const char *name, dibs_lock_options o)
{
    dibs_grant *g = NULL;
    dibs_error err;

    if (!o.lease_ms)
        o.lease_ms = LEASE / DIBS__MS;
    if (!room.generous && room.calls == room.count)
        will_answer(DIBS_OK, granted, 0);
    if (dibs_lock(room.d, name, &o, &g, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    return g;
}

dibs_grant *take_one(void)
{
    return take_named("a", (dibs_lock_options){0});
}

void drop(dibs_grant *g)
{
    will_answer(DIBS_OK, released, 0);
    assert_true(unlock(g) == DIBS_OK || !g);
}

/* ---- Requests -------------------------------------------------------------------------------- */

static void note_outcome(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    (void)data;
    (void)err;
    room_note(dibs_status_name(status));
    if (g) {
        will_answer(DIBS_OK, released, 0);
        assert_status(unlock(g), DIBS_OK);
    }
}

void room_request(const char *name, int64_t wait_ms)
{
    assert_status(start_lock(room.d, name,
                             &(dibs_lock_options){.wait_ms = wait_ms, .lease_ms = LEASE / DIBS__MS},
                             note_outcome, NULL, NULL, NULL),
                  DIBS_OK);
}

/* ---- Waiters --------------------------------------------------------------------------------- */

static void note_done(dibs *d, dibs__ticket *t)
{
    (void)d;
    (void)t;
    room.done++;
}

dibs_grant *room_waiter(dibs__ticket *t)
{
    dibs_grant *g = dibs__grant_new(room.d, "a", NULL, false);

    assert_non_null(g);
    g->lease = LEASE;
    g->renew = true;
    g->capacity = DIBS__PLAIN;
    g->weight = 1;
    assert_true(dibs__grant_enlist(g));
    *t = (dibs__ticket){.grant = g,
                        .until = now() + 60 * DIBS__SECOND,
                        .window = DIBS__WINDOW,
                        .enter_again = true,
                        .by_event = true,
                        .done = note_done};
    g->ticket = t;
    room.d->waits++;
    room_forget_answers();
    room.done = 0;
    return g;
}

void room_enter(dibs__ticket *t, dibs_status status, dibs__reply reply, int64_t takes)
{
    will_answer(status, reply, takes);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_enter(t, now() + room.d->request_span);
    pthread_mutex_unlock(&room.d->mutex);
}

/* The ticket has its reference until its request is taken. */
void room_forget_waiter(dibs__ticket *t, dibs_grant *g)
{
    dibs__ticket_fini(t);
    if (g->state != DIBS__OVER)
        dibs__grant_retire(g);
    while (g->refs > 1)
        dibs__grant_unref(g);
    dibs__grant_unref(g);
}
