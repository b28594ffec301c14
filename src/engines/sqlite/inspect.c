/* Inspect and list, of locks and of cells: one read transaction on a connection of its own, which waits for nobody and
 * holds up nobody, however long the list is. Nothing is changed: who has expired or died is left
 * out of what is shown. It ends at the caller's deadline. */
#include "core/error.h"
#include "core/report.h"
#include "engines/sqlite/sqlite.h"

#include <string.h>

#define STEPS 1000 /* of SQLite's machine between two looks at the clock */

typedef struct inspection {
    dibs__lite *e;
    sqlite3 *db;
    sqlite3_stmt *sql[DIBS__LITE_INSPECT_STATEMENTS];
    dibs__time now;
    dibs__deadline until;
    dibs__report_builder *out;
    bool waiters; /* show them */
    bool idle;    /* show those, too */
} inspection;

/* ---- Opening and closing --------------------------------------------------------------------- */

static int is_late(void *ctx)
{
    inspection *l = ctx;

    return dibs__now(l->e->base.env) >= l->until;
}

static bool open_inspection(inspection *l)
{
    static const char *const text[] = {
#define X(name, sql) sql,
        DIBS__LITE_INSPECT(X)
#undef X
    };
    int flags =
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW;

    if (sqlite3_open_v2(l->e->path, &l->db, flags, NULL) != SQLITE_OK)
        return false;
    sqlite3_busy_timeout(l->db, dibs__poll_ms(l->e->base.env, l->until));
    sqlite3_progress_handler(l->db, STEPS, is_late, l);
    if (sqlite3_exec(l->db, "PRAGMA query_only = 1; BEGIN", NULL, NULL, NULL) != SQLITE_OK)
        return false;
    for (int i = 0; i < DIBS__LITE_INSPECT_STATEMENTS; i++)
        if (sqlite3_prepare_v2(l->db, text[i], -1, &l->sql[i], NULL) != SQLITE_OK)
            return false;
    return true;
}

static dibs_status close_inspection(inspection *l, bool well, dibs_error *err)
{
    dibs_status status =
        well ? DIBS_OK : dibs__lite_fault(l->db, l->e->path, "cannot look into it", err);

    for (int i = 0; i < DIBS__LITE_INSPECT_STATEMENTS; i++)
        sqlite3_finalize(l->sql[i]);
    sqlite3_close(l->db);
    return status;
}

/* ---- Entries --------------------------------------------------------------------------------- */

static bool is_held(const inspection *l, const dibs__holder *h)
{
    return h->expires > l->now.lease && (h->released || !dibs__lite_dead(l->e, h->who.wake));
}

static bool is_waiting(const inspection *l, const dibs__waiter *w)
{
    return w->alive_until > l->now.lease && !dibs__lite_dead(l->e, w->who.wake);
}

/* Counts those who hold into `record`; shows them, if `show`. */
static int walk_holders(inspection *l, int64_t id, dibs__record *record, bool show)
{
    sqlite3_stmt *q = l->sql[DIBS__LITE_LOOK_HOLDERS];
    dibs__holder h;
    int found;

    record->holders = record->used = 0;
    sqlite3_bind_int64(q, 1, id);
    while ((found = dibs__lite_step(q)) > 0) {
        dibs__lite_read_holder(q, 0, &h);
        if (!is_held(l, &h))
            continue;
        record->holders++;
        record->used += h.who.weight;
        if (show)
            dibs__report_holder(l->out, &h, l->now);
    }
    return found;
}

