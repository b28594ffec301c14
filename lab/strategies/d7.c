/* D7: a row in a table with a unique key is the lock: INSERT takes it, DELETE gives it back. There is no
 * end to it but the DELETE: who dies leaves it for ever. No waiting (one asks again), not reentrant, in
 * no order. */
#include "sql_buyer.h"

static bool d7_open(lab_buyer *buyer)
{
    return lab_sql_buyer_open(buyer) &&
           (lab_sql_run(buyer, buyer->own,
                        "CREATE TABLE IF NOT EXISTS lab_lock (name VARCHAR(64) PRIMARY KEY)") >=
                0 ||
            lab_sql_trouble_of(buyer->own) == LAB_SQL_DUPLICATE); /* another made it just now */
}

static int ask(lab_buyer *buyer)
{
    lab_sql_trouble trouble;

    if (lab_sql_run(buyer, buyer->own, "INSERT INTO lab_lock VALUES ('%s')", buyer->resource) == 1)
        return 1;
    trouble = lab_sql_trouble_of(buyer->own);
    if (trouble == LAB_SQL_OTHER)
        return -1;
    buyer->note[0] = '\0'; /* taken, or a deadlock of two who asked: ask again */
    lab_point(buyer, "after a refusal");
    return 0;
}

static bool d7_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, ask);
}

static bool d7_unlock(lab_buyer *buyer)
{
    return lab_sql_run(buyer, buyer->own, "DELETE FROM lab_lock WHERE name = '%s'",
                       buyer->resource) == 1;
}

LAB_TWINS(lab_d7, "D7", "insert-lock", "INSERT a unique row, DELETE it", .no_lease = true,
          .open = d7_open, .close = lab_sql_buyer_close, .lock = d7_lock, .unlock = d7_unlock);
