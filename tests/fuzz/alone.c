/* One thread, and a clock that only waiting moves. Threads that only connect run when somebody waits. */
#define _GNU_SOURCE
#include "core/thread.h"
#include "fuzz/net.h"

#include <poll.h>

#define THREADS 64

static struct {
    int64_t now;
    uint64_t random;
    struct {
        void *(*run)(void *arg);
        void *arg;
    } thread[THREADS];
    size_t threads;
} alone;

/* ---- Clock ----------------------------------------------------------------------------------- */

static int64_t boottime(void *ctx)
{
    (void)ctx;
    return alone.now += 10; /* nobody stands still in a loop */
}

static int64_t wall(void *ctx)
{
    (void)ctx;
    return 1700000000 * DIBS__SECOND + alone.now;
}

static void draw(void *ctx, void *out, size_t size)
{
    uint8_t *to = out;

    (void)ctx;
    for (size_t i = 0; i < size; i++) {
        alone.random = alone.random * 6364136223846793005u + 1442695040888963407u;
        to[i] = (uint8_t)(alone.random >> 56);
    }
}

static void rest(void *ctx, int64_t span)
{
    (void)ctx;
    alone.now += span;
}

const dibs__env alone_env = {boottime, wall, draw, rest, NULL};

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    int ready;

    alone_run_threads();
    ready = __real_poll(fds, count, 0);
    if (ready == 0)
        alone.now += timeout < 0 ? DIBS__SECOND : timeout * DIBS__MS;
    return ready;
}

/* ---- Threads --------------------------------------------------------------------------------- */

bool __wrap_dibs__thread_start_detached(void *(*run)(void *arg), void *arg);
void __wrap_dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                             dibs__deadline until);

bool __wrap_dibs__thread_start_detached(void *(*run)(void *arg), void *arg)
{
    if (alone.threads == THREADS)
        return false;
    alone.thread[alone.threads].run = run;
    alone.thread[alone.threads++].arg = arg;
    return true;
}

void alone_run_threads(void)
{
    while (alone.threads > 0) {
        alone.threads--;
        alone.thread[alone.threads].run(alone.thread[alone.threads].arg);
    }
}

void __wrap_dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                             dibs__deadline until)
{
    (void)cond;
    (void)env;
    pthread_mutex_unlock(mutex);
    alone_run_threads();
    pthread_mutex_lock(mutex);
    alone.now += fuzz_least(100 * DIBS__MS, until > alone.now ? (size_t)(until - alone.now) : 0);
}

/* ---- The beginning --------------------------------------------------------------------------- */

void alone_begin(void)
{
    memset(&alone, 0, sizeof alone);
    alone.now = 1000 * DIBS__SECOND;
}
