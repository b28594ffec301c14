/* The MariaDB and MySQL engine: the table of functions, on what the SQL engines share. */
#define _GNU_SOURCE
#include "engines/mysql/mysql.h"

#include "core/error.h"
#include "engines/capabilities.h"

#include <stdlib.h>
#include <time.h>

/* One for keep-alives, and some so that commits of different locks share a flush of the log. */
#define CONNECTIONS DIBS__SQL_CONNECTIONS
#define PAUSE       (50 * DIBS__MS)
#define GOODBYE     (500 * DIBS__MS) /* for leaving nothing behind */

static const dibs__sql_driver driver = {
    .name = "mysql",
    .fast = 1u << DIBS__SQL_TAKE | 1u << DIBS__SQL_GIVE | 1u << DIBS__SQL_EXTEND |
            1u << DIBS__SQL_TOUCH | 1u << DIBS__SQL_HAND | 1u << DIBS__SQL_JOIN,
    .connect = dibs__my_conn_open,
    .disconnect = dibs__my_conn_close,
    .abandon = dibs__my_conn_abandon,
    .usable = dibs__my_conn_usable,
    .row_wait = DIBS__MY_ROW_MS * DIBS__MS,
    .end_strays = dibs__my_end_strays,
    .prepare = dibs__my_prepare,
    .prepare_cells = dibs__my_prepare_cells,
    .exchange = dibs__my_exchange,
    .rollback = dibs__my_rollback,
    .listen = dibs__my_wake_listen,
    .queue_changed = dibs__my_wake_queue_changed,
};

static void free_engine(dibs__my *e)
{
    dibs__my_wake_free(e->wake);
    dibs__my_address_fini(&e->address);
    free(e);
}

/* A server that has no connection free may have one in a moment. The last try may end with our time:
 * what the server said before tells more. */
static dibs_status come_in(dibs__my *e, const dibs__open_request *request, dibs_error *err)
{
    dibs_error said = {0}, why = {0};
    dibs_status status;
    bool full;

    for (;;) {
        atomic_store(&e->full, false);
        status = dibs__sql_open(&e->base, &driver, request, CONNECTIONS, &why);
        full = status == DIBS_UNAVAILABLE && atomic_load(&e->full);
        if (full)
            said = why;
        if (!full || dibs__now(request->env) + PAUSE >= request->until)
            break;
        dibs__sleep(request->env, PAUSE);
    }
    if (err && status != DIBS_OK)
        *err = status == DIBS_UNAVAILABLE && said.message[0] ? said : why;
    return status;
}

static dibs_status my_open(const dibs__open_request *request, dibs__engine **out, dibs_error *err)
{
    dibs__my *e = calloc(1, sizeof *e);
    dibs_status status;

    if (!e)
        return dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
    status = dibs__my_address_read(&e->address, request->url, err);
    if (status == DIBS_OK && !(e->wake = dibs__my_wake_new(e)))
        status = dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory or descriptors");
    if (status == DIBS_OK)
        status = come_in(e, request, err);
    if (status != DIBS_OK) {
        free_engine(e);
        return status;
    }
    *out = &e->base.base;
    return DIBS_OK;
}

static void my_close(dibs__engine *base)
{
    dibs__my *e = (dibs__my *)base;
    dibs__deadline soon = dibs__after(base->env, GOODBYE);

    for (size_t i = 0; i < DIBS__SQL_CONNECTIONS; i++) {
        if (e->base.conn_slot[i].conn && dibs__my_conn_usable(e->base.conn_slot[i].conn)) {
            dibs__my_wake_clean(e->wake, (dibs__my_conn *)e->base.conn_slot[i].conn, soon);
            break;
        }
    }
    dibs__sql_close(&e->base);
    free_engine(e);
}

static void my_abandon(dibs__engine *base)
{
    dibs__sql_abandon((dibs__sql *)base);
    dibs__my_wake_abandon(((dibs__my *)base)->wake);
}

static dibs_status my_schema(dibs__url *url, char **out, dibs_error *err)
{
    dibs__my_address address = {0};
    dibs_status status = dibs__my_address_read(&address, url, err);

    if (status == DIBS_OK && !(*out = dibs__my_schema(address.prefix)))
        status = dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
    dibs__my_address_fini(&address);
    return status;
}

static int my_event_fd(dibs__engine *base)
{
    return dibs__my_wake_fd(((dibs__my *)base)->wake);
}

static void my_events(dibs__engine *base, dibs__deadline until)
{
    (void)until; /* nothing waits for an answer */
    dibs__my_wake_events(((dibs__my *)base)->wake);
}

extern const dibs__engine_class dibs__engine_mysql;
const dibs__engine_class dibs__engine_mysql = {
    .scheme = "mysql",
    .schemes = (const char *const[]){"mysql", "mariadb", NULL},
    .can = DIBS__SERVER_CAN,
    .open = my_open,
    .close = my_close,
    .abandon = my_abandon,
    .enter = dibs__sql_enter,
    .keep = dibs__sql_keep,
    .release = dibs__sql_release,
    .cancel = dibs__sql_cancel,
    .break_lock = dibs__sql_break,
    .inspect = dibs__sql_inspect,
    .list = dibs__sql_list,
    .cell = dibs__sql_cell,
    .watch = dibs__my_watch,
    .cell_list = dibs__sql_cell_list,
    .cell_reap = dibs__sql_cell_reap,
    .event_fd = my_event_fd,
    .events = my_events,
    .schema = my_schema,
    .examine = dibs__my_examine,
};
