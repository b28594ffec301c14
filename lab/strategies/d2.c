/* D2: one conditional UPDATE: check and write are one statement, and the database's row lock does the
 * rest. The number before the deduction is not to be had. */
#include "sql_buyer.h"

static lab_sale d2_buy(lab_buyer *buyer)
{
    int64_t changed =
        lab_sql_run(buyer, buyer->own,
                    "UPDATE lab_stock SET stock = stock - 1 WHERE goods = '%s' AND stock >= 1",
                    buyer->resource);

    return changed < 0 ? LAB_FAILED : changed == 0 ? LAB_SOLD_OUT : LAB_SOLD;
}

LAB_TWINS(lab_d2, "D2", "update-if", "one UPDATE with stock >= n", .open = lab_sql_buyer_open,
          .close = lab_sql_buyer_close, .buy = d2_buy);
