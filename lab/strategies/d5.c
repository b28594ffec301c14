/* D5: optimistic, with the time of the last change in the place of a version. Right while two changes
 * never bear the same time: here microseconds of the server's clock. */
#include "sql_buyer.h"

#include <stdlib.h>
#include <string.h>

/* "stock<TAB>changed" of the row. */
static char *read_row(lab_buyer *buyer)
{
    char *text =
        lab_sql_text(buyer, buyer->own, "SELECT stock, changed FROM lab_stock WHERE goods = '%s'",
                     buyer->resource);

    if (text && !strchr(text, '\t')) {
        free(text);
        lab_note(buyer, "there is no stock record for %s", buyer->resource);
        return NULL;
    }
    return text;
}

static lab_sale d5_buy(lab_buyer *buyer)
{
    for (;;) {
        char *row = read_row(buyer), *changed;
        int64_t stock, done = 0;
        if (!row)
            return LAB_FAILED;
        buyer->tries++;
        stock = strtoll(row, &changed, 10);
        changed[strcspn(changed, "\n")] = '\0';
        lab_point(buyer, "between read and write");
        if (stock >= 1)
            done = lab_sql_run(buyer, buyer->own,
                               "UPDATE lab_stock SET stock = %lld, changed = CURRENT_TIMESTAMP(6) "
                               "WHERE goods = '%s' AND changed = '%s'",
                               (long long)stock - 1, buyer->resource, changed + 1);
        free(row);
        if (stock < 1 || done != 0)
            return stock < 1 ? LAB_SOLD_OUT : done < 0 ? LAB_FAILED : LAB_SOLD;
    }
}

LAB_TWINS(lab_d5, "D5", "timestamp", "time of change as version", .open = lab_sql_buyer_open,
          .close = lab_sql_buyer_close, .buy = d5_buy);
