/* The lab: the well-known schemes for locks and idempotency that the project started from, and the product
 * beside them, on one workload: many buyers take one piece each from one stock.
 *
 * A *strategy* is one file in strategies/: what the scheme does, flaw included, on the raw client
 * library. It knows how to open a buyer (what one buyer's thread needs), how to buy once, and how to
 * close. A strategy that is a lock gives `lock` and `unlock` instead of `buy`: the purchase around
 * them (read, check, write) is then the same for all, and the hazards can hold the lock as long as
 * they like. Adding a strategy is adding its file and its line in table.c.
 *
 *   site      the servers that a run uses, by what they are
 *   buyer      one buyer: one thread of one process, with its own connections
 *   point     a named moment inside a scheme ("between SETNX and EXPIRE") where a hazard may strike
 *   run       processes x threads x loops on one strategy: run.c
 *   check     what the books say afterwards: check.c
 *   hazard    one executed misfortune, measured: hazards/ */
#ifndef DIBS_LAB_LAB_H
#define DIBS_LAB_LAB_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Sites ----------------------------------------------------------------------------------- */

typedef enum lab_server {
    LAB_REDIS,
    LAB_REDIS_NODES, /* five independent ones: redlock://h1:p1,… */
    LAB_MARIADB,
    LAB_POSTGRESQL,
    LAB_SQLITE, /* a file */
    LAB_ZOOKEEPER,
    LAB_ETCD,
    LAB_SERVERS
} lab_server;

#define LAB_NEED(server) (1u << (server))

#define LAB_SESSION_MS 3000 /* of ZooKeeper and etcd, where the lease is the session */

/* Empty: not at hand; strategies that need it are left out, and that is told. */
typedef struct lab_site {
    char url[LAB_SERVERS][512];
} lab_site;

const char *lab_server_name(lab_server server); /* "redis", "redis-nodes", … */

/* ---- Strategies ------------------------------------------------------------------------------ */

typedef struct lab_strategy lab_strategy;
typedef struct lab_buyer lab_buyer;

typedef enum lab_sale {
    LAB_SOLD,
    LAB_SOLD_OUT, /* the scheme saw that nothing is left */
    LAB_REFUSED,  /* gave up although there may be stock: a version changed, a wait was too long */
    LAB_FAILED,   /* an error, in buyer->note */
} lab_sale;

/* How long things take, for runs and hazards alike. Zero: as the strategy likes it. */
typedef struct lab_pace {
    int64_t lease_ms; /* of schemes that have one */
    int64_t wait_ms;  /* how long a buyer waits for the lock; 0: for ever, below: not at all */
    int64_t work_us;  /* between reading the stock and writing it */
    int64_t skew_ms;  /* this buyer's clock is ahead by so much, for schemes that use it */
} lab_pace;

struct lab_buyer {
    const lab_strategy *strategy;
    const lab_site *site;
    lab_pace pace;
    int process, thread;
    const char *resource; /* what is locked and sold: "goods:1" */
    uint64_t tries;       /* counted by the strategy: attempts to lock, to swap, to insert */
    char note[256];       /* why the last call failed */
    void *own;            /* the strategy's */
    void *shared;         /* the strategy's, one a process: made by `open_process` */
    void *stock;          /* the books' own connection */
    /* Where a hazard may strike; NULL in ordinary runs. */
    void (*point)(lab_buyer *buyer, const char *name);
    void *point_data;
};

/* A named moment. Costs nothing when no hazard listens. */
static inline void lab_point(lab_buyer *buyer, const char *name)
{
    if (buyer->point)
        buyer->point(buyer, name);
}

/* Fills buyer->note; returns false, so that `return lab_note(buyer, "…")` reads well. */
bool lab_note(lab_buyer *buyer, const char *format, ...) __attribute__((format(printf, 2, 3)));

int64_t lab_now_us(void); /* monotonic */
int64_t
lab_until(const lab_buyer *buyer); /* when its patience ends, on that clock; INT64_MAX: never */

/* Hazards that a strategy claims to survive; see hazards/. */
typedef uint64_t lab_hazards;

struct lab_strategy {
    const char *id;    /* the row: "R3" */
    const char *name;  /* what one types: "redis-set-px" */
    const char *title; /* one line for people */
    unsigned needs;    /* LAB_NEED(…) | … */
    lab_server stock;  /* who keeps the books */
    bool product;
    int64_t lease_ms;     /* where it is not the pace's to choose: the session's. 0: it is */
    bool no_lease;        /* nothing ends the lock but its holder (or its connection) */
    bool uses_clock;      /* asks the client's own clock */
    bool renewed_outside; /* by somebody who outlives the holder */
    bool explicit_lease;  /* given by hand */
    int processes;        /* the buyers are spread over so many; 0: as the plan says */
    bool one_process;     /* right inside one process only */
    bool oversells;       /* known to be broken: the checker must say so */
    lab_hazards survives; /* claims; a claim that does not hold fails the run */

