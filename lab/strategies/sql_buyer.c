/* The SQL schemes' buyer; see the header. */
#include "sql_buyer.h"

bool lab_sql_buyer_open(lab_buyer *buyer)
{
    buyer->own = lab_sql_open(buyer, buyer->strategy->stock);
    return buyer->own != NULL;
}

void lab_sql_buyer_close(lab_buyer *buyer)
{
    lab_sql_close(buyer->own);
}

lab_sale lab_sql_sell(lab_buyer *buyer)
{
    int64_t stock;

    if (lab_sql_read(buyer, buyer->own, &stock, 1, "SELECT stock FROM lab_stock WHERE goods = '%s'",
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
