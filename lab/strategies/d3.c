/* D3: SELECT … FOR UPDATE: the row is locked with the read and stays so until the commit. The buyer
 * holds a connection and a transaction all the while. */
#include "sql_buyer.h"

static lab_sale sell_locked(lab_buyer *buyer)
{
    int64_t stock;

    if (lab_sql_read(buyer, buyer->own, &stock, 1,
                     "SELECT stock FROM lab_stock WHERE goods = '%s' FOR UPDATE",
                     buyer->resource) <= 0)
        return LAB_FAILED;
    if (stock < 1)
        return LAB_SOLD_OUT;
    lab_point(buyer, "between read and write");
    return lab_sql_run(buyer, buyer->own, "UPDATE lab_stock SET stock = %lld WHERE goods = '%s'",
                       (long long)stock - 1, buyer->resource) >= 0
               ? LAB_SOLD
               : LAB_FAILED;
}

static lab_sale d3_buy(lab_buyer *buyer)
{
    lab_sale sale;

    if (lab_sql_run(buyer, buyer->own, "BEGIN") < 0)
        return LAB_FAILED;
    sale = sell_locked(buyer);
    if (sale == LAB_FAILED) {
        lab_sql_run(buyer, buyer->own, "ROLLBACK");
        return sale;
    }
    return lab_sql_run(buyer, buyer->own, "COMMIT") >= 0 ? sale : LAB_FAILED;
}

LAB_TWINS(lab_d3, "D3", "for-update", "SELECT FOR UPDATE, then UPDATE", .open = lab_sql_buyer_open,
          .close = lab_sql_buyer_close, .buy = d3_buy);
