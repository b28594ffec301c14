/* D6: optimistic, with the condition itself: read and check in the program, then write only if there is
 * still enough. Nobody is sent away or tries again because of a change that does not matter to him. */
#include "sql_buyer.h"

static lab_sale d6_buy(lab_buyer *buyer)
{
    int64_t stock, changed;

    if (lab_sql_read(buyer, buyer->own, &stock, 1, "SELECT stock FROM lab_stock WHERE goods = '%s'",
                     buyer->resource) <= 0)
        return LAB_FAILED;
    buyer->tries++;
    if (stock < 1)
        return LAB_SOLD_OUT;
    lab_point(buyer, "between read and write");
    changed =
        lab_sql_run(buyer, buyer->own,
                    "UPDATE lab_stock SET stock = stock - 1 WHERE goods = '%s' AND stock - 1 >= 0",
                    buyer->resource);
    return changed < 0 ? LAB_FAILED : changed == 0 ? LAB_SOLD_OUT : LAB_SOLD;
}

LAB_TWINS(lab_d6, "D6", "condition", "read, then UPDATE while there is enough",
          .open = lab_sql_buyer_open, .close = lab_sql_buyer_close, .buy = d6_buy);
