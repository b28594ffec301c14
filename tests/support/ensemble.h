/* A private ZooKeeper ensemble or etcd cluster of one or three nodes, on free loopback ports, in a
 * scratch folder of its own.
 *
 *     ensemble e;
 *     ensemble_need(&e, ENSEMBLE_ZOOKEEPER, 3, NULL);   skips the test where there is none
 *     … "zookeeper://%s/locks", e.hosts …
 *     ensemble_stop(&e);
 *
 * Nodes end with the test program, whatever happens. ZooKeeper's tick is short, so that sessions
 * from 400 ms on are allowed; etcd grants leases from one second on. */
#ifndef DIBS_TESTS_ENSEMBLE_H
#define DIBS_TESTS_ENSEMBLE_H

#include "support/scratch.h"

#include <stdbool.h>
#include <sys/types.h>

#define ENSEMBLE_MAX      3
#define ENSEMBLE_ARGS_MAX 48

typedef enum ensemble_kind { ENSEMBLE_ZOOKEEPER, ENSEMBLE_ETCD } ensemble_kind;

typedef struct ensemble_node {
    pid_t pid;                     /* 0: not running */
    int port;                      /* for clients */
    int peer_port, other_port;     /* among nodes; ZooKeeper's elections, etcd's metrics */
    char *args[ENSEMBLE_ARGS_MAX]; /* owned; for the restart */
} ensemble_node;

typedef struct ensemble {
    ensemble_kind kind;
    int count;
    scratch folder;
    ensemble_node node[ENSEMBLE_MAX];
    char hosts[128]; /* 127.0.0.1:p1,127.0.0.1:p2,… */
} ensemble;

bool ensemble_available(ensemble_kind kind);

/* Starts `count` nodes and waits until all of them serve. `extra` (NULL-terminated; NULL: none) are
 * lines of zoo.cfg or, with a dash, options of the JVM; for etcd, arguments. 0, or -1 with a message
 * on stderr. */
int ensemble_start(ensemble *e, ensemble_kind kind, int count, const char *const extra[]);

/* The same inside a cmocka test: skips it where there is no server, fails it where there must be
 * one. */
void ensemble_need(ensemble *e, ensemble_kind kind, int count, const char *const extra[]);

/* One node's process, by number from 0: ended and reaped (SIGTERM or SIGKILL), started again on its
 * data (waits until it serves, for which a majority must be there), stopped and continued. */
void ensemble_end(ensemble *e, int i, int signal);
int ensemble_restart(ensemble *e, int i);
void ensemble_pause(ensemble *e, int i);
void ensemble_continue(ensemble *e, int i);

/* Starts it without waiting until it serves. */
int ensemble_launch(ensemble *e, int i);

/* The number of the node that leads; -1: nobody does. */
int ensemble_leader(ensemble *e);

/* One of ZooKeeper's four-letter commands ("mntr", "wchs", "cons"); the answer's length, or -1. */
int ensemble_word(ensemble *e, int i, const char *word, char *out, size_t size);

/* What etcd serves on its metrics port under `path` ("/metrics", "/health"); the length, or -1. */
int ensemble_page(ensemble *e, int i, const char *path, char *out, size_t size);

/* Ends what runs and removes everything. Harmless on a zeroed struct. */
void ensemble_stop(ensemble *e);

#endif
