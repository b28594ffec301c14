/* The product, on each of its engines: one handle a process, one lock a purchase, and books that refuse
 * an older fence. */
#include "dibs.h"
#include "fenced.h"
#include "lab/finding.h"
#include "strategies.h"

#include <stdlib.h>

typedef struct dibs_client {
    dibs_grant *grant;
    lab_fenced *books;
} dibs_client;

static bool dibs_open_process(lab_buyer *buyer)
{
    lab_server engine = LAB_SERVERS;
    dibs_error err = {0};
    dibs *d = NULL;

    for (int i = 0; i < LAB_SERVERS; i++)
        if (buyer->strategy->needs & LAB_NEED(i))
            engine = (lab_server)i;
    if (dibs_open(buyer->site->url[engine], NULL, &d, &err) != DIBS_OK)
        return lab_note(buyer, "%s", err.message);
    buyer->shared = d;
    return true;
}

static void dibs_close_process(lab_buyer *buyer)
{
    dibs_close(buyer->shared);
}

static bool dibs_buyer_open(lab_buyer *buyer)
{
    dibs_client *b = calloc(1, sizeof *b);

    if (b && (!buyer->strategy->sell || (b->books = lab_fenced_open(buyer)))) {
        buyer->own = b;
        return true;
    }
    free(b);
    return false;
}

static void dibs_buyer_close(lab_buyer *buyer)
{
    dibs_client *b = buyer->own;

    if (b->books)
        lab_fenced_close(b->books);
    free(b);
}

static bool take_lock(lab_buyer *buyer)
{
    dibs_lock_options o = {.wait_ms = buyer->pace.wait_ms,
                           .lease_ms = buyer->strategy->lease_ms ? 0 : buyer->pace.lease_ms};
    dibs_client *b = buyer->own;
    dibs_error err = {0};
    dibs_status status = dibs_lock(buyer->shared, buyer->resource, &o, &b->grant, &err);

    buyer->tries++;
    if (status == DIBS_OK)
        return true;
    if (status != DIBS_BUSY)
        lab_note(buyer, "%s", err.message);
    return false;
}

static lab_sale dibs_sell(lab_buyer *buyer)
{
    dibs_client *b = buyer->own;

    return lab_fenced_sell(buyer, b->books, dibs_grant_fence(b->grant));
}

static bool dibs_give(lab_buyer *buyer)
{
    dibs_client *b = buyer->own;
    dibs_error err;
    dibs_status status = dibs_unlock(&b->grant, &err);

    if (status != DIBS_OK && status != DIBS_LOST)
        lab_note(buyer, "%s", err.message);
    return status == DIBS_OK;
}

static bool dibs_is_held(lab_buyer *buyer)
{
    return dibs_grant_held(((dibs_client *)buyer->own)->grant);
}

static uint64_t dibs_fence_of(lab_buyer *buyer)
{
    return dibs_grant_fence(((dibs_client *)buyer->own)->grant);
}

#define SURVIVES_ALL (LAB_SURVIVES(LAB_HAZARDS) - 1)

#define DIBS(row, word, text, engine, books, ...)                                                \
    {                                                                                            \
        .id = row, .name = "dibs-" word, .title = text, .product = true,                         \
        .needs = LAB_NEED(engine), .stock = books, .open_process = dibs_open_process,            \
        .close_process = dibs_close_process, .open = dibs_buyer_open, .close = dibs_buyer_close, \
        .lock = take_lock, .unlock = dibs_give, .held = dibs_is_held, .fence = dibs_fence_of,    \
        __VA_ARGS__                                                                              \
    }

/* The books check the fence. */
#define FENCED .sell = dibs_sell, .survives = SURVIVES_ALL

const lab_strategy lab_dibs_sqlite =
    DIBS("P", "sqlite", "dibs on SQLite", LAB_SQLITE, LAB_SQLITE, FENCED);
const lab_strategy lab_dibs_redis =
    DIBS("P", "redis", "dibs on Redis", LAB_REDIS, LAB_REDIS, FENCED);
const lab_strategy lab_dibs_mariadb =
    DIBS("P", "mariadb", "dibs on MariaDB", LAB_MARIADB, LAB_MARIADB, FENCED);
const lab_strategy lab_dibs_postgresql =
    DIBS("P", "postgresql", "dibs on PostgreSQL", LAB_POSTGRESQL, LAB_POSTGRESQL, FENCED);

/* Beside redisson-processes; and what remains of the product where nobody checks its fence. */
const lab_strategy lab_dibs_redis_processes =
    DIBS("P", "redis-processes", "the same, buyers in 5 processes instead of 1", LAB_REDIS,
         LAB_REDIS, FENCED, .processes = 5);
const lab_strategy lab_dibs_redis_unfenced =
    DIBS("P", "redis-unfenced", "dibs on Redis, its fence not checked by the stock", LAB_REDIS,
         LAB_REDIS, .survives = SURVIVES_ALL & ~LAB_SURVIVES(LAB_HOLDER_PAUSED));

/* The stock of these is in a plain Redis. No answer is lost on the way to five nodes: the lab's proxy stands
 * before one server. */
const lab_strategy lab_dibs_redlock =
    DIBS("R12", "redlock", "dibs on five Redis (Redlock)", LAB_REDIS_NODES, LAB_REDIS,
         .sell = dibs_sell, .survives = SURVIVES_ALL & ~LAB_SURVIVES(LAB_REPLY_LOST));
const lab_strategy lab_dibs_zookeeper = DIBS("Z2", "zookeeper", "dibs on ZooKeeper", LAB_ZOOKEEPER,
                                             LAB_REDIS, FENCED, .lease_ms = LAB_SESSION_MS);
const lab_strategy lab_dibs_etcd =
    DIBS("E1", "etcd", "dibs on etcd", LAB_ETCD, LAB_REDIS, FENCED, .lease_ms = LAB_SESSION_MS);
