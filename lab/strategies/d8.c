/* D8: a table with a row for each method, locked by SELECT … FOR UPDATE until COMMIT. The database lets
 * others wait and frees the lock of who dies; but a holder keeps a connection and a transaction. */
#include "sql_buyer.h"

static bool d8_open(lab_buyer *buyer)
{
    if (!lab_sql_buyer_open(buyer))
        return false;
    lab_sql_run(buyer, buyer->own,
                "CREATE TABLE IF NOT EXISTS lab_method (name VARCHAR(64) PRIMARY KEY, signature "
                "VARCHAR(200) NOT NULL)");
    lab_sql_run(buyer, buyer->own, "INSERT INTO lab_method VALUES ('%s', 'sell(goods, count)')",
                buyer->resource);
    buyer->note[0] = '\0'; /* both may have been there */
    return true;
}

static bool d8_lock(lab_buyer *buyer)
{
    int64_t one;

    buyer->tries++;
    if (lab_sql_run(buyer, buyer->own, "BEGIN") < 0)
        return false;
    if (lab_sql_read(buyer, buyer->own, &one, 1,
                     "SELECT 1 FROM lab_method WHERE name = '%s' FOR UPDATE", buyer->resource) == 1)
        return true;
    lab_sql_run(buyer, buyer->own, "ROLLBACK");
    return false;
}

static bool d8_unlock(lab_buyer *buyer)
{
    return lab_sql_run(buyer, buyer->own, "COMMIT") >= 0;
}

LAB_TWINS(lab_d8, "D8", "method-row", "a row a method, FOR UPDATE until COMMIT", .no_lease = true,
          .open = d8_open, .close = lab_sql_buyer_close, .lock = d8_lock, .unlock = d8_unlock);
