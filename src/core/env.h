/* Where time and randomness come from, so that a test can replace them. Nothing outside env.c reads a clock,
 * sleeps or draws a random number by itself.
 *
 * `boottime` counts on while the host sleeps: every deadline of ours is on it. `wall` is Unix time
 * and is used for fences and for people, never for a deadline. All times inside dibs are
 * microseconds. */
#ifndef DIBS_CORE_ENV_H
#define DIBS_CORE_ENV_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct dibs__env {
    int64_t (*boottime)(void *ctx);
    int64_t (*wall)(void *ctx);
    void (*random)(void *ctx, void *out, size_t size);
    void (*sleep)(void *ctx, int64_t span);
    void *ctx;
} dibs__env;

/* An absolute moment on `boottime`. Made once at the public call and handed down. */
typedef int64_t dibs__deadline;

#define DIBS__NEVER  INT64_MAX
#define DIBS__MS     ((int64_t)1000)
#define DIBS__SECOND ((int64_t)1000000)

/* The machine's own clocks and getrandom(). */
extern const dibs__env dibs__env_system;

static inline int64_t dibs__now(const dibs__env *env)
{
    return env->boottime(env->ctx);
}

/* The calling thread does nothing for so long. */
static inline void dibs__sleep(const dibs__env *env, int64_t span)
{
    if (span > 0)
        env->sleep(env->ctx, span);
}

/* `span` from now, without overflow; a negative span is now. */
dibs__deadline dibs__after(const dibs__env *env, int64_t span);

/* Milliseconds left for poll(), rounded up: -1 for never, 0 when it has passed. */
int dibs__poll_ms(const dibs__env *env, dibs__deadline until);

/* `span` from now, for calls of the system that take a moment on one of its own clocks. */
struct timespec dibs__moment(clockid_t clock, int64_t span);

/* The next pause between two tries: `first` after none (0), then twice the last one, `most` at the most. */
static inline int64_t dibs__longer(int64_t pause, int64_t first, int64_t most)
{
    int64_t next = pause ? 2 * pause : first;

    return next < most ? next : most;
}

static inline dibs__deadline dibs__sooner(dibs__deadline a, dibs__deadline b)
{
    return a < b ? a : b;
}

#endif
