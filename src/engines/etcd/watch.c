/* All watches of a handle on one stream. A watch begins "now" rather than at a revision unless there
 * is time: etcd serves watches that begin in the past from a loop that turns ten times a second. Once
 * set up it remembers the revision from which on nothing was seen yet, so that a new connection takes
 * it up there and no event is missed. When the server has compacted that away it ends the watch: then
 * it is created anew, from now on, and a doubt is told once that stands.
 *
 * The server knows a watch by a number that is new for each creation: it refuses one that it has had
 * on this stream, also of a watch that it has ended itself. */
#define _GNU_SOURCE
#include "engines/etcd/error.h"
#include "engines/etcd/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dibs__etcd_watch {
    dibs__node by_tag;    /* the hash is the tag */
    dibs__node by_number; /* the hash is what the server calls it */
    struct dibs__etcd_watch *next;
    bool to_notify; /* in the list of what is to be told */
    bool over;      /* unwatched while it was in that list */
    bool set_up;
    bool missed;          /* events may have been, before it is set up */
    dibs__etcd_news news; /* what is to be told */
    int64_t from;         /* 0: from now on */
    size_t length;
    uint8_t key[];
} watch;

static watch *find(dibs__etcd_client *c, uint64_t tag)
{
    dibs__node *n = dibs__table_first(&c->watches.by_tag, tag);

    return n ? DIBS__FROM(watch, by_tag, n) : NULL;
}

static watch *find_number(dibs__etcd_client *c, int64_t number)
{
    dibs__node *n = dibs__table_first(&c->watches.by_number, (uint64_t)number);

    return n ? DIBS__FROM(watch, by_number, n) : NULL;
}

static void note(dibs__etcd_client *c, watch *w, dibs__etcd_news news)
{
    w->news |= news;
    if (w->to_notify)
        return;
    w->to_notify = true;
    w->next = NULL;
    *c->watches.to_notify_end = w;
    c->watches.to_notify_end = &w->next;
}

/* ---- What goes out --------------------------------------------------------------------------- */

static void push(dibs__etcd_client *c, const Etcd__WatchRequest *request)
{
    if (c->watches.up && !dibs__h2_push(c->h2, &c->watches.stream, &request->base))
        dibs__etcd_leave(c); /* a new connection begins with all of them */
}

static void push_cancel(dibs__etcd_client *c, const watch *w)
{
    Etcd__WatchCancelRequest cancel = ETCD__WATCH_CANCEL_REQUEST__INIT;
    Etcd__WatchRequest request = ETCD__WATCH_REQUEST__INIT;

    cancel.watch_id = (int64_t)w->by_number.hash;
    request.request_union_case = ETCD__WATCH_REQUEST__REQUEST_UNION_CANCEL_REQUEST;
    request.cancel_request = &cancel;
    push(c, &request);
}

static void push_create(dibs__etcd_client *c, watch *w)
{
    Etcd__WatchCreateRequest create = ETCD__WATCH_CREATE_REQUEST__INIT;
    Etcd__WatchRequest request = ETCD__WATCH_REQUEST__INIT;

    if (w->by_number.hash)
        dibs__table_remove(&c->watches.by_number, &w->by_number);
    dibs__table_add(&c->watches.by_number, &w->by_number, ++c->watches.numbers);
    create.key = (ProtobufCBinaryData){w->length, w->key};
    create.start_revision = w->from;
    create.watch_id = (int64_t)w->by_number.hash;
    request.request_union_case = ETCD__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
    request.create_request = &create;
    push(c, &request);
}

/* ---- What comes in --------------------------------------------------------------------------- */

/* The server has ended a watch, or not begun it. What is older than its memory is begun anew; the old
 * number is cancelled too, since the server keeps it. All else (we may not, or a number that it takes
 * for used: then it does not say which) is settled by a new connection. NULL: not one of ours. */
static void on_cancelled(dibs__etcd_client *c, watch *w, const Etcd__WatchResponse *r)
{
    if (w && r->compact_revision > 0) {
        push_cancel(c, w);
        w->from = 0;
        w->set_up = false;
        w->missed = true;
        push_create(c, w);
    } else if (w || r->created || r->watch_id < 0) {
        snprintf(c->watches.refused, sizeof c->watches.refused, "%s",
                 *r->cancel_reason ? r->cancel_reason : "no reason was given");
        dibs__etcd_leave(c);
    } /* else it is one that we have cancelled */
}

static void on_events(dibs__etcd_client *c, watch *w, const Etcd__WatchResponse *r)
{
    for (size_t i = 0; i < r->n_events; i++) {
        const Etcd__Event *e = r->events[i];
        if (e->kv && e->kv->mod_revision >= w->from)
            w->from = e->kv->mod_revision + 1;
        note(c, w, e->type == ETCD__EVENT__EVENT_TYPE__DELETE ? DIBS__ETCD_GONE : DIBS__ETCD_PUT);
    }
}