static int walk_waiters(inspection *l, int64_t id, dibs__record *record, bool show)
{
    sqlite3_stmt *q = l->sql[DIBS__LITE_LOOK_WAITERS];
    dibs__waiter w;
    int found;

    record->waiters = 0;
    sqlite3_bind_int64(q, 1, id);
    while ((found = dibs__lite_step(q)) > 0) {
        dibs__lite_read_waiter(q, 0, &w);
        if (!is_waiting(l, &w))
            continue;
        record->waiters++;
        if (show)
            dibs__report_waiter(l->out, &w, l->now);
    }
    return found;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

typedef struct row {
    int64_t id;
    char name[DIBS_NAME_MAX + 1];
    dibs__record record;
    bool held;
    dibs__holder holder;
} row;

static void read_row(sqlite3_stmt *q, row *out)
{
    int name_at = DIBS__LITE_RECORD_COLUMNS + 12;
    const void *name = sqlite3_column_blob(q, name_at);
    size_t size = (size_t)sqlite3_column_bytes(q, name_at);

    if (size > DIBS_NAME_MAX)
        size = DIBS_NAME_MAX;
    memset(out, 0, sizeof *out);
    if (size)
        memcpy(out->name, name, size);
    out->id = sqlite3_column_int64(q, 0);
    dibs__lite_read_record(q, &out->record);
    out->held = sqlite3_column_type(q, DIBS__LITE_RECORD_COLUMNS + 8) != SQLITE_NULL;
    if (out->held)
        dibs__lite_read_holder(q, DIBS__LITE_RECORD_COLUMNS, &out->holder);
}

/* Two walks: the lock is shown before its entries, with their number. */
static int show(inspection *l, row *r)
{
    dibs__record *record = &r->record;

    if (r->held && !is_held(l, &r->holder)) {
        r->held = false;
        record->holders = record->used = 0;
    } else if (!r->held && record->holders && walk_holders(l, r->id, record, false) < 0) {
        return -1;
    }
    if (l->waiters && record->waiters && walk_waiters(l, r->id, record, false) < 0)
        return -1;
    if (!l->idle && record->holders == 0 && record->waiters == 0)
        return 0;
    dibs__report_lock(l->out, r->name, record);
    if (r->held)
        dibs__report_holder(l->out, &r->holder, l->now);
    else if (record->holders && walk_holders(l, r->id, record, true) < 0)
        return -1;
    return l->waiters && record->waiters ? walk_waiters(l, r->id, record, true) : 0;
}

static int show_one(inspection *l, const char *name)
{
    sqlite3_stmt *q = l->sql[DIBS__LITE_LOOK_ONE];
    row r;
    int found;

    dibs__lite_bind_text(q, 1, name);
    found = dibs__lite_step(q);
    if (found <= 0)
        return found;
    read_row(q, &r);
    return show(l, &r);
}

static int show_all(inspection *l, const char *prefix)
{
    sqlite3_stmt *q = l->sql[l->idle ? DIBS__LITE_LOOK_FROM : DIBS__LITE_LOOK_LISTED];
    size_t size = strlen(prefix);
    row r;
    int found;

    dibs__lite_bind_text(q, 1, prefix);
    while ((found = dibs__lite_step(q)) > 0) {
        read_row(q, &r);
        if (strncmp(r.name, prefix, size) != 0)
            return 0;
        if (show(l, &r) < 0)
            return -1;
    }
    return found;
}

static void set_out(inspection *l, dibs__lite *e, dibs__deadline until, dibs__report_builder *out)
{
    const dibs__env *env = e->base.env;

    l->e = e;
    l->until = until;
    l->out = out;
    l->now = (dibs__time){.lease = dibs__now(env), .wall = env->wall(env->ctx)};
}

dibs_status dibs__lite_inspect(dibs__lite *e, const char *name, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err)
{
    inspection l = {.waiters = true, .idle = true};
    dibs_status status;

    set_out(&l, e, until, out);
    dibs__lite_inside();
    status = close_inspection(&l, open_inspection(&l) && show_one(&l, name) >= 0, err);
    dibs__lite_outside();
    return status;
}

dibs_status dibs__lite_list(dibs__lite *e, const char *prefix, bool idle, dibs__deadline until,
                            dibs__report_builder *out, dibs_error *err)
{
    inspection l = {.idle = idle};
    dibs_status status;

    set_out(&l, e, until, out);
    dibs__lite_inside();
    status = close_inspection(&l, open_inspection(&l) && show_all(&l, prefix) >= 0, err);
    dibs__lite_outside();
    return status;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static int show_cells(inspection *l, const dibs__cell_range *range, dibs__cell_page *page)
{
    sqlite3_stmt *q = l->sql[DIBS__LITE_LOOK_CELLS];
    dibs__time now = dibs__lite_cell_time(l->e, l->now);
    char end[DIBS__CELL_KEY_SIZE];
    size_t seen = 0;
    int found;

    dibs__cell_range_end(range->prefix, end);
    dibs__lite_bind_text(q, 1, range->prefix);
    dibs__lite_bind_text(q, 2, end);
    dibs__lite_bind_text(q, 3, range->after);
    sqlite3_bind_int64(q, 4, (int64_t)range->limit);
    sqlite3_bind_int64(q, 5, (int64_t)range->head);
    while ((found = dibs__lite_step(q)) > 0) {
        dibs__cell c;
        bool dead = dibs__lite_read_listed(l->e, q, &c, page->reached);
        dibs__cell_page_put(page, page->reached, &c, now, dead, range->head);
        seen++;
    }
    page->more = seen == range->limit;
    return found;
}

dibs_status dibs__lite_cell_list(dibs__lite *e, const dibs__cell_range *range, dibs__deadline until,
                                 dibs__cell_page *out, dibs_error *err)
{
    inspection l = {0};
    dibs_status status;

    set_out(&l, e, until, NULL);
    dibs__lite_inside();
    status = close_inspection(&l, open_inspection(&l) && show_cells(&l, range, out) >= 0, err);
    dibs__lite_outside();
    return status;
}