    bool (*open_process)(lab_buyer *buyer); /* may be NULL: sets buyer->shared, once a process */
    void (*close_process)(lab_buyer *buyer);
    bool (*open)(lab_buyer *buyer); /* may be NULL */
    void (*close)(lab_buyer *buyer);
    lab_sale (*buy)(lab_buyer *buyer);  /* NULL: lock, sell from the books, unlock */
    lab_sale (*sell)(lab_buyer *buyer); /* NULL: lab_sell. The product presents its fence */
    /* true: it is ours. false with an empty note: not obtained in time. */
    bool (*lock)(lab_buyer *buyer);
    /* true: given back. false: it was not ours any more, or failed (note). */
    bool (*unlock)(lab_buyer *buyer);
    /* What a careful program can ask while it holds, for `dibs lab adapter`. NULL: the scheme cannot tell. */
    bool (*held)(lab_buyer *buyer);
    uint64_t (*fence)(lab_buyer *buyer);
};

/* The lease that such a buyer has when the pace asks for this one. */
static inline int64_t lab_lease(const lab_strategy *s, int64_t asked_ms)
{
    return s->lease_ms ? s->lease_ms : asked_ms;
}

extern const lab_strategy *const lab_strategies[]; /* NULL-terminated, in the order of the rows */

/* By name, or by row (then it may be several: call with `from` of the last found). NULL: no more. */
const lab_strategy *lab_find(const char *word, const lab_strategy *from);

/* ---- The books ------------------------------------------------------------------------------- */

/* The stock of one resource: a row of a table, or a key of Redis, as the strategy's row says. */
bool lab_stock_open(lab_buyer *buyer);
void lab_stock_close(lab_buyer *buyer);
bool lab_stock_set(lab_buyer *buyer, int64_t value); /* also version 0, and tables if missing */
bool lab_stock_read(lab_buyer *buyer, int64_t *value);
bool lab_stock_write(lab_buyer *buyer, int64_t value);

/* Read, check, work, write: what stands between lock and unlock. */
lab_sale lab_sell(lab_buyer *buyer);

/* ---- Buyers ---------------------------------------------------------------------------------- */

/* Opens books and strategy; false: buyer->note says why, and nothing is left. */
bool lab_buyer_open(lab_buyer *buyer);
void lab_buyer_close(lab_buyer *buyer);
lab_sale lab_buy(lab_buyer *buyer);

/* ---- Runs ------------------------------------------------------------------------------------ */

typedef struct lab_plan {
    int64_t processes, threads, loops, stock;
    int64_t limit_ms; /* a run that takes longer is ended and says so */
    lab_pace pace;
    const char *resource; /* what is sold; NULL: "goods:1" */
} lab_plan;

typedef struct lab_result {
    const lab_strategy *strategy;
    char error[300];            /* it could not run at all */
    int64_t processes, threads; /* as it was run */
    int64_t buyers, asked;
    int64_t sold, sold_out, refused, failed;
    int64_t left;          /* what the books say */
    int64_t oversold;      /* sold, and the books do not know: sold - (stock - left), if above 0 */
    int64_t lost;          /* gone from the books, and not sold */
    bool cut;              /* ended at its limit */
    int64_t idle_ms;       /* then: how long before that the last answer came */
    double seconds;        /* first request to last answer */
    double p50_us, p99_us; /* of a purchase */
    double tries_per_sale; /* NAN: the scheme does not count */
    double requests_per_sale; /* as the servers counted; NAN: they do not tell */
    int64_t most, least;      /* pieces that one buyer got */
    char note[256];           /* of a failure, if there was one */
} lab_result;

void lab_run(const lab_strategy *strategy, const lab_site *site, const lab_plan *plan,
             lab_result *out);

/* What the books and the buyers say together. */
bool lab_is_correct(const lab_result *r);
/* Is this what its row promises? A scheme known to oversell must be caught at it. */
bool lab_as_promised(const lab_result *r, const lab_plan *plan);
/* A run that was cut while its buyers were still being served is slow, not stuck. */
bool lab_is_stuck(const lab_result *r);
const char *lab_verdict(const lab_result *r); /* "correct", "oversold", "lost", "stuck", … */

/* Requests that the servers of `needs` have counted so far; -1: one of them does not tell. */
int64_t lab_requests(const lab_site *site, unsigned needs);

#endif
