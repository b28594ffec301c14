/* A cluster's bucket whose marker names another master: has its slot been moved here, or is this master new?
 *
 * After a move nothing is missing: MIGRATE brought all that the old master had, and the old master refuses the slot from
 * then on. So no quiet period is needed if the old master is alive, is still the same one that the marker names, is a
 * master still, and says itself that the slot is elsewhere (MOVED); and if this one was not replaced meanwhile: it has
 * granted before, or has run for longer than the longest lease. Leases go on by this server's clock, so that clock must
 * not be ahead of the other one by more than the margin of every holder. Whatever cannot be shown is a failover. */
#ifndef DIBS_REDIS_ADOPT_H
#define DIBS_REDIS_ADOPT_H

#include "engines/redis/guard.h"

/* Asks one server for `count` replies, the caller's to free. */
typedef dibs_status (*dibs__adopt_ask_fn)(void *ctx, dibs__bytes *bytes, redisReply **replies,
                                          size_t count, dibs_error *err);

/* The markers of these buckets of `n` that were moved become its own. DIBS_UNAVAILABLE: a slot is still on its way, do
 * not touch its marker. `ask` talks to `n`. */
dibs_status dibs__adopt(dibs__redis_node *n, const unsigned *buckets, size_t count,
                        dibs__adopt_ask_fn ask, void *ctx, dibs__deadline until, dibs_error *err);

#endif
