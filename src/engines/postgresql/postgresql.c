/* The PostgreSQL engine: its table, and opening and closing. What it does is in families/rows; how
 * it speaks to the server is in the files beside this one. */
#define _GNU_SOURCE
#include "engines/postgresql/postgresql.h"

#include "core/error.h"
#include "engines/capabilities.h"

#include <stdlib.h>
#include <string.h>

static const dibs__sql_driver driver = {
    .name = "postgresql",
    .fast = 1u << DIBS__SQL_TAKE | 1u << DIBS__SQL_GIVE | 1u << DIBS__SQL_HAND |
            1u << DIBS__SQL_JOIN | 1u << DIBS__SQL_EXTEND | 1u << DIBS__SQL_TOUCH |
            1u << DIBS__SQL_LOOK_LINE,
    .connect = dibs__pg_connect,
    .disconnect = dibs__pg_disconnect,
    .abandon = dibs__pg_abandon,
    .usable = dibs__pg_usable,
    .row_wait = DIBS__PG_ROW_MS * DIBS__MS,
    .end_strays = dibs__pg_end_strays,
    .prepare = dibs__pg_prepare,
    .prepare_cells = dibs__pg_prepare_cells,
    .exchange = dibs__pg_exchange,
    .rollback = dibs__pg_rollback,
    .listen = dibs__pg_listen,
    .silent = true,
    .missed = dibs__pg_missed,
};

static void free_engine(dibs__pg *e)
{
    dibs__pg_listen_close(e);
    dibs__pg_address_fini(&e->address);
    for (int i = 0; i < DIBS__PG_TEXTS; i++)
        free(e->text[i]);
    free(e);
}

static dibs_status pg_open(const dibs__open_request *request, dibs__engine **out, dibs_error *err)
{
    dibs__pg *e = calloc(1, sizeof *e);
    dibs_status status;

    if (!e)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    e->sql.request_span = request->request_span;
    status = dibs__pg_listen_open(e, err);
    if (status == DIBS_OK)
        status = dibs__pg_address_read(&e->address, request->url, err);
    if (status == DIBS_OK)
        status = dibs__pg_dialect(e->text, e->address.prefix, err);
    if (status == DIBS_OK)
        status = dibs__sql_open(&e->sql, &driver, request, (size_t)e->address.connections, err);
    if (status != DIBS_OK) {
        free_engine(e);
        return status;
    }
    *out = &e->sql.base;
    return DIBS_OK;
}

static void pg_close(dibs__engine *base)
{
    dibs__pg *e = (dibs__pg *)base;

    dibs__pg_wake_close(e);
    dibs__sql_close(&e->sql);
    free_engine(e);
}

static void pg_abandon(dibs__engine *base)
{
    dibs__pg *e = (dibs__pg *)base;

    dibs__sql_abandon(&e->sql);
    dibs__pg_listen_abandon(e);
}

static dibs_status pg_schema(dibs__url *url, char **out, dibs_error *err)
{
    dibs__pg_address address;
    dibs_status status = dibs__pg_address_read(&address, url, err);

    if (status == DIBS_OK) {
        *out = dibs__pg_schema_text(address.prefix);
        if (!*out)
            status = dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    }
    dibs__pg_address_fini(&address);
    return status;
}

extern const dibs__engine_class dibs__engine_postgresql;
const dibs__engine_class dibs__engine_postgresql = {
    .scheme = "postgresql",
    .schemes = (const char *const[]){"postgresql", "postgres", NULL},
    .can = DIBS__SERVER_CAN,
    .open = pg_open,
    .close = pg_close,
    .abandon = pg_abandon,
    .enter = dibs__sql_enter,
    .keep = dibs__sql_keep,
    .release = dibs__sql_release,
    .cancel = dibs__sql_cancel,
    .break_lock = dibs__sql_break,
    .inspect = dibs__sql_inspect,
    .list = dibs__sql_list,
    .cell = dibs__sql_cell,
    .watch = dibs__pg_watch,
    .cell_list = dibs__sql_cell_list,
    .cell_reap = dibs__sql_cell_reap,
    .event_fd = dibs__pg_event_fd,
    .events = dibs__pg_events,
    .schema = pg_schema,
    .examine = dibs__pg_examine,
};
