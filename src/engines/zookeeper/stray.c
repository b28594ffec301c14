/* Places in queues that nobody wants any more: removed until the server has said so.
 *
 * They vanish with their session, but that may last as long as the process, and everybody who queues would
 * count them. So a removal without an answer is asked again; and a place whose making got none is looked for
 * by the tag in its name. The look sees it, if it was made: it is asked on the same session, which the
 * servers serve in order and on one connection at a time. */
#define _GNU_SOURCE
#include "engines/zookeeper/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN DIBS__SECOND

struct dibs__zk_stray {
    dibs__zk_stray *next;
    dibs__deadline at;
    uint64_t session;
    char *tag;   /* those whose names have it, below `path`; NULL: `path` itself */
    char path[]; /* then the tag */
};

static bool remove_it(dibs__zk *z, const dibs__zk_stray *s);

void dibs__zk_stray_add(dibs__zk *z, uint64_t session, const char *path, const char *tag,
                        int64_t after)
{
    size_t length = strlen(path) + 1;
    dibs__zk_stray *s = malloc(sizeof *s + length + (tag ? strlen(tag) + 1 : 0));

    if (!s)
        return;
    memcpy(s->path, path, length);
    s->tag = tag ? strcpy(s->path + length, tag) : NULL;
    s->session = session;
    s->at = dibs__after(z->backend.env, after);
    if (after == 0 && remove_it(z, s)) {
        free(s);
        return;
    }
    pthread_mutex_lock(&z->mutex);
    s->next = z->strays;
    z->strays = s;
    pthread_cond_signal(&z->cond);
    pthread_mutex_unlock(&z->mutex);
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* The first reply has the path, the second the tag, and the exchange nobody waits for. */
static uint64_t session_of(const dibs__zk_exchange *e)
{
    return (uint64_t)e->reply[0].stat.ephemeralOwner;
}

static void on_removed(int rc, const void *data)
{
    dibs__zk_reply *p = (dibs__zk_reply *)(uintptr_t)data;

    if (rc != ZOK && rc != ZNONODE)
        dibs__zk_stray_add(p->e->z, session_of(p->e), p->data, NULL, AGAIN);
    dibs__zk_exchange_on_void(ZOK, p->e);
}

static void on_listed(int rc, const struct String_vector *names, const void *data)
{
    dibs__zk_reply *p = (dibs__zk_reply *)(uintptr_t)data;
    dibs__zk_exchange *e = p->e;

    if (rc != ZOK && rc != ZNONODE)
        dibs__zk_stray_add(e->z, session_of(e), p->data, e->reply[1].data, AGAIN);
    for (int i = 0; rc == ZOK && i < names->count; i++) {
        char *path;
        if (!strstr(names->data[i], e->reply[1].data) ||
            asprintf(&path, "%s/%s", p->data, names->data[i]) < 0)
            continue;
        dibs__zk_stray_add(e->z, session_of(e), path, NULL, 0);
        free(path);
    }
    dibs__zk_exchange_on_void(ZOK, e);
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* With the mutex. A look follows all that was done before on any server. */
static void send_it(dibs__zk *z, dibs__zk_exchange *e, bool by_tag)
{
    const char *path = e->reply[0].data;

    if (!by_tag) {
        dibs__zk_exchange_sent(
            e, zoo_adelete(z->zh, path, -1, on_removed, dibs__zk_expect_reply(e, 0)));
        return;
    }
    dibs__zk_exchange_sent(e,
                           zoo_async(z->zh, path, dibs__zk_exchange_on_text, dibs__zk_expect(e)));
    dibs__zk_exchange_sent(
        e, zoo_aget_children(z->zh, path, 0, on_listed, dibs__zk_expect_reply(e, 0)));
}

/* false: not now. */
static bool remove_it(dibs__zk *z, const dibs__zk_stray *s)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    bool ready = e && (e->reply[0].data = strdup(s->path)) &&
                 (!s->tag || (e->reply[1].data = strdup(s->tag))),
         ok = false;

    if (ready && dibs__zk_exchange_begin(z, NULL) == DIBS_OK) {
        e->reply[0].stat.ephemeralOwner = (int64_t)s->session;
        if (s->session == z->session)
            send_it(z, e, s->tag != NULL);
        ok = e->rc == ZOK; /* also when it went with its session */
        pthread_mutex_unlock(&z->mutex);
    }
    if (e)
        dibs__zk_exchange_drop(e);
    return ok;
}

dibs__deadline dibs__zk_strays_serve(dibs__zk *z)
{
    dibs__deadline next = DIBS__NEVER, now = dibs__now(z->backend.env);
    dibs__zk_stray *due = NULL;

    pthread_mutex_lock(&z->mutex);
    for (dibs__zk_stray **at = &z->strays; *at;) {
        dibs__zk_stray *s = *at;
        if (s->at > now) {
            next = dibs__sooner(next, s->at);
            at = &s->next;
            continue;
        }
        *at = s->next;
        s->next = due;
        due = s;
    }
    pthread_mutex_unlock(&z->mutex);
    for (dibs__zk_stray *s = due, *after; s; s = after) {
        after = s->next;
        if (!remove_it(z, s)) {
            dibs__zk_stray_add(z, s->session, s->path, s->tag, AGAIN);
            next = dibs__sooner(next, now + AGAIN);
        }
        free(s);
    }
    return next;
}

void dibs__zk_strays_free(dibs__zk *z)
{
    for (dibs__zk_stray *s = z->strays, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    z->strays = NULL;
}
