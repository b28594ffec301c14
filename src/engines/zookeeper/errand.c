#define _GNU_SOURCE
#include "engines/zookeeper/errand.h"

#include "core/error.h"
#include "core/thread.h"

#include <stdlib.h>
#include <string.h>

/* ---- Making and freeing ---------------------------------------------------------------------- */

dibs__zk_errand *dibs__zk_errand_new(dibs__zk *z)
{
    dibs__zk_errand *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    dibs__cond_init(&e->cond);
    e->z = z;
    e->wanted = true;
    for (size_t i = 0; i < DIBS__ZK_PARCELS; i++)
        e->parcel[i].e = e;
    return e;
}

/* With the mutex; leaves it. */
static void leave(dibs__zk_errand *e)
{
    bool over = !e->wanted && e->left == 0;

    pthread_mutex_unlock(&e->z->mutex);
    if (!over)
        return;
    for (size_t i = 0; i < DIBS__ZK_PARCELS; i++)
        free(e->parcel[i].data);
    for (size_t i = 0; i < e->name_count; i++)
        free(e->names[i]);
    free(e->names);
    pthread_cond_destroy(&e->cond);
    free(e);
}

void dibs__zk_errand_drop(dibs__zk_errand *e)
{
    pthread_mutex_lock(&e->z->mutex);
    e->wanted = false;
    leave(e);
}

/* ---- Requests -------------------------------------------------------------------------------- */

dibs_status dibs__zk_errand_begin(dibs__zk *z, dibs_error *err)
{
    pthread_mutex_lock(&z->mutex);
    if (z->zh && z->state == DIBS__ZK_OPEN)
        return DIBS_OK;
    pthread_mutex_unlock(&z->mutex);
    return dibs__zk_fail(z, ZSESSIONEXPIRED, err);
}

dibs__zk_errand *dibs__zk_expect(dibs__zk_errand *e)
{
    if (e->left++ == 0) {
        e->next = e->z->errands;
        e->at = &e->z->errands;
        if (e->next)
            e->next->at = &e->next;
        e->z->errands = e;
    }
    return e;
}

dibs__zk_parcel *dibs__zk_expect_parcel(dibs__zk_errand *e, size_t i)
{
    return &dibs__zk_expect(e)->parcel[i];
}

/* With the mutex: no answer is awaited any more. */
static void complete(dibs__zk_errand *e)
{
    *e->at = e->next;
    if (e->next)
        e->next->at = e->at;
    pthread_cond_signal(&e->cond);
    if (!e->z->errands)
        pthread_cond_broadcast(&e->z->cond); /* its thread may wait for that */
}

void dibs__zk_errand_sent(dibs__zk_errand *e, int rc)
{
    if (rc == ZOK)
        return;
    e->rc = rc;
    if (--e->left == 0)
        complete(e);
}

dibs_status dibs__zk_errand_wait(dibs__zk_errand *e, dibs__deadline until, dibs_error *err)
{
    dibs__zk *z = e->z;
    int rc;

    while (e->left > 0 && dibs__now(z->side.env) < until)
        dibs__cond_sleep(&e->cond, &z->mutex, z->side.env, until);
    pthread_mutex_unlock(&z->mutex);
    rc = dibs__zk_errand_rc(e);
    return rc == ZOK ? DIBS_OK : dibs__zk_fail(z, rc, err);
}

int dibs__zk_errand_rc(dibs__zk_errand *e)
{
    int rc;

    pthread_mutex_lock(&e->z->mutex);
    rc = e->left > 0 ? ZOPERATIONTIMEOUT : e->rc;
    pthread_mutex_unlock(&e->z->mutex);
    return rc;
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* With the mutex; leaves it. */
static void answered(dibs__zk_errand *e)
{
    if (--e->left == 0)
        complete(e);
    leave(e);
}

void dibs__zk_errand_on_text(int rc, const char *value, const void *data)
{
    dibs__zk_errand *e = (dibs__zk_errand *)(uintptr_t)data;

    (void)value;
    pthread_mutex_lock(&e->z->mutex);
    if (rc != ZOK)
        e->rc = rc;
    answered(e);
}

void dibs__zk_errand_on_void(int rc, const void *data)
{
    dibs__zk_errand_on_text(rc, NULL, data);
}

void dibs__zk_parcel_on_data(int rc, const char *value, int size, const struct Stat *stat,
                             const void *data)
{
    dibs__zk_parcel *p = (dibs__zk_parcel *)(uintptr_t)data;

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

void dibs__zk_parcel_on_stat(int rc, const struct Stat *stat, const void *data)
{
    dibs__zk_parcel *p = (dibs__zk_parcel *)(uintptr_t)data;

    pthread_mutex_lock(&p->e->z->mutex);
    p->rc = rc;
    if (rc == ZOK)
        p->stat = *stat;
    else if (rc != ZNONODE)
        p->e->rc = rc;
    answered(p->e);
}

void dibs__zk_parcel_on_path(int rc, const char *path, const void *data)
{
    dibs__zk_parcel *p = (dibs__zk_parcel *)(uintptr_t)data;

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

void dibs__zk_errand_on_names(int rc, const struct String_vector *names, const void *data)
{
    dibs__zk_errand *e = (dibs__zk_errand *)(uintptr_t)data;

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

void dibs__zk_errands_lost(dibs__zk *z)
{
    dibs__zk_errand *e;

    for (;;) {
        pthread_mutex_lock(&z->mutex);
        e = z->errands;
        if (!e)
            break;
        e->left = 0;
        e->rc = ZCLOSING;
        complete(e);
        leave(e);
    }
    pthread_mutex_unlock(&z->mutex);
}
