/* The books: what is left of the goods, where the strategy's row keeps it. In SQL one row of a table
 * (with a version and a time of change for the optimistic schemes), in Redis one key. */
#include "raw.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdlib.h>

typedef struct books {
    redisContext *redis;
    lab_sql *sql;
} books;

bool lab_stock_open(lab_seat *seat)
{
    lab_server where = seat->strategy->stock;
    books *b = calloc(1, sizeof *b);

    if (!b)
        return lab_note(seat, "out of memory");
    if (where == LAB_REDIS)
        b->redis = lab_redis_open(seat, seat->site->url[LAB_REDIS]);
    else
        b->sql = lab_sql_open(seat, where);
    if (!b->redis && !b->sql) {
        free(b);
        return false;
    }
    seat->stock = b;
    return true;
}

void lab_stock_close(lab_seat *seat)
{
    books *b = seat->stock;

    if (!b)
        return;
    if (b->redis)
        redisFree(b->redis);
    lab_sql_close(b->sql);
    free(b);
    seat->stock = NULL;
}

static bool set_row(lab_seat *seat, lab_sql *sql, int64_t value)
{
    static const char *const make[] = {
        [LAB_MARIADB] =
            "CREATE TABLE IF NOT EXISTS lab_stock (goods VARCHAR(64) PRIMARY KEY, stock "
            "BIGINT NOT NULL, version BIGINT NOT NULL, changed TIMESTAMP(6) NOT NULL)",
        [LAB_POSTGRESQL] =
            "CREATE TABLE IF NOT EXISTS lab_stock (goods VARCHAR(64) PRIMARY KEY, "
            "stock BIGINT NOT NULL, version BIGINT NOT NULL, changed TIMESTAMP(6) NOT "
            "NULL)",
        [LAB_SQLITE] =
            "CREATE TABLE IF NOT EXISTS lab_stock (goods TEXT PRIMARY KEY, stock INTEGER "
            "NOT NULL, version INTEGER NOT NULL, changed TEXT NOT NULL)",
    };

    /* Two who make it at once may both find it missing: then it is there at the second look. */
    return (lab_sql_run(seat, sql, "%s", make[seat->strategy->stock]) >= 0 ||
            lab_sql_run(seat, sql, "%s", make[seat->strategy->stock]) >= 0) &&
           lab_sql_run(seat, sql, "DELETE FROM lab_stock WHERE goods = '%s'", seat->resource) >=
               0 &&
           lab_sql_run(seat, sql,
                       "INSERT INTO lab_stock VALUES ('%s', %" PRId64 ", 0, CURRENT_TIMESTAMP)",
                       seat->resource, value) == 1;
}

bool lab_stock_set(lab_seat *seat, int64_t value)
{
    books *b = seat->stock;

    return b->redis ? lab_stock_write(seat, value) : set_row(seat, b->sql, value);
}

bool lab_stock_read(lab_seat *seat, int64_t *value)
{
    books *b = seat->stock;
    int found;

    if (b->redis) {
        *value = lab_redis(seat, b->redis, "GET stock:%s", seat->resource);
        return *value != INT64_MIN;
    }
    found = lab_sql_read(seat, b->sql, value, 1, "SELECT stock FROM lab_stock WHERE goods = '%s'",
                         seat->resource);
    return found > 0 ||
           (found == 0 && lab_note(seat, "there is no stock record for %s", seat->resource));
}

bool lab_stock_write(lab_seat *seat, int64_t value)
{
    books *b = seat->stock;

    if (b->redis)
        return lab_redis(seat, b->redis, "SET stock:%s %lld", seat->resource, (long long)value) ==
               1;
    return lab_sql_run(seat, b->sql, "UPDATE lab_stock SET stock = %" PRId64 " WHERE goods = '%s'",
                       value, seat->resource) >= 0;
}
