/* The guard: exclusion that survives a restart and a failover of the server.
 *
 * Every new main connection looks at the marker in the data (lua/mark.lua) and every command names the server that
 * it was meant for. A server that has just taken over grants nothing until the longest lease has passed.
 *
 * With `replicas`, what a command did counts only when so many replicas have acknowledged it: WAIT goes out in the
 * same write. A grant without that is not held, a renewal without that does not move the deadline: on a master that
 * was cut off, every holder loses its lock by its own clock.
 *
 * The argument, and what it assumes, is in docs/engines/redis.md; tests/engines/redis/model.c searches it. */
#ifndef DIBS_REDIS_GUARD_H
#define DIBS_REDIS_GUARD_H

#include "core/url.h"
#include "engines/engine.h"
#include "engines/redis/connection.h"
#include "engines/redis/script.h"

#include <pthread.h>

#define DIBS__SERVER_SIZE 96 /* run id, and replication id where it was promoted */

/* What `enter` answers beside the verdicts: see lua/head.lua. */
enum { DIBS__REDIS_QUIET = 9, DIBS__REDIS_UNMARKED = 10 };

typedef struct dibs__redis dibs__redis;

typedef struct dibs__guard {
    bool on, vouched;
    int64_t replicas;  /* that must acknowledge; 0: none */
    int64_t patience;  /* how long they may take */
    int64_t max_lease; /* of any client */
    pthread_mutex_t lock;
    /* Of the server at the other end of the main connection. */
    char server[DIBS__SERVER_SIZE];
    int64_t up; /* without being promoted; -1: not known */
} dibs__guard;

void dibs__guard_init(dibs__guard *g);
void dibs__guard_fini(dibs__guard *g);

/* guard=, wait=, wait_ms= and max_lease= of the URL; `on` unless it says otherwise. */
dibs_status dibs__guard_read_url(dibs__guard *g, dibs__url *url, bool on, dibs_error *err);

/* Looks at the marker over a new connection; `info`: what INFO said there, NULL: we may not ask. */
dibs_status dibs__guard_greet(dibs__redis *r, dibs__conn *c, const char *info, dibs__deadline until,
                              dibs_error *err);

/* May a lock be asked for with this lease? */
dibs_status dibs__guard_check_lease(const dibs__redis *r, int64_t lease, dibs_error *err);

/* How many arguments the guard adds to a command, and adding them. */
static inline size_t dibs__guard_words(const dibs__guard *g)
{
    return g->on ? 1 : 0;
}
void dibs__guard_write(dibs__guard *g, dibs__bytes *out);
void dibs__guard_server(dibs__guard *g, char out[DIBS__SERVER_SIZE]);

/* A command on the main connection whose effect counts only when enough replicas have it: as
 * dibs__pipeline_call. `*safe`: they have. */
dibs_status dibs__guard_call(dibs__redis *r, dibs__bytes *bytes, redisReply **out, size_t count,
                             dibs__deadline until, bool *safe, dibs_error *err);

/* "0 of 1 replicas ...": for an outcome that is not known to be safe. DIBS_UNKNOWN. */
dibs_status dibs__guard_unsafe(const dibs__redis *r, const char *what, dibs_error *err);

/* `reply` is no verdict but the guard's: nothing was done. */
bool dibs__guard_refused(const redisReply *reply);
/* The refusal, with `remaining` in `out`. `*again`: in, whether the command may be sent once more; out, whether that
 * may help, because the server was looked at meanwhile. `server`: that the command was sent for. */
dibs_status dibs__guard_explain(dibs__redis *r, const redisReply *reply, const char *server,
                                bool *again, dibs__deadline until, dibs__reply *out,
                                dibs_error *err);

#endif
