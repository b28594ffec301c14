/* Several private redis-servers as one Redlock, for the tests of that engine. */
#ifndef DIBS_TESTS_CLUSTER_H
#define DIBS_TESTS_CLUSTER_H

#include "support/calls.h"
#include "support/proxy.h"
#include "support/server.h"

#define CLUSTER_MAX 5

typedef struct cluster {
    server node[CLUSTER_MAX];
    proxy *proxy[CLUSTER_MAX]; /* NULL: asked directly */
    int count;
    char url[512];
} cluster;

/* Starts them, or skips the test. With `vouched`, the nodes count as in service; else they are new.
 */
void cluster_need(cluster *c, int count, const char *const extra[], bool vouched);
/* Says that the nodes are in service, whatever they are. */
void cluster_vouch(cluster *c);
void cluster_stop(cluster *c);

/* Puts a proxy before node `i` and makes the URL anew; before a handle is opened. */
void cluster_proxy(cluster *c, int i);

/* The URL with `more` behind it, such as "?guard=off". Valid until the next call. */
const char *cluster_url(const cluster *c, const char *more);

/* A handle, or the test fails. Opened with `more` behind the URL; NULL: nothing. */
dibs *cluster_open(const cluster *c, const char *more);

/* How many nodes have a vote out for `name`; those that do not run have none. */
int cluster_votes(cluster *c, const char *name);
/* Waits until it is so, or the test fails. */
void cluster_expect_votes(cluster *c, const char *name, int votes, int64_t ms);

/* Takes a lock, or the test fails. */
dibs_grant *cluster_take(dibs *d, const char *name, int64_t lease_ms, int64_t wait_ms);

#endif
