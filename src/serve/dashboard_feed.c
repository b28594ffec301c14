/* Asking the engine for what the page shows: the locks, the queues of those that are waited for, the keys of once that
 * are not finished, and what is watched. All of it goes out as requests of one handle; when the last outcome is there, the
 * frame is complete. A frame is made only while somebody looks, and takes at most a tenth of the time.
 *
 * Keys that take long to list come with a later frame.
 *
 * Bounds for one frame: one listing of locks, 32 looks at queues (those that were looked at longest ago), one page of keys
 * (the next frame goes on where it ended), 64 reads of counters and cells. */
#define _GNU_SOURCE
#include "serve/dashboard_inner.h"

#include "cli/text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PREVIEW = 120 };

static int64_t wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void on_timer(http_timer *timer)
{
    serve_dashboard *b = (serve_dashboard *)((char *)timer - offsetof(serve_dashboard, timer));

    dash_feed_begin(b);
}

static void drop_gone(serve_dashboard *b)
{
    dash_list_free(&b->gone_locks);
    dash_list_free(&b->gone_keys);
}

static void finish(serve_dashboard *b)
{
    b->ended_ms = http_now_ms();
    b->took_ms = b->ended_ms - b->began_ms;
    if (b->took_ms * DASH_SHARE < b->every_ms * 2) /* one slow answer is no slow engine */
        b->every_ms = b->took_ms * DASH_SHARE;
    else
        b->every_ms *= 2;
    b->every_ms = b->every_ms > DASH_EVERY_MS ? b->every_ms : DASH_EVERY_MS;
    b->every_ms = b->every_ms < DASH_EVERY_MAX_MS ? b->every_ms : DASH_EVERY_MAX_MS;
    b->frame++;
    dash_views_send(b);
    dash_scrapes_answer(b);
    drop_gone(b);
    if (b->viewers > 0)
        http_timer_set(b->s->http, &b->timer,
                       b->every_ms > b->took_ms ? b->every_ms - b->took_ms : b->every_ms, on_timer);
}

/* One outcome is there. */
static void arrived(serve_dashboard *b)
{
    if (--b->pending == 0)
        finish(b);
}