/* From now on nothing is missed. A watch that was set up before had its place in time already. */
static void on_created(dibs__etcd_client *c, watch *w, const Etcd__WatchResponse *r)
{
    if (w->set_up)
        return;
    w->set_up = true;
    if (w->from == 0)
        w->from = r->header ? r->header->revision + 1 : 0;
    note(c, w, DIBS__ETCD_SET_UP | (w->missed ? DIBS__ETCD_DOUBT : 0));
    w->missed = false;
}

static void on_message(dibs__h2_stream *s, const uint8_t *data, size_t length)
{
    dibs__etcd_client *c = DIBS__FROM(dibs__etcd_client, watches.stream, s);
    Etcd__WatchResponse *r = etcd__watch_response__unpack(NULL, length, data);
    watch *w = r ? find_number(c, r->watch_id) : NULL;

    if (r)
        dibs__etcd_seen(c, data, length);
    if (!r)
        dibs__etcd_leave(c); /* out of memory: come back for it */
    else if (r->canceled)
        on_cancelled(c, w, r);
    else if (w && r->created)
        on_created(c, w, r);
    else if (w)
        on_events(c, w, r);
    if (r)
        etcd__watch_response__free_unpacked(r, NULL);
}

static void on_closed(dibs__h2_stream *s)
{
    dibs__etcd_client *c = DIBS__FROM(dibs__etcd_client, watches.stream, s);

    c->watches.up = false;
    dibs__etcd_leave(c);
}

/* ---- For the thread -------------------------------------------------------------------------- */

/* The stream is opened with the first watch: a handle that never waits has none. */
static void open_stream(dibs__etcd_client *c)
{
    dibs__h2_stream *s = &c->watches.stream;

    memset(s, 0, sizeof *s);
    s->message = on_message;
    s->closed = on_closed;
    c->watches.up = dibs__h2_start(c->h2, s, "/etcdserverpb.Watch/Watch", c->token, true);
    if (!c->watches.up)
        dibs__etcd_leave(c);
}

void dibs__etcd_watches_start(dibs__etcd_client *c)
{
    const dibs__table *t = &c->watches.by_tag;

    if (t->count == 0)
        return;
    open_stream(c);
    for (size_t i = 0; i < t->size; i++)
        for (dibs__node *n = t->slot[i]; n; n = n->next)
            push_create(c, DIBS__FROM(watch, by_tag, n));
}

bool dibs__etcd_watches_next(dibs__etcd_client *c, uint64_t *tag, dibs__etcd_news *news)
{
    watch *w;

    while ((w = c->watches.to_notify)) {
        bool over = w->over;
        c->watches.to_notify = w->next;
        if (!c->watches.to_notify)
            c->watches.to_notify_end = &c->watches.to_notify;
        *tag = w->by_tag.hash;
        *news = w->news;
        w->to_notify = false;
        w->news = 0;
        if (!over)
            return true;
        free(w);
    }
    return false;
}

void dibs__etcd_watches_fini(dibs__etcd_client *c)
{
    dibs__table *t = &c->watches.by_tag;
    uint64_t tag;
    dibs__etcd_news news;

    while (dibs__etcd_watches_next(c, &tag, &news))
        continue;
    for (size_t i = 0; i < t->size; i++)
        for (dibs__node *n = t->slot[i], *next; n; n = next) {
            next = n->next;
            free(DIBS__FROM(watch, by_tag, n));
        }
    dibs__table_fini(t);
    dibs__table_fini(&c->watches.by_number);
    dibs__h2_stream_fini(&c->watches.stream);
}

/* ---- For everybody --------------------------------------------------------------------------- */

bool dibs__etcd_watch(dibs__etcd_client *c, uint64_t tag, const void *key, size_t length,
                      int64_t from)
{
    watch *w = malloc(sizeof *w + length);
    bool ok;

    if (!w)
        return false;
    memset(w, 0, sizeof *w);
    w->from = from;
    w->length = length;
    memcpy(w->key, key, length);
    pthread_mutex_lock(&c->lock);
    ok = dibs__table_reserve(&c->watches.by_tag) && dibs__table_reserve(&c->watches.by_number);
    if (ok) {
        dibs__table_add(&c->watches.by_tag, &w->by_tag, tag);
        if (c->h2 && !c->cut && !c->watches.up)
            open_stream(c);
        push_create(c, w);
        dibs__etcd_flush(c);
    }
    pthread_mutex_unlock(&c->lock);
    if (!ok)
        free(w);
    return ok;
}

void dibs__etcd_unwatch(dibs__etcd_client *c, uint64_t tag)
{
    watch *w;

    pthread_mutex_lock(&c->lock);
    w = find(c, tag);
    if (w) {
        dibs__table_remove(&c->watches.by_tag, &w->by_tag);
        dibs__table_remove(&c->watches.by_number, &w->by_number);
        push_cancel(c, w);
        dibs__etcd_flush(c);
        w->over = true;
        if (!w->to_notify)
            free(w);
    }
    pthread_mutex_unlock(&c->lock);
}
