/* The product, on each of its engines: one handle a process, one lock a purchase, and books that refuse
 * an older fence. */
#include "dibs.h"
#include "fenced.h"
#include "lab/finding.h"
#include "strategies.h"

#include <stdlib.h>

typedef struct buyer {
    dibs_grant *grant;
    lab_fenced *books;
} buyer;

static bool dibs_open_process(lab_seat *seat)
{
    lab_server engine = LAB_SERVERS;
    dibs_error err = {0};
    dibs *d = NULL;

    for (int i = 0; i < LAB_SERVERS; i++)
        if (seat->strategy->needs & LAB_NEED(i))
            engine = (lab_server)i;
    if (dibs_open(seat->site->url[engine], NULL, &d, &err) != DIBS_OK)
        return lab_note(seat, "%s", err.message);
    seat->shared = d;
    return true;
}

static void dibs_close_process(lab_seat *seat)
{
    dibs_close(seat->shared);
}

static bool dibs_seat_open(lab_seat *seat)
{
    buyer *b = calloc(1, sizeof *b);

    if (b && (b->books = lab_fenced_open(seat))) {
        seat->own = b;
        return true;
    }
    free(b);
    return false;
}

static void dibs_seat_close(lab_seat *seat)
{
    buyer *b = seat->own;

    lab_fenced_close(b->books);
    free(b);
}

static bool dibs_take(lab_seat *seat)
{
    dibs_lock_options o = {.wait_ms = seat->pace.wait_ms,
                           .lease_ms = seat->strategy->lease_ms ? 0 : seat->pace.lease_ms};
    buyer *b = seat->own;
    dibs_error err = {0};
    dibs_status status = dibs_lock(seat->shared, seat->resource, &o, &b->grant, &err);

    seat->tries++;
    if (status == DIBS_OK)
        return true;
    if (status != DIBS_BUSY)
        lab_note(seat, "%s", err.message);
    return false;
}

static lab_sale dibs_sell(lab_seat *seat)
{
    buyer *b = seat->own;

    return lab_fenced_sell(seat, b->books, dibs_fence(b->grant));
}

static bool dibs_give(lab_seat *seat)
{
    buyer *b = seat->own;
    dibs_status status = dibs_unlock(b->grant);

    return status == DIBS_OK || lab_note(seat, "%s", dibs_status_text(status));
}

#define SURVIVES_ALL (LAB_SURVIVES(LAB_HAZARDS) - 1)

#define DIBS(row, word, engine, books, ...)                                                    \
    {                                                                                          \
        .id = row, .name = "dibs-" word, .title = "dibs on " word, .product = true,            \
        .needs = LAB_NEED(engine), .stock = books, .open_process = dibs_open_process,          \
        .close_process = dibs_close_process, .open = dibs_seat_open, .close = dibs_seat_close, \
        .lock = dibs_take, .sell = dibs_sell, .unlock = dibs_give, .survives = SURVIVES_ALL,   \
        __VA_ARGS__                                                                            \
    }

const lab_strategy lab_dibs_sqlite = DIBS("P", "sqlite", LAB_SQLITE, LAB_SQLITE, .lease_ms = 0);
const lab_strategy lab_dibs_redis = DIBS("P", "redis", LAB_REDIS, LAB_REDIS, .lease_ms = 0);
const lab_strategy lab_dibs_mariadb = DIBS("P", "mariadb", LAB_MARIADB, LAB_MARIADB, .lease_ms = 0);
const lab_strategy lab_dibs_postgresql =
    DIBS("P", "postgresql", LAB_POSTGRESQL, LAB_POSTGRESQL, .lease_ms = 0);

/* The rows of the notes that the product is the answer to; the stock is in a plain Redis. */
const lab_strategy lab_dibs_redlock =
    DIBS("R12", "redlock", LAB_REDIS_NODES, LAB_REDIS, .lease_ms = 0);
const lab_strategy lab_dibs_zookeeper =
    DIBS("Z2", "zookeeper", LAB_ZOOKEEPER, LAB_REDIS, .lease_ms = LAB_SESSION_MS);
const lab_strategy lab_dibs_etcd =
    DIBS("E1", "etcd", LAB_ETCD, LAB_REDIS, .lease_ms = LAB_SESSION_MS);
