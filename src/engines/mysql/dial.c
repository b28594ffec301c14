/* Connecting in a thread of its own: libmariadb looks a host name up and shakes hands for TLS in one go, whatever
 * deadline there is, also in its non-blocking form. */
#define _GNU_SOURCE
#include "engines/mysql/mysql.h"

#include "net/detached.h"

#include <stdlib.h>

#define LONGEST (3600 * DIBS__SECOND)

struct dibs__my_dial {
    dibs__detached *detached;
    MYSQL *m;
    dibs__my_address address;
    int64_t span;
    bool late;
};

/* The clock is the system's: nobody else's may be there when it is used. */
static void run(void *task)
{
    dibs__my_dial *d = task;
    const dibs__env *env = &dibs__env_system;

    d->late = dibs__my_connect(d->m, &d->address, env, dibs__after(env, d->span)) < 0;
}

static void drop(void *task)
{
    dibs__my_dial *d = task;

    if (d->m)
        dibs__my_close(d->m);
    dibs__my_address_fini(&d->address);
    free(d);
}

dibs__my_dial *dibs__my_dial_start(const dibs__my_address *address, int64_t span, int notice)
{
    dibs__my_dial *d = calloc(1, sizeof *d);
    unsigned seconds;

    if (!d)
        return NULL;
    d->span = span < LONGEST ? span : LONGEST;
    seconds = (unsigned)(d->span / DIBS__SECOND + 1); /* the handshake's own bound */
    if (dibs__my_address_copy(&d->address, address) && (d->m = dibs__my_new(address)) != NULL) {
        mysql_options(d->m, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
        d->detached = dibs__detached_start(run, drop, d, notice);
    }
    if (!d->detached) {
        drop(d);
        return NULL;
    }
    return d;
}

bool dibs__my_dial_is_over(dibs__my_dial *d)
{
    return dibs__detached_is_over(d->detached);
}

bool dibs__my_dial_wait(dibs__my_dial *d, const dibs__env *env, dibs__deadline until)
{
    return dibs__detached_wait(d->detached, env, until);
}

MYSQL *dibs__my_dial_end(dibs__my_dial *d)
{
    MYSQL *m = NULL;

    if (!dibs__detached_end(d->detached))
        return NULL;
    if (!d->late) {
        m = d->m;
        d->m = NULL;
    }
    drop(d);
    return m;
}
