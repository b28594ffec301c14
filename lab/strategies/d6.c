/* D6: optimistic, with the condition itself: read and check in the program, then write only if there is
 * still enough. Nobody is sent away or tries again because of a change that does not matter to him. */
#include "sql_seat.h"

static lab_sale d6_buy(lab_seat *seat)
{
    int64_t stock, changed;

    if (lab_sql_read(seat, seat->own, &stock, 1, "SELECT stock FROM lab_stock WHERE goods = '%s'",
                     seat->resource) <= 0)
        return LAB_FAILED;
    seat->tries++;
    if (stock < 1)
        return LAB_SOLD_OUT;
    lab_point(seat, "between read and write");
    changed =
        lab_sql_run(seat, seat->own,
                    "UPDATE lab_stock SET stock = stock - 1 WHERE goods = '%s' AND stock - 1 >= 0",
                    seat->resource);
    return changed < 0 ? LAB_FAILED : changed == 0 ? LAB_SOLD_OUT : LAB_SOLD;
}

LAB_TWINS(lab_d6, "D6", "condition", "read, then UPDATE while there is enough",
          .open = lab_sql_seat_open, .close = lab_sql_seat_close, .buy = d6_buy);