/* Without memory for a question it stays unanswered until the next frame. */
static void ask(serve_dashboard *b, dibs_request *r, serve_outcome_fn done, void *data,
                char problem[1024])
{
    dibs_error err;

    b->pending++;
    if (serve_ask(b->s, r, done, data, NULL, &err) == DIBS_OK)
        return;
    if (problem)
        snprintf(problem, sizeof err.message, "%s", err.message);
    b->pending--;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

static void on_look(void *data, dibs_outcome *o)
{
    dash_look *look = data;
    serve_dashboard *b = look->board;
    dash_row *row = dash_list_find(&b->locks, look->name);

    if (row && o->err.status == DIBS_OK)
        dash_row_look(row, dibs_lock_report_at(o->lock_report, 0), &b->when, b->frame + 1);
    serve_drop(b->s, o);
    arrived(b);
}

/* Of the contended ones, those that were looked at longest ago. */
static size_t choose(const serve_dashboard *b, const dash_row *chosen[DASH_LOOKS])
{
    size_t count = 0;

    for (size_t i = 0; i < b->locks.count; i++) {
        const dash_row *row = &b->locks.row[i];
        size_t at = count < DASH_LOOKS ? count : DASH_LOOKS - 1;

        if (row->waiting == 0 || (count == DASH_LOOKS && chosen[at]->looked <= row->looked))
            continue;
        while (at > 0 && chosen[at - 1]->looked > row->looked) {
            chosen[at] = chosen[at - 1];
            at--;
        }
        chosen[at] = row;
        count += count < DASH_LOOKS;
    }
    return count;
}

static void look_at_queues(serve_dashboard *b)
{
    const dash_row *chosen[DASH_LOOKS];
    size_t count = choose(b, chosen);

    for (size_t i = 0; i < count; i++) {
        dash_look *look = &b->look[i];

        look->board = b;
        strncpy(look->name, chosen[i]->id, DIBS_NAME_MAX);
        ask(b, &(dibs_request){.op = DIBS_OP_LOCK_INSPECT, .name = look->name}, on_look, look,
            NULL);
    }
}

static void on_locks(void *data, dibs_outcome *o)
{
    serve_dashboard *b = data;

    b->locks_problem[0] = '\0';
    if (o->err.status == DIBS_OK) {
        b->when.at_ms = wall_ms();
        b->locks_known =
            dash_locks_take(&b->locks, &b->gone_locks, o->lock_report, &b->when, b->frame + 1);
        look_at_queues(b);
    } else {
        memcpy(b->locks_problem, o->err.message, sizeof b->locks_problem);
    }
    serve_drop(b->s, o);
    arrived(b);
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static void on_keys(void *data, dibs_outcome *o)
{
    serve_dashboard *b = data;
    const char *next = o->err.status == DIBS_OK ? dibs_once_report_next(o->once_report) : NULL;
    char *after = next ? strdup(next) : NULL;
    bool good =
        o->err.status == DIBS_OK && dash_keys_add(&b->fresh_keys, o->once_report, wall_ms());

    b->keys_problem[0] = '\0';
    if (good && (!after || b->fresh_keys.cut)) {
        b->keys_known = dash_keys_take(&b->keys, &b->gone_keys, &b->fresh_keys, b->frame + 1);
        free(after);
        after = NULL;
    } else if (!good) {
        dash_list_free(&b->fresh_keys);
        if (o->err.status != DIBS_OK)
            memcpy(b->keys_problem, o->err.message, sizeof b->keys_problem);
    }
    free(b->keys_after);
    b->keys_after = after;
    b->keys_asked = false;
    b->keys_took_ms = http_now_ms() - b->keys_began_ms;
    b->keys_next_ms = b->keys_began_ms + b->keys_took_ms * DASH_SHARE;
    serve_drop(b->s, o);
    if (b->keys_awaited)
        arrived(b);
}

/* On Redis a page costs a scan of the keyspace: large ones are asked for less often, and locks do not wait for them. */
static void ask_keys(serve_dashboard *b)
{
    dibs_once_list_options options = {.states =
                                          DIBS_ONCE_RUNNING | DIBS_ONCE_CRASHED | DIBS_ONCE_DAMAGED,
                                      .after = b->keys_after,
                                      .limit = DASH_KEYS + 1};
    size_t before = b->pending;

    if (b->keys_asked || http_now_ms() < b->keys_next_ms)
        return;
    b->keys_began_ms = http_now_ms();
    b->keys_awaited = !b->keys_known || b->keys_took_ms < DASH_PROMPT_MS;
    ask(b, &(dibs_request){.op = DIBS_OP_ONCE_LIST, .options.once_list = &options}, on_keys, b,
        b->keys_problem);
    b->keys_asked = b->pending > before;
    if (b->keys_asked && !b->keys_awaited)
        b->pending--;
}

/* ---- Counters and cells ---------------------------------------------------------------------- */

/* The beginning of a value; a character that is cut in two is left out. */
static void put_preview(http_buffer *t, const dibs_value *value)
{
    char shown[PREVIEW + 1];
    size_t size = value->size < PREVIEW ? value->size : PREVIEW;

    memcpy(shown, value->data, size);
    shown[size] = '\0';
    for (size_t back = 1; size < value->size && back < 4 && back < size; back++)
        if (((unsigned char)shown[size - back] & 0xc0) == 0xc0) {
            shown[size - back] = '\0';
            break;
        } else if ((unsigned char)shown[size - back] < 0x80) {
            break;
        }
    dash_member(t, "text", shown);
    if (strlen(shown) < value->size)
        http_buffer_text(t, ",\"cut\":true");
}

static void on_watched(void *data, dibs_outcome *o)
{
    dash_watch *w = data;
    serve_dashboard *b = w->board;
    http_buffer t = {0};

    w->asked = false;
    http_buffer_add(&t, "{", 1);
    dash_member(&t, "kind", w->counter ? "counter" : "cell");
    dash_member(&t, "name", w->name);
    if (o->err.status == DIBS_NOT_FOUND) {
        dash_member(&t, "problem", "does not exist");
    } else if (o->err.status != DIBS_OK) {
        dash_member(&t, "problem", o->err.message);
    } else if (w->counter) {
        dash_integer(&t, "value", o->number);
    } else {
        dash_integer(&t, "version", (int64_t)o->value.version);
        dash_integer(&t, "size", (int64_t)o->value.size);
        put_preview(&t, &o->value);
    }
    http_buffer_add(&t, "}", 1);
    free(w->text);
    w->text = http_buffer_copy(&t);
    http_buffer_free(&t);
    if (w->users == 0)
        dash_watch_drop(w);
    serve_drop(b->s, o);
    arrived(b);
}

static void ask_watched(serve_dashboard *b)
{
    for (size_t i = 0; i < DASH_WATCHES; i++) {
        dash_watch *w = &b->watch[i];
        size_t before = b->pending;

        if (w->users == 0)
            continue;
        ask(b,
            &(dibs_request){.op = w->counter ? DIBS_OP_COUNTER_GET : DIBS_OP_CELL_READ,
                            .name = w->name},
            on_watched, w, NULL);
        w->asked = b->pending > before;
    }
}

dash_watch *dash_watch_take(serve_dashboard *b, bool counter, const char *name)
{
    dash_watch *room = NULL;

    for (size_t i = 0; i < DASH_WATCHES; i++) {
        dash_watch *w = &b->watch[i];

        if (w->name && w->counter == counter && strcmp(w->name, name) == 0) {
            w->users++;
            return w;
        }
        if (!w->name && !room)
            room = w;
    }
    if (!room || !(room->name = strdup(name)))
        return NULL;
    room->board = b;
    room->counter = counter;
    room->users = 1;
    return room;
}

/* The place of one whose outcome is out is free when that has come. */
void dash_watch_drop(dash_watch *w)
{
    w->users -= w->users > 0;
    if (w->users > 0 || w->asked)
        return;
    free(w->name);
    free(w->text);
    *w = (dash_watch){0};
}

/* ---- Frames ---------------------------------------------------------------------------------- */

void dash_feed_begin(serve_dashboard *b)
{
    dibs_lock_list_options options = {.limit = DASH_LOCKS + 1};

    if (b->pending > 0)
        return;
    http_timer_stop(b->s->http, &b->timer);
    b->began_ms = http_now_ms();
    b->when.began_ms = wall_ms();
    b->when.session = b->s->engine->lease_of_handle;
    b->pending = 1; /* until all are asked */
    ask(b, &(dibs_request){.op = DIBS_OP_LOCK_LIST, .name = "", .options.lock_list = &options},
        on_locks, b, b->locks_problem);
    if (b->s->engine->cells) {
        ask_keys(b);
        ask_watched(b);
    }
    arrived(b);
}

bool dash_feed_is_recent(const serve_dashboard *b, int64_t within_ms)
{
    return b->frame > 0 && http_now_ms() - b->ended_ms <= within_ms;
}

void dash_feed_want(serve_dashboard *b)
{
    if (b->pending > 0 || b->timer.place > 0)
        return;
    dash_feed_begin(b);
}
