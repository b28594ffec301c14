/* One server that the handle talks to: its main connection, shared by all threads, and what is known of the server at
 * the other end. redis:// and redis+sentinel:// have one (the master, whichever server that is now), redis+cluster://
 * has one for each master that it has seen. A node lives as long as the handle. */
#ifndef DIBS_REDIS_NODE_H
#define DIBS_REDIS_NODE_H

#include "engines/redis/abandoned.h"
#include "engines/redis/connection.h"
#include "engines/redis/pipeline.h"

#include <pthread.h>
#include <stdatomic.h>

#define DIBS__SERVER_SIZE 96 /* run id, and replication id where it was promoted */

typedef struct dibs__redis dibs__redis;

typedef struct dibs__redis_node {
    dibs__redis *r;
    dibs__redis_address address; /* login and TLS are the handle's */
    dibs__abandoned abandoned;
    dibs__pipeline *pipeline;
    atomic_bool flags;   /* the server knows those of the scripts */
    atomic_bool suspect; /* it did not answer the last time, or serves nobody: see ask.c */
    bool serves,
        listed; /* it has slots, by the map and by the one that is being read; with the cluster's lock */
    /* Which server it is: see guard.h. */
    pthread_mutex_t lock;
    char server[DIBS__SERVER_SIZE];
    int64_t up;        /* without being promoted; -1: not known */
    atomic_uint looks; /* so many connections were made, and the marker looked at on each */
} dibs__redis_node;

/* `host` is copied; NULL: as the handle's address says. NULL: out of memory. */
dibs__redis_node *dibs__redis_node_new(dibs__redis *r, const char *host, int port);
void dibs__redis_node_free(dibs__redis_node *n); /* NULL is allowed */

#endif
