#define _GNU_SOURCE
#include "engines/zookeeper/exchange.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

/* ---- Making and freeing ---------------------------------------------------------------------- */

dibs__zk_exchange *dibs__zk_exchange_new(dibs__zk *z)
{
    dibs__zk_exchange *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->z = z;
    for (size_t i = 0; i < DIBS__ZK_REPLIES; i++)
        e->reply[i].e = e;
    return e;
}

static void destroy(dibs__zk_exchange *e)
{
    for (size_t i = 0; i < DIBS__ZK_REPLIES; i++)
        free(e->reply[i].data);
    for (size_t i = 0; i < e->name_count; i++)
        free(e->names[i]);
    free(e->names);
    free(e);
}

void dibs__zk_exchange_drop(dibs__zk_exchange *e)
{
    if (dibs__answer_leave(&e->answer))
        destroy(e);
}

/* ---- Requests -------------------------------------------------------------------------------- */

dibs_status dibs__zk_exchange_begin(dibs__zk *z, dibs_error *err)
{
    pthread_mutex_lock(&z->mutex);
    if (z->zh && z->state == DIBS__ZK_OPEN)
        return DIBS_OK;
    pthread_mutex_unlock(&z->mutex);
    return dibs__zk_fail(z, ZSESSIONEXPIRED, err);
}

dibs__zk_exchange *dibs__zk_expect(dibs__zk_exchange *e)
{
    if (dibs__answer_came(&e->answer)) {
        e->next = e->z->exchanges;
        e->at = &e->z->exchanges;
        if (e->next)
            e->next->at = &e->next;
        e->z->exchanges = e;
    }
    dibs__answer_expect(&e->answer);
    return e;
}

dibs__zk_reply *dibs__zk_expect_reply(dibs__zk_exchange *e, size_t i)
{
    return &dibs__zk_expect(e)->reply[i];
}

/* With the mutex, before the last answer is given. */
static void delist(dibs__zk_exchange *e)
{
    *e->at = e->next;
    if (e->next)
        e->next->at = e->at;
    if (!e->z->exchanges)
        pthread_cond_broadcast(&e->z->cond); /* its thread may wait for that */
}

void dibs__zk_exchange_sent(dibs__zk_exchange *e, int rc)
{
    if (rc == ZOK)
        return;
    e->rc = rc;
    if (dibs__answer_awaited(&e->answer) == 1)
        delist(e);
    dibs__answer_expect_none(&e->answer);
}

dibs_status dibs__zk_exchange_wait(dibs__zk_exchange *e, dibs__deadline until, dibs_error *err)
{
    dibs__zk *z = e->z;
    int rc;

    pthread_mutex_unlock(&z->mutex);
    dibs__answer_wait(&e->answer, z->backend.env, until);
    rc = dibs__zk_exchange_rc(e);
    return rc == ZOK ? DIBS_OK : dibs__zk_fail(z, rc, err);
}

int dibs__zk_exchange_rc(dibs__zk_exchange *e)
{
    int rc;

    pthread_mutex_lock(&e->z->mutex);
    rc = dibs__answer_came(&e->answer) ? e->rc : ZOPERATIONTIMEOUT;
    pthread_mutex_unlock(&e->z->mutex);
    return rc;
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* With the mutex; leaves it. */
static void answered(dibs__zk_exchange *e)
{
    dibs__zk *z = e->z;
    bool over;

    if (dibs__answer_awaited(&e->answer) == 1)
        delist(e);
    over = dibs__answer_give(&e->answer);
    pthread_mutex_unlock(&z->mutex);
    if (over)
        destroy(e);
}

void dibs__zk_exchange_on_text(int rc, const char *value, const void *data)
{
    dibs__zk_exchange *e = (dibs__zk_exchange *)(uintptr_t)data;

    (void)value;
    pthread_mutex_lock(&e->z->mutex);
    if (rc != ZOK)
        e->rc = rc;
    answered(e);
}

void dibs__zk_exchange_on_void(int rc, const void *data)
{
    dibs__zk_exchange_on_text(rc, NULL, data);
}

void dibs__zk_reply_on_data(int rc, const char *value, int size, const struct Stat *stat,
                            const void *data)
{
    dibs__zk_reply *p = (dibs__zk_reply *)(uintptr_t)data;

    pthread_mutex_lock(&p->e->z->mutex);
    p->rc = rc;
    if (rc == ZOK) {
        p->size = value && size > 0 ? (size_t)size : 0;
        p->stat = *stat;
        p->data = malloc(p->size + 1);
        if (!p->data)
            p->rc = ZSYSTEMERROR;
        else if (p->size)
            memcpy(p->data, value, p->size);
    } else if (rc != ZNONODE) {
        p->e->rc = rc;
    }
    answered(p->e);
}

void dibs__zk_reply_on_stat(int rc, const struct Stat *stat, const void *data)
{
    dibs__zk_reply *p = (dibs__zk_reply *)(uintptr_t)data;

    pthread_mutex_lock(&p->e->z->mutex);
    p->rc = rc;
    if (rc == ZOK)
        p->stat = *stat;
    else if (rc != ZNONODE)
        p->e->rc = rc;
    answered(p->e);
}

void dibs__zk_reply_on_path(int rc, const char *path, const void *data)
{
    dibs__zk_reply *p = (dibs__zk_reply *)(uintptr_t)data;

    pthread_mutex_lock(&p->e->z->mutex);
    p->rc = rc;
    if (rc == ZOK) {
        p->data = strdup(path);
        p->rc = p->data ? ZOK : ZSYSTEMERROR;
    }
    if (p->rc != ZOK)
        p->e->rc = p->rc;
    answered(p->e);
}

void dibs__zk_exchange_on_names(int rc, const struct String_vector *names, const void *data)
{
    dibs__zk_exchange *e = (dibs__zk_exchange *)(uintptr_t)data;

    pthread_mutex_lock(&e->z->mutex);
    if (rc != ZOK && rc != ZNONODE)
        e->rc = rc;
    e->names = rc == ZOK ? calloc((size_t)names->count + 1, sizeof *e->names) : NULL;
    for (int i = 0; e->names && i < names->count; i++) {
        e->names[e->name_count] = strdup(names->data[i]);
        if (e->names[e->name_count])
            e->name_count++;
    }
    answered(e);
}

void dibs__zk_exchanges_lost(dibs__zk *z)
{
    dibs__zk_exchange *e;

    for (;;) {
        pthread_mutex_lock(&z->mutex);
        e = z->exchanges;
        if (!e)
            break;
        e->rc = ZCLOSING;
        while (dibs__answer_awaited(&e->answer) > 1)
            dibs__answer_expect_none(&e->answer);
        answered(e);
    }
    pthread_mutex_unlock(&z->mutex);
}
