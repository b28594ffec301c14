/* The descriptor and what it announces: outcomes of requests, and losses that no callback reports. */
#include "core/error.h"
#include "core/handle.h"

#include <string.h>

int dibs_fd(const dibs *d)
{
    return dibs__same_process(d) ? d->notice_fd : -1;
}

bool dibs_take(dibs *d, dibs_outcome *out)
{
    dibs__news *n;

    memset(out, 0, sizeof *out);
    if (!dibs__same_process(d))
        return false;
    pthread_mutex_lock(&d->mutex);
    n = d->outcomes.first;
    if (n) {
        dibs__news_drop(d, n);
        n->fill(d, n, out);
    }
    pthread_mutex_unlock(&d->mutex);
    return n != NULL;
}

void dibs__outcomes_free(dibs *d)
{
    dibs_outcome out;

    while (dibs_take(d, &out))
        if (d->free_outcome)
            d->free_outcome(&out);
}
