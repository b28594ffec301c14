/* The benchmark's parts: a plan says what to run, a peer is one way of locking, a run measures it.
 *
 * Every run of the program prints one line of JSON on stdout. Exclusion and fences are checked while
 * the clock runs: a wrong one is counted as a violation and makes the program exit with 1, whatever
 * the speed. */
#ifndef DIBS_BENCH_H
#define DIBS_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bench_plan {
    const char *scenario; /* "a", "b", "c", "d", "f", "wait", "hold" or "idle" */
    const char *peer;
    bool each;          /* workers are processes; dibs: a handle for each worker */
    const char *url;    /* dibs: which engine */
    const char *folder; /* raw SQLite, flock: where its files go */
    int port;           /* raw Redis */
    const char *ports;  /* raw Redlock: of its nodes, with commas between */
    int sql_port;       /* raw PostgreSQL, raw MariaDB: its database `bench` */
    int node_port;      /* raw ZooKeeper, raw etcd */
    int stock_port;     /* the Redis that keeps the stock of d */
    int workers;
    int rounds; /* d: deductions per worker */
    long count; /* wait: requests in the queue; hold, idle: locks */
    double seconds;
} bench_plan;

/* One way of locking. `setup` is called once, before there are workers, and its result is passed to all
 * of them; `end` once when they are gone: it releases that and returns -1 if the result is wrong. Both
 * may be missing. Each worker has a client of its own. Functions that return a pointer return NULL on
 * failure and have printed why. */
typedef struct bench_peer {
    const char *id;
    const char *title;
    void *(*setup)(const bench_plan *plan);
    int (*end)(void *shared, const bench_plan *plan, long turns);
    void *(*open)(void *shared, const bench_plan *plan, const char *key);
    int (*acquire)(void *client, const char *key,
                   uint64_t *fence);               /* 0: held. No fence: left at 0 */
    int (*release)(void *client, const char *key); /* 0: released */
    void (*close)(void *client);
} bench_peer;

extern const bench_peer bench_dibs;
extern const bench_peer bench_dibs_once;
extern const bench_peer bench_dibs_counter;
extern const bench_peer bench_dibs_token;
extern const bench_peer bench_redis_set;
extern const bench_peer bench_redis_blpop;
extern const bench_peer bench_redis_blpop_lua;
extern const bench_peer bench_redlock_set;
extern const bench_peer bench_flock;
extern const bench_peer bench_sqlite_row;
extern const bench_peer bench_pg_row;
extern const bench_peer bench_pg_advisory;
extern const bench_peer bench_mysql_row;
extern const bench_peer bench_mysql_getlock;
extern const bench_peer bench_zookeeper_node;
extern const bench_peer bench_zookeeper_queue;
extern const bench_peer bench_etcd_put;
extern const bench_peer bench_etcd_lock;

/* Each returns the program's exit code: 0, or 1 if something was wrong. */
int bench_workers(const bench_peer *peer, const bench_plan *plan);
int bench_wait(const bench_plan *plan);
int bench_hold(const bench_plan *plan);
int bench_idle(const bench_plan *plan);

/* dibs_peers.c: NULL: it failed, and why was printed. */
struct dibs *bench_open_dibs(const bench_plan *plan);

/* ---- crew.c: workers side by side ------------------------------------------------------------ */

typedef struct bench_crew bench_crew;

/* Runs `work` in so many threads or processes, and returns when they started. Any failure ends the
 * program. Each worker calls bench_ready when it is prepared, which returns when all may begin, and
 * bench_finished, which returns when all have finished. */
double bench_crew_run(int count, bool processes, void (*work)(bench_crew *crew, void *arg, int id),
                      void *arg);
double bench_ready(bench_crew *crew);
void bench_finished(bench_crew *crew);
/* With steps=1: prints the name of the step, and goes on when it has read a line. */
extern bool bench_steps;
void bench_step(const char *name);
/* Memory that is zero and that worker processes share. */
void *bench_shared(size_t size);

/* ---- section.c: what a lock protects --------------------------------------------------------- */

typedef struct bench_section {
    _Alignas(64) atomic_int inside;
    _Atomic uint64_t fence;
    atomic_int owner;
    atomic_long changes; /* of owner, those that were to be counted */
    atomic_long violations;
} bench_section;

void bench_section_in(bench_section *s, int id, uint64_t fence, bool counted);
void bench_section_out(bench_section *s, int id);

/* ---- spread.c: how long things took ---------------------------------------------------------- */

#define BENCH_SPREAD_PARTS   32
#define BENCH_SPREAD_BUCKETS (40 * BENCH_SPREAD_PARTS) /* to some 1000 seconds */

typedef struct bench_spread {
    long all;
    unsigned count[BENCH_SPREAD_BUCKETS];
} bench_spread;

void bench_spread_add(bench_spread *s, double seconds);
void bench_spread_merge(bench_spread *into, const bench_spread *from);
double bench_spread_us(const bench_spread *s, double share); /* 0.5: the median */

/* ---- clock.c --------------------------------------------------------------------------------- */

double bench_now(void);           /* seconds */
double bench_cpu(void);           /* of this process, all threads */
double bench_memory(void);        /* kilobytes of this process */
double bench_server_cpu(int pid); /* seconds of that process and its children; 0: there is none */

/* stock.c: a number in a Redis that is read and written in two steps, so that only a lock keeps it
 * right. */
typedef struct bench_stock bench_stock;
bench_stock *bench_stock_open(int port);
long bench_stock_read(bench_stock *stock); /* -1: failed */
bool bench_stock_write(bench_stock *stock, long value);
void bench_stock_close(bench_stock *stock);

#endif
