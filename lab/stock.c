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

bool lab_stock_open(lab_buyer *buyer)
{
    lab_server where = buyer->strategy->stock;
    books *b = calloc(1, sizeof *b);

    if (!b)
        return lab_note(buyer, "out of memory");
    if (where == LAB_REDIS)
        b->redis = lab_redis_open(buyer, buyer->site->url[LAB_REDIS]);
    else
        b->sql = lab_sql_open(buyer, where);
    if (!b->redis && !b->sql) {
        free(b);
        return false;
    }
    buyer->stock = b;
    return true;
}

void lab_stock_close(lab_buyer *buyer)
{
    books *b = buyer->stock;

    if (!b)
        return;
    if (b->redis)
        redisFree(b->redis);
    lab_sql_close(b->sql);
    free(b);
    buyer->stock = NULL;
}

static bool set_row(lab_buyer *buyer, lab_sql *sql, int64_t value)
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
    return (lab_sql_run(buyer, sql, "%s", make[buyer->strategy->stock]) >= 0 ||
            lab_sql_run(buyer, sql, "%s", make[buyer->strategy->stock]) >= 0) &&
           lab_sql_run(buyer, sql, "DELETE FROM lab_stock WHERE goods = '%s'", buyer->resource) >=
               0 &&
           lab_sql_run(buyer, sql,
                       "INSERT INTO lab_stock VALUES ('%s', %" PRId64 ", 0, CURRENT_TIMESTAMP)",
                       buyer->resource, value) == 1;
}

bool lab_stock_set(lab_buyer *buyer, int64_t value)
{
    books *b = buyer->stock;

    return b->redis ? lab_stock_write(buyer, value) : set_row(buyer, b->sql, value);
}

bool lab_stock_read(lab_buyer *buyer, int64_t *value)
{
    books *b = buyer->stock;
    int found;

    if (b->redis) {
        *value = lab_redis(buyer, b->redis, "GET stock:%s", buyer->resource);
        return *value != INT64_MIN;
    }
    found = lab_sql_read(buyer, b->sql, value, 1, "SELECT stock FROM lab_stock WHERE goods = '%s'",
                         buyer->resource);
    return found > 0 ||
           (found == 0 && lab_note(buyer, "there is no stock record for %s", buyer->resource));
}

bool lab_stock_write(lab_buyer *buyer, int64_t value)
{
    books *b = buyer->stock;

    if (b->redis)
        return lab_redis(buyer, b->redis, "SET stock:%s %lld", buyer->resource, (long long)value) ==
               1;
    return lab_sql_run(buyer, b->sql, "UPDATE lab_stock SET stock = %" PRId64 " WHERE goods = '%s'",
                       value, buyer->resource) >= 0;
}
