/* The main connection, shared by all threads of a handle.
 *
 * Each call queues its request and gets its replies. Whoever finds the connection without a driver
 * reads for everybody: hands each reply to its caller, and passes the role on when its own has
 * come. So one thread pays for no hop between threads, and many threads pipeline by themselves:
 * requests that come while a few writes are unanswered are gathered and go out in one.
 *
 * When the connection is cut, every call on it ends: UNAVAILABLE if its request had not gone out
 * whole, else UNKNOWN. A call whose deadline passes ends alone: a request that has not begun to go out never
 * will (UNAVAILABLE), and the replies to one that has are thrown away when they come (UNKNOWN). That is no fault of the connection.
 * It is cut when it hangs: something is unanswered, and nothing has come for as long as an exchange may take. */
#ifndef DIBS_REDIS_PIPELINE_H
#define DIBS_REDIS_PIPELINE_H

#include "engines/redis/abandoned.h"
#include "engines/redis/connection.h"

typedef struct dibs__pipeline dibs__pipeline;

/* Makes a connection that is ready for requests. */
typedef dibs_status (*dibs__connect_fn)(void *ctx, dibs__deadline until, dibs__conn **out,
                                        dibs_error *err);

/* `span`: how long an exchange may take. NULL: out of memory. */
dibs__pipeline *dibs__pipeline_new(const dibs__env *env, int64_t span, dibs__abandoned *abandoned,
                                   dibs__connect_fn connect, void *ctx);
void dibs__pipeline_free(dibs__pipeline *p);    /* no call is running */
void dibs__pipeline_abandon(dibs__pipeline *p); /* closes the descriptor and nothing else */

/* Connects unless that is done already. */
dibs_status dibs__pipeline_open(dibs__pipeline *p, dibs__deadline until, dibs_error *err);

/* Sends `bytes` and waits for `count` replies into `out`: the caller's to free, also after a
 * failure. */
dibs_status dibs__pipeline_call(dibs__pipeline *p, const dibs__bytes *bytes, redisReply **out,
                                size_t count, dibs__deadline until, dibs_error *err);

/* The next call gets a new connection; those that are unanswered end as when it is cut. */
void dibs__pipeline_renew(dibs__pipeline *p);

#endif
