/* The benchmark's parts: a plan says what to run, a peer is one way of locking, a run measures it.
 *
 * Every program run prints one line of JSON on stdout. Exclusion and fences are checked while the
 * clock runs: a wrong one is counted as a violation and makes the program exit with 1, whatever the
 * speed. */
#ifndef DIBS_BENCH_H
#define DIBS_BENCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bench_plan {
    const char *scenario; /* "a", "b", "c", "d", "wait", "hold" or "idle" */
    const char *peer;
    const char *url;    /* dibs: which engine */
    const char *folder; /* raw SQLite: where its database goes */
    int port;           /* raw Redis */
    const char *ports;  /* raw Redlock: of its nodes, with commas between */
    int sql_port;       /* raw PostgreSQL, raw MariaDB: its database `bench` */
    int node_port;      /* raw ZooKeeper, raw etcd */
    int stock_port;     /* the Redis that keeps the stock of d */
    int server_pid;     /* 0: none */
    int workers;
    int locks;  /* c: worker i takes lock i % locks */
    int rounds; /* d: deductions a worker */
    long count; /* wait: requests in the queue; hold, idle: locks */
    double seconds;
} bench_plan;

/* One way of locking. `setup` is called once and its result shared by all workers (NULL: there is nothing to
 * set up; so with `teardown`); each worker then has a client of its own. Functions that return a pointer give NULL on failure and have told
 * stderr why. */
typedef struct bench_peer {
    const char *id;
    const char *title;
    void *(*setup)(const bench_plan *plan);
    void (*teardown)(void *shared);
    void *(*open)(void *shared, const bench_plan *plan, const char *key);
    int (*acquire)(void *client, const char *key,
                   uint64_t *fence);               /* 0: held. No fence: left at 0 */
    int (*release)(void *client, const char *key); /* 0: released */
    void (*close)(void *client);
} bench_peer;

extern const bench_peer bench_dibs;
extern const bench_peer bench_redis_set;
extern const bench_peer bench_redis_blpop;
extern const bench_peer bench_redis_blpop_lua;
extern const bench_peer bench_redlock_set;
extern const bench_peer bench_sqlite_row;
extern const bench_peer bench_pg_row;
extern const bench_peer bench_pg_advisory;
extern const bench_peer bench_mysql_row;
extern const bench_peer bench_mysql_getlock;
extern const bench_peer bench_zookeeper_node;
extern const bench_peer bench_zookeeper_line;
extern const bench_peer bench_etcd_put;
extern const bench_peer bench_etcd_lock;

/* Each returns the program's exit code: 0, or 1 when something was wrong. */
int bench_threads(const bench_peer *peer, const bench_plan *plan);
int bench_wait(const bench_plan *plan);
int bench_hold(const bench_plan *plan);
int bench_idle(const bench_plan *plan);

/* clock.c: seconds. */
double bench_now(void);
double bench_cpu(void);           /* of this process, all threads */
double bench_server_cpu(int pid); /* with its children: PostgreSQL's sessions. 0: there is none */

/* stock.c: a number in a Redis that is read and written in two steps, so that only a lock keeps it
 * right. */
typedef struct bench_stock bench_stock;
bench_stock *bench_stock_open(int port);
long bench_stock_read(bench_stock *stock); /* -1: failed */
bool bench_stock_write(bench_stock *stock, long value);
void bench_stock_close(bench_stock *stock);

#endif
