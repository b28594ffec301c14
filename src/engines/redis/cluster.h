/* A Redis Cluster: which master has which lock, and how that is found out again.
 *
 * Every name belongs to one of 1,024 buckets, and all keys of a bucket have one hash tag: PREFIX{3f2}:{NAME}. So what a
 * script needs beside the lock itself, the set of busy locks and the guard's marker, is one key per bucket, is always on
 * the lock's own server, and moves with it when slots are moved.
 *
 * The map comes from CLUSTER SLOTS, over a short connection to a server that answers; it is asked for again when a
 * server says that a slot is elsewhere, or does not answer. */
#ifndef DIBS_REDIS_CLUSTER_H
#define DIBS_REDIS_CLUSTER_H

#include "core/url.h"
#include "engines/redis/ask.h"
#include "engines/redis/connection.h"
#include "engines/redis/node.h"

#define DIBS__BUCKETS 1024

typedef struct dibs__cluster dibs__cluster;

/* redis+cluster://[[user]:password@]h1[:port],h2,... and tls=, ca=, cert= and key= of the URL. */
dibs_status dibs__cluster_read_url(dibs__url *url, dibs__redis_address *address, dibs_error *err);
void dibs__cluster_free(dibs__cluster *c);    /* NULL is allowed */
void dibs__cluster_abandon(dibs__cluster *c); /* closes descriptors and nothing else */

/* Gets the first map; nodes belong to `r` from then on. */
dibs_status dibs__cluster_open(dibs__cluster *c, dibs__redis *r, dibs__deadline until,
                               dibs_error *err);

/* Only the map. */
dibs_status dibs__cluster_survey(dibs__cluster *c, dibs__redis *r, dibs__deadline until,
                                 dibs_error *err);

unsigned dibs__cluster_bucket(const char *name);
unsigned dibs__cluster_slot(unsigned bucket);

/* Whose bucket it is; NULL: nobody's. */
dibs__redis_node *dibs__cluster_owner(const dibs__cluster *c, unsigned bucket);
/* The masters that have slots, into `out`; how many. */
size_t dibs__cluster_nodes(dibs__cluster *c, dibs__redis_node *out[DIBS__NODES_MAX]);

/* Asks for the map, `first` before all others (NULL: anybody), unless another thread has just done so. True: it is
 * another one than it was. */
bool dibs__cluster_refresh(dibs__cluster *c, dibs__redis_node *first, dibs__deadline until);

/* A server did not answer the last time: asks for the map, unless that was done a moment ago. */
void dibs__cluster_doubt(dibs__cluster *c, dibs__deadline until);

/* A connection to any server that answers, logged in: for the subscription, which all of them serve. */
dibs_status dibs__cluster_connect(dibs__cluster *c, dibs__deadline until, dibs__conn **out,
                                  dibs_error *err);

#endif
