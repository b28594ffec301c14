/* See abandoned.h. */
#define _GNU_SOURCE
#include "engines/redis/abandoned.h"

#include "core/thread.h"
#include "engines/redis/error.h"

#include <stdlib.h>
#include <string.h>

#define TURN DIBS__SECOND /* that one who wants to end them leaves to another */

void dibs__abandoned_init(dibs__abandoned *a, dibs__sink *sink, const char *text)
{
    memset(a, 0, sizeof *a);
    a->sink = sink;
    a->text = text;
    pthread_mutex_init(&a->lock, NULL);
    dibs__cond_init(&a->turned);
}

void dibs__abandoned_fini(dibs__abandoned *a)
{
    free(a->list);
    pthread_cond_destroy(&a->turned);
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

    if (!c->id || !c->run_id[0] || !make_room(a))
        return false;
    e = &a->list[a->count++];
    e->number = ++a->last;
    e->id = c->id;
    memcpy(e->run_id, c->run_id, sizeof e->run_id);
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

static bool same_run(const struct dibs__abandoned_conn *e, const dibs__conn *c)
{
    return strcmp(e->run_id, c->run_id) == 0;
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

static bool has_more(dibs__abandoned *a, const dibs__conn *c)
{
    return atomic_load(&a->newest) > c->ended && c->run_id[0];
}

size_t dibs__abandoned_write(dibs__abandoned *a, dibs__conn *c, dibs__bytes *out)
{
    size_t n = 0;

    if (!has_more(a, c))
        return 0;
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->count; i++) {
        if (a->list[i].number <= c->ended || !same_run(&a->list[i], c))
            continue; /* on its way already, or not of this server */
        write_kill(out, a->list[i].id);
        n++;
    }
    if (!out->failed)
        c->ended = a->last;
    pthread_mutex_unlock(&a->lock);
    return n;
}

/* 0 and 1 both mean that it is gone. One who may not do it will not be let later either. */
bool dibs__abandoned_reply(dibs__abandoned *a, const redisReply *reply)
{
    bool never = dibs__redis_will_never(reply);

    if (never)
        warn(a);
    return never || reply->type == REDIS_REPLY_INTEGER;
}

void dibs__abandoned_ended(dibs__abandoned *a, const dibs__conn *c, uint64_t upto)
{
    pthread_mutex_lock(&a->lock);
    for (size_t i = a->count; i > 0; i--)
        if (a->list[i - 1].number <= upto && same_run(&a->list[i - 1], c))
            drop(a, i - 1);
    pthread_mutex_unlock(&a->lock);
}

void dibs__abandoned_reached(dibs__abandoned *a, const dibs__conn *c)
{
    pthread_mutex_lock(&a->lock);
    for (size_t i = a->count; i > 0 && c->run_id[0]; i--)
        if (!same_run(&a->list[i - 1], c))
            drop(a, i - 1);
    pthread_mutex_unlock(&a->lock);
}

/* ---- In one exchange ------------------------------------------------------------------------- */

static dibs__ending end_all(dibs__abandoned *a, dibs__conn *c, dibs__deadline until)
{
    dibs__bytes bytes = {0};
    uint64_t before = c->ended;
    size_t n = dibs__abandoned_write(a, c, &bytes);
    redisReply **replies = n ? calloc(n, sizeof *replies) : NULL;
    dibs__ending ending = DIBS__ENDED;

    if (n && (!replies || dibs__conn_ask(c, &bytes, replies, n, until, NULL) != DIBS_OK))
        ending = DIBS__END_CUT;
    for (size_t i = 0; replies && i < n; i++) {
        if (replies[i] && !dibs__abandoned_reply(a, replies[i]) && ending == DIBS__ENDED)
            ending = DIBS__END_REFUSED;
        freeReplyObject(replies[i]);
    }
    if (n && ending == DIBS__ENDED)
        dibs__abandoned_ended(a, c, c->ended);
    else if (n)
        c->ended = before;
    free(replies);
    dibs__bytes_fini(&bytes);
    return ending;
}

/* Many threads come at once when all connections were cut, each with a new one. One of them ends them all; who comes
 * after it finds an empty list. One that takes too long is not waited for. */
dibs__ending dibs__abandoned_end(dibs__abandoned *a, dibs__conn *c, dibs__deadline until)
{
    dibs__deadline turn;
    dibs__ending ending;

    if (!has_more(a, c))
        return DIBS__ENDED;
    turn = dibs__sooner(until, dibs__after(c->env, TURN));
    pthread_mutex_lock(&a->lock);
    while (a->enders > 0 && has_more(a, c) && dibs__now(c->env) < turn)
        dibs__cond_sleep(&a->turned, &a->lock, c->env, turn);
    a->enders++;
    pthread_mutex_unlock(&a->lock);
    ending = end_all(a, c, until);
    pthread_mutex_lock(&a->lock);
    a->enders--;
    pthread_cond_broadcast(&a->turned);
    pthread_mutex_unlock(&a->lock);
    return ending;
}
