/* The product, on each of its engines: one handle a process, one lock a purchase. */
#include "dibs.h"
#include "strategies.h"

#include <stdlib.h>

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

static bool dibs_take(lab_seat *seat)
{
    dibs_lock_options o = {.wait_ms = seat->pace.wait_ms, .lease_ms = seat->pace.lease_ms};
    dibs_grant *g = NULL;
    dibs_error err = {0};
    dibs_status status = dibs_lock(seat->shared, seat->resource, &o, &g, &err);

    seat->tries++;
    seat->own = g;
    if (status == DIBS_OK)
        return true;
    if (status != DIBS_BUSY)
        lab_note(seat, "%s", err.message);
    return false;
}

static bool dibs_give(lab_seat *seat)
{
    dibs_status status = dibs_unlock(seat->own);

    return status == DIBS_OK || lab_note(seat, "%s", dibs_status_text(status));
}

#define DIBS(row, word, engine, books)                                                \
    {                                                                                 \
        .id = row, .name = "dibs-" word, .title = "dibs on " word, .product = true,   \
        .needs = LAB_NEED(engine), .stock = books, .open_process = dibs_open_process, \
        .close_process = dibs_close_process, .lock = dibs_take, .unlock = dibs_give   \
    }

const lab_strategy lab_dibs_sqlite = DIBS("P", "sqlite", LAB_SQLITE, LAB_SQLITE);
const lab_strategy lab_dibs_redis = DIBS("P", "redis", LAB_REDIS, LAB_REDIS);
const lab_strategy lab_dibs_mariadb = DIBS("P", "mariadb", LAB_MARIADB, LAB_MARIADB);
const lab_strategy lab_dibs_postgresql = DIBS("P", "postgresql", LAB_POSTGRESQL, LAB_POSTGRESQL);
