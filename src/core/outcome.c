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

/* What they carry is freed with the handle's grants and runs, or here. */
void dibs__outcomes_free(dibs *d)
{
    dibs_outcome out;

    while (dibs_take(d, &out)) {
        dibs_lock_report_free(out.lock_report);
        dibs_once_report_free(out.once_report);
        dibs_value_free(&out.value);
        memset(&out, 0, sizeof out);
    }
}
