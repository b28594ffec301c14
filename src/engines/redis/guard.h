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
#include "engines/redis/ask.h"
#include "engines/redis/connection.h"

/* What `enter` answers beside the verdicts: see lua/head.lua. */
enum { DIBS__REDIS_QUIET = 9, DIBS__REDIS_UNMARKED = 10 };

typedef struct dibs__guard {
    bool on, vouched;
    int64_t replicas;  /* that must acknowledge; 0: none */
    int64_t patience;  /* how long they may take */
    int64_t max_lease; /* of any client */
} dibs__guard;

/* guard=, wait=, wait_ms= and max_lease= of the URL; `on` unless it says otherwise. */
dibs_status dibs__guard_read_url(dibs__guard *g, dibs__url *url, bool on, dibs_error *err);

/* What mark.lua is asked for. */
typedef enum dibs__mark {
    DIBS__MARK_READ,
    DIBS__MARK_ACKNOWLEDGED,
    DIBS__MARK_VOUCH,
    DIBS__MARK_ADOPT,
} dibs__mark;

/* Which server said this in INFO, and for how long it has been up without being promoted (-1: it was). False: it does
 * not say. */
bool dibs__guard_identity(const char *info, char out[DIBS__SERVER_SIZE], int64_t *up);
/* What is known of the server at the other end; returns how long it has been up. */
int64_t dibs__guard_copy_server(dibs__redis_node *n, char out[DIBS__SERVER_SIZE]);

/* Looks at the marker over a new connection; `info`: what INFO said there, NULL: we may not ask. In a cluster there is
 * a marker for each bucket: if one of them is another server's, all are looked at. */
dibs_status dibs__guard_greet(dibs__redis_node *n, dibs__conn *c, const char *info,
                              dibs__deadline until, dibs_error *err);

/* May a lock be asked for with this lease? */
dibs_status dibs__guard_check_lease(const dibs__redis *r, int64_t lease, dibs_error *err);

/* How many arguments the guard adds to a command, and adding them. */
static inline size_t dibs__guard_words(const dibs__guard *g)
{
    return g->on ? 1 : 0;
}
void dibs__guard_write(dibs__redis_node *n, dibs__bytes *out);

/* Commands on the main connection whose effect counts only when enough replicas have it: as
 * dibs__pipeline_call. `*safe`: they have. */
dibs_status dibs__guard_call(dibs__redis_node *n, dibs__bytes *bytes, redisReply **out,
                             size_t count, dibs__deadline until, bool *safe, dibs_error *err);

/* "0 of 1 replicas ...": for an outcome that is not known to be safe. DIBS_UNKNOWN. */
dibs_status dibs__guard_unsafe(const dibs__redis *r, const char *what, dibs_error *err);

/* `reply` is no verdict but the guard's: nothing was done. */
bool dibs__guard_refused(const redisReply *reply);
/* The refusal of `q`, with `remaining` in `out`. `*again`: in, whether the command may be sent once more; out, whether
 * that may help, because the server was looked at meanwhile. */
dibs_status dibs__guard_explain(const dibs__redis_ask *q, bool *again, dibs__deadline until,
                                dibs__reply *out, dibs_error *err);

#endif
