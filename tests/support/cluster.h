/* A private Redis Cluster on loopback: three masters, each with one replica.
 *
 *     cluster c;
 *     cluster_start(&c, 5000, NULL);     replicas take over after so many milliseconds without their master
 *     ... cluster_url(&c, "?wait=1") ...
 *     cluster_stop(&c);
 */
#ifndef DIBS_TESTS_CLUSTER_H
#define DIBS_TESTS_CLUSTER_H

#include "support/server.h"

#define CLUSTER_MASTERS 3
#define CLUSTER_NODES   6

typedef struct cluster {
    server node[CLUSTER_NODES]; /* at the beginning the first three are masters */
    const char *password;       /* NULL: none */
    const char *tls;            /* folder with good.crt, good.key and ca.crt; NULL: plain */
} cluster;

/* Returns when all slots are served and all replicas are connected. 0, or -1 with a message on stderr. */
int cluster_start(cluster *c, int timeout_ms, const char *password);
/* The same with TLS between all; see certificates.h. */
int cluster_start_tls(cluster *c, int timeout_ms, const char *folder);
void cluster_stop(cluster *c); /* harmless on a zeroed struct */

/* "redis+cluster://127.0.0.1:port,..." and `more`; valid until the next call of this thread. */
const char *cluster_url(const cluster *c, const char *more);

/* One inline command to one node: server_command, with the password. */
int cluster_ask(cluster *c, int node, const char *command, char *reply, size_t size);

bool cluster_is_master(cluster *c, int node);
/* The master of a slot, by the account of the first node that knows one; -1: none does. */
int cluster_master_of(cluster *c, int slot);
int cluster_master_by(cluster *c, int node, int slot); /* by this node's account */
int cluster_replica_of(cluster *c, int master);        /* -1: it has none now */

/* Moves a slot with all its keys, as redis-cli does. 0, or -1. */
int cluster_move_slot(cluster *c, int slot, int from, int to);

/* The slot of a lock of this name. */
int cluster_slot(const char *name);

#endif
