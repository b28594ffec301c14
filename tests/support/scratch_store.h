/* A store of an engine, by the engine's name: a scratch file or private servers, and the URL that leads there.
 *
 *     scratch_store p;
 *     const char *why = scratch_store_make(&p, "redis", 4000);   NULL: ready
 *     … dibs_open(p.url, …) …
 *     scratch_store_remove(&p);
 */
#ifndef DIBS_TESTS_SCRATCH_STORE_H
#define DIBS_TESTS_SCRATCH_STORE_H

#include "dibs.h"
#include "support/cluster.h"
#include "support/database.h"
#include "support/ensemble.h"
#include "support/scratch.h"
#include "support/server.h"

#define REDLOCK_NODES 5

typedef struct scratch_store {
    char name[16]; /* as it was asked for, without the number of nodes */
    char engine[16];
    char url[512];
    int nodes; /* of an ensemble, or of Redlock */
    int session_ms;
    dibs_engine_info can;
    server redis; /* each server runs only for its own engine */
    server node[REDLOCK_NODES];
    server replica, sentinel; /* of `redis`, for "sentinel" */
    cluster cluster;
    database database;
    ensemble ensemble;
    scratch folder;
} scratch_store;

/* `name`: an engine's, or with a 3 behind it ("etcd3", "redlock3") for three nodes; without it an ensemble
 * has one and Redlock five. "sentinel": Redis with a replica that must acknowledge, found by its
 * sentinel. "cluster": three masters with a replica each that must acknowledge. `session_ms`: of ZooKeeper and etcd. NULL: ready. Else why not; scratch_store_remove is
 * due in either case. */
const char *scratch_store_make(scratch_store *p, const char *name, int session_ms);

/* For a program's main: makes the store, or prints the TAP line that says why not: a skip, or a failure where
 * servers are required. `code`: what to exit with then. */
bool scratch_store_for_main(scratch_store *p, const char *name, int session_ms, int *code);

/* The URL with these ports instead of the servers' own, in their order: one for each. */
void scratch_store_url(const scratch_store *p, const int ports[], char *out, size_t size);
/* How many servers it has that a client connects to, and their ports. */
int scratch_store_ports(const scratch_store *p, int ports[REDLOCK_NODES]);

void scratch_store_remove(scratch_store *p); /* harmless on a zeroed struct */

#endif
