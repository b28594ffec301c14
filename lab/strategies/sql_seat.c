/* The SQL schemes' seat; see the header. */
#include "sql_seat.h"

bool lab_sql_seat_open(lab_seat *seat)
{
    seat->own = lab_sql_open(seat, seat->strategy->stock);
    return seat->own != NULL;
}

void lab_sql_seat_close(lab_seat *seat)
{
    lab_sql_close(seat->own);
}

lab_sale lab_sql_sell(lab_seat *seat)
{
    int64_t stock;

    if (lab_sql_read(seat, seat->own, &stock, 1, "SELECT stock FROM lab_stock WHERE goods = '%s'",
                     seat->resource) <= 0)
        return LAB_FAILED;
    if (stock < 1)
        return LAB_SOLD_OUT;
    lab_point(seat, "between read and write");
    return lab_sql_run(seat, seat->own, "UPDATE lab_stock SET stock = %lld WHERE goods = '%s'",
                       (long long)stock - 1, seat->resource) >= 0
               ? LAB_SOLD
               : LAB_FAILED;
}
