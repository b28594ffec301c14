/* The latch: a user lock that some session of the handle holds, so that the sleeping one can wait for
 * it.
 *
 * It goes well: as soon as anybody of the handle may stand in the queue, whichever connection is used
 * next takes the latch and keeps it for its life; the sleeper waits for it, in vain. When that
 * connection is gone, the sleeper gets the latch, lets it go again and says that it was free, and
 * the next exchange takes it. When the whole client is gone, its sleeper ends with it: the server
 * finds nobody to answer to.
 *
 * Why not SLEEP(): all of MariaDB's sleepers share one mutex, and KILL QUERY of one of them may
 * stand still for two seconds when another comes or goes, with everybody else behind it. A
 * session that waits for a user lock has a mutex of its own. */
#include "engines/mysql/mysql.h"

#include <string.h>

static dibs_status take(dibs__my_conn *c, dibs__deadline until, dibs_error *err)
{
    dibs__my *e = (dibs__my *)c->base.e;
    dibs__sql_value id = {.kind = DIBS__SQL_BYTES, .bytes = e->base.id};
    dibs__bytes text = {0};
    dibs_status status = DIBS_OK;

    id.size = strlen(id.bytes);
    dibs__my_add_pattern(&text, "", "DO GET_LOCK(CONCAT('" DIBS__MY_LATCH "', $1), 0)", &id);
    dibs__bytes_add(&text, "", 1);
    if (!text.failed)
        status = dibs__my_do(c, text.data, until, err);
    dibs__bytes_fini(&text);
    return status;
}

dibs_status dibs__my_latch_hold(dibs__my_conn *c, dibs__deadline until, dibs_error *err)
{
    dibs__my *e = (dibs__my *)c->base.e;
    dibs_error why = {0};
    dibs_status status;

    if (atomic_load(&e->latched) || c->open || !dibs__my_wake_wanted(e->wake) ||
        atomic_exchange(&e->latched, true))
        return DIBS_OK;
    status = take(c, until, &why);
    if (!c->base.broken)
        return DIBS_OK; /* if nobody has the latch now, the sleeper finds out */
    if (err)
        *err = why;
    return status;
}
