/* A private service that Sentinel watches: one master, two replicas, three sentinels on loopback. */
#ifndef DIBS_TESTS_WATCHED_H
#define DIBS_TESTS_WATCHED_H

#include "support/server.h"

#define WATCHED_SERVICE  "orders"
#define WATCHED_LEASE_MS 1500 /* max_lease of its URL */
#define WATCHED_SERVERS  3

typedef struct watched {
    server node[WATCHED_SERVERS], sentinel[WATCHED_SERVERS];
    const char *password, *sentinel_password; /* NULL: none */
    const char *tls; /* folder with good.crt, good.key and ca.crt; NULL: plain */
} watched;

/* Skips the test where there is no redis-server. Returns when the sentinels know of each other and of the replicas. */
void watched_start(watched *w, const char *password, const char *sentinel_password);
/* The same with TLS between all; see support/certificates.h. */
void watched_start_tls(watched *w, const char *folder);
void watched_stop(watched *w);

const char *watched_url(const watched *w, const char *more); /* `more`: "&wait=1" */
void watched_vouch(const watched *w, const char *more);      /* nobody holds anything yet */

int watched_master(watched *w);                   /* by the sentinels' account */
bool watched_begin_failover(watched *w);          /* planned */
void watched_await_failover(watched *w, int old); /* another one is the master */
void watched_await_replicas(watched *w, int count);

#endif
