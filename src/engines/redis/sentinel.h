/* A service that sentinels watch: who its master is now, and when that changes.
 *
 * More than half of the sentinels are asked, and the one whose configuration has the highest epoch is believed. A
 * connection goes to the master that it names, and is used only if that server says itself that it is a master. The
 * sentinels also name each other: the list of the URL is where it begins.
 *
 * One connection to a sentinel hears of every failover (+switch-master); the keeper polls it. What it tells, and
 * whatever may have been missed while it was down, ends the handle's connections, so that the next call goes to the
 * new master. Without it a lost master is noticed by its silence. */
#ifndef DIBS_REDIS_SENTINEL_H
#define DIBS_REDIS_SENTINEL_H

#include "core/url.h"
#include "engines/redis/connection.h"

#include <stdatomic.h>

/* What to do when there is another master: called by the keeper. */
typedef void (*dibs__changed_fn)(void *ctx);

/* redis+sentinel://[[user]:password@]s1[:port],s2,.../SERVICE[/db] into `place`, whose login is that of the servers.
 * sentinel_user=, sentinel_password=, tls= and sentinel_tls= of the URL; what of ca=, cert= and key= is in `place->tls`
 * counts for both. */
dibs_status dibs__sentinels_read_url(dibs__url *url, dibs__redis_address *address, dibs_error *err);
void dibs__sentinels_free(dibs__sentinels *s);
void dibs__sentinels_abandon(dibs__sentinels *s); /* closes descriptors and nothing else */

/* A connection to the master, logged in as `place` says. */
dibs_status dibs__sentinels_connect(dibs__sentinels *s, const dibs__redis_address *address,
                                    dibs__deadline until, dibs__conn **out, dibs_error *err);

/* Readable when `dibs__sentinels_hear` has something to do. */
int dibs__sentinels_fd(const dibs__sentinels *s);
/* Hears what the sentinels say, without waiting long, and calls `changed` if there is another master. */
void dibs__sentinels_hear(dibs__sentinels *s, dibs__deadline until, dibs__changed_fn changed,
                          void *ctx);

/* Replicas do not acknowledge what the master does: it may have been cut off, with the sentinel that we listen to. The
 * keeper asks the others. */
void dibs__sentinels_doubt(dibs__sentinels *s);

/* Counts failovers that were heard of: a connection that was begun before one may lead to the old master. */
unsigned dibs__sentinels_changes(const dibs__sentinels *s);

#endif
