/* D4: optimistic, with a version: read number and version, write if the version is still that one. With
 * a retry it is right, and the more buyers meet, the more often they try; without, buyers are sent away
 * while there is stock. */
#include "sql_buyer.h"

/* 1: sold, 0: another was faster, -1: failed, 2: sold out. */
static int try_once(lab_buyer *buyer)
{
    int64_t row[2], changed;

    buyer->tries++;
    if (lab_sql_read(buyer, buyer->own, row, 2,
                     "SELECT stock, version FROM lab_stock WHERE goods = '%s'",
                     buyer->resource) <= 0)
        return -1;
    if (row[0] < 1)
        return 2;
    lab_point(buyer, "between read and write");
    changed = lab_sql_run(buyer, buyer->own,
                          "UPDATE lab_stock SET stock = %lld, version = version + 1 WHERE goods = "
                          "'%s' AND version = %lld",
                          (long long)row[0] - 1, buyer->resource, (long long)row[1]);
    return changed < 0 ? -1 : changed > 0;
}

static lab_sale buy_patiently(lab_buyer *buyer)
{
    int got;

    while ((got = try_once(buyer)) == 0)
        continue;
    return got < 0 ? LAB_FAILED : got == 2 ? LAB_SOLD_OUT : LAB_SOLD;
}

static lab_sale buy_if_lucky(lab_buyer *buyer)
{
    int got = try_once(buyer);

    return got < 0 ? LAB_FAILED : got == 2 ? LAB_SOLD_OUT : got ? LAB_SOLD : LAB_REFUSED;
}

LAB_TWINS(lab_d4, "D4", "version", "version number, tried again", .open = lab_sql_buyer_open,
          .close = lab_sql_buyer_close, .buy = buy_patiently);
LAB_TWINS(lab_d4_once, "D4", "version-once", "version number, tried once",
          .open = lab_sql_buyer_open, .close = lab_sql_buyer_close, .buy = buy_if_lucky);
