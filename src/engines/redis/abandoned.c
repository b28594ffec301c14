/* See abandoned.h. */
#define _GNU_SOURCE
#include "engines/redis/abandoned.h"

#include <stdlib.h>
#include <string.h>

void dibs__abandoned_init(dibs__abandoned *a, dibs__sink *sink, const char *text)
{
    memset(a, 0, sizeof *a);
    a->sink = sink;
    a->text = text;
    pthread_mutex_init(&a->lock, NULL);
}

void dibs__abandoned_fini(dibs__abandoned *a)
{
    free(a->list);
    pthread_mutex_destroy(&a->lock);
}

/* ---- The list; with the lock ----------------------------------------------------------------- */

static bool make_room(dibs__abandoned *a)
{
    size_t room = a->room ? 2 * a->room : 8;
    struct dibs__abandoned_conn *list;

    if (a->count < a->room)
        return true;
    list = realloc(a->list, room * sizeof *list);
    if (!list)
        return false;
    a->list = list;
    a->room = room;
    return true;
}

static bool keep(dibs__abandoned *a, const dibs__conn *c)
{
    struct dibs__abandoned_conn *e;

    if (!c->id || !c->run[0] || !make_room(a))
        return false;
    e = &a->list[a->count++];
    e->number = ++a->last;
    e->id = c->id;
    memcpy(e->run, c->run, sizeof e->run);
    atomic_store(&a->newest, e->number);
    return true;
}

static void drop(dibs__abandoned *a, size_t i)
{
    a->count--;
    memmove(a->list + i, a->list + i + 1, (a->count - i) * sizeof *a->list);
    if (a->count == 0)
        atomic_store(&a->newest, 0);
}

/* The server was started anew, or it is another one: they are gone, and their numbers are strangers'. */
static void drop_other_runs(dibs__abandoned *a, const dibs__conn *c)
{
    for (size_t i = a->count; i > 0; i--)
        if (strcmp(a->list[i - 1].run, c->run) != 0)
            drop(a, i - 1);
}

/* ---- What others use ------------------------------------------------------------------------- */

static void warn(dibs__abandoned *a)
{
    bool first;

    pthread_mutex_lock(&a->lock);
    first = !a->warned;
    a->warned = true;
    pthread_mutex_unlock(&a->lock);
    if (first)
        a->sink->log(
            a->sink, DIBS_LOG_WARNING,
            "%s: a connection with unanswered requests was lost and cannot be ended at the "
            "server: they may still take effect, late; allow the user +client|id "
            "+client|kill +info",
            a->text);
}

void dibs__abandoned_add(dibs__abandoned *a, dibs__conn *c)
{
    bool kept;

    dibs__conn_drop_unsent(c);
    pthread_mutex_lock(&a->lock);
    kept = keep(a, c);
    pthread_mutex_unlock(&a->lock);
    if (!kept)
        warn(a);
}

static void write_kill(dibs__bytes *out, int64_t id)
{
    dibs__resp_begin(out, 4);
    dibs__resp_text(out, "CLIENT");
    dibs__resp_text(out, "KILL");
    dibs__resp_text(out, "ID");
    dibs__resp_number(out, id);
}

size_t dibs__abandoned_write(dibs__abandoned *a, const dibs__conn *c, dibs__bytes *out,
                             uint64_t *upto)
{
    size_t n = 0;

    *upto = atomic_load(&a->newest);
    if (*upto <= c->ended || !c->run[0])
        return 0;
    pthread_mutex_lock(&a->lock);
    *upto = a->last;
    drop_other_runs(a, c);
    for (size_t i = 0; i < a->count; i++) {
        if (a->list[i].number <= c->ended)
            continue; /* on its way already */
        write_kill(out, a->list[i].id);
        n++;
    }
    pthread_mutex_unlock(&a->lock);
    return n;
}

/* 0 and 1 both mean that it is gone. */
void dibs__abandoned_reply(dibs__abandoned *a, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_INTEGER)
        warn(a);
}

void dibs__abandoned_ended(dibs__abandoned *a, uint64_t upto)
{
    pthread_mutex_lock(&a->lock);
    while (a->count > 0 && a->list[0].number <= upto) /* they are in this order */
        drop(a, 0);
    pthread_mutex_unlock(&a->lock);
}

bool dibs__abandoned_end(dibs__abandoned *a, dibs__conn *c, dibs__deadline until)
{
    dibs__bytes bytes = {0};
    uint64_t upto;
    size_t n = dibs__abandoned_write(a, c, &bytes, &upto);
    redisReply **replies = n ? calloc(n, sizeof *replies) : NULL;
    bool ok = !n || (replies && dibs__conn_ask(c, &bytes, replies, n, until, NULL) == DIBS_OK);

    for (size_t i = 0; replies && i < n; i++) {
        if (replies[i])
            dibs__abandoned_reply(a, replies[i]);
        freeReplyObject(replies[i]);
    }
    if (n && ok) {
        c->ended = upto;
        dibs__abandoned_ended(a, upto);
    }
    free(replies);
    dibs__bytes_fini(&bytes);
    return ok;
}
