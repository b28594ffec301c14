#include "support/lossy.h"

#include "core/error.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct {
    dibs *d;
    dibs__engine_class class; /* the copy */
    const dibs__engine_class *real;
    _Atomic int way;
    _Atomic int left; /* to be lost */
    _Atomic int commands;
    void (*then)(void *data);
    void *data;
} l;

static bool loses(void)
{
    int left = atomic_load(&l.left);

    while (left != 0) {
        if (left < 0 || atomic_compare_exchange_weak(&l.left, &left, left - 1))
            return true;
    }
    return false;
}

static dibs_status lossy_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                              bool tell, dibs__deadline until, dibs__cell_reply *out,
                              dibs_error *err)
{
    void (*then)(void *data) = l.then;
    int way = atomic_load(&l.way);
    dibs_status status = DIBS_OK;

    if (!loses()) {
        atomic_fetch_add(&l.commands, 1);
        return l.real->cell(e, key, command, tell, until, out, err);
    }
    if (way == LOSSY_ANSWER) {
        atomic_fetch_add(&l.commands, 1);
        status = l.real->cell(e, key, command, tell, until, out, err);
        free(out->data);
        memset(out, 0, sizeof *out);
    }
    l.then = NULL;
    if (then)
        then(l.data);
    if (status != DIBS_OK)
        return status;
    return dibs__fail(err, way == LOSSY_REFUSED ? DIBS_UNAVAILABLE : DIBS_UNKNOWN,
                      "lost on the way");
}

void lossy_put_in(dibs *d)
{
    memset(&l, 0, sizeof l);
    l.d = d;
    l.real = d->class;
    l.class = *d->class;
    l.class.cell = lossy_cell;
    d->class = &l.class;
}

void lossy_take_out(void)
{
    if (l.d)
        l.d->class = l.real;
    l.d = NULL;
}

void lossy_lose(lossy_way way, int times, void (*then)(void *data), void *data)
{
    l.then = then;
    l.data = data;
    atomic_store(&l.way, way);
    atomic_store(&l.left, times);
}

int lossy_commands(void)
{
    return atomic_load(&l.commands);
}
