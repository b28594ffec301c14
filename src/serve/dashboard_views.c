/* Frames: what has changed, as JSON, written once for all who may see the same.
 *
 * A frame is whole (for a page that has just been opened, or that was too slow) or has the rows that are new or changed and
 * the names of those that are gone. */
#include "serve/dashboard_inner.h"

#include <stdlib.h>
#include <string.h>

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_histogram(http_buffer *t, const char *key, const dibs_histogram *h)
{
    size_t last = 0;

    for (size_t i = 0; i < DIBS_BUCKETS; i++)
        last = h->bucket[i] ? i + 1 : last;
    dash_comma(t);
    http_buffer_format(t, "\"%s\":{", key);
    dash_integer(t, "count", (int64_t)h->count);
    dash_integer(t, "max_us", (int64_t)h->max_us);
    http_buffer_text(t, ",\"bucket\":[");
    for (size_t i = 0; i < last; i++)
        http_buffer_format(t, "%s%llu", i ? "," : "", (unsigned long long)h->bucket[i]);
    http_buffer_text(t, "]}");
}

static void put_server(http_buffer *t, const serve_dashboard *b)
{
    static const char *const causes[] = {NULL,   "expired",     "broken",
                                         "gone", "unreachable", "resumed"};
    dibs_stats s;

    dibs_stats_read(b->s->d, &s, sizeof s);
    http_buffer_text(t, ",\"server\":{");
    dash_integer(t, "grants", (int64_t)s.grants);
    dash_integer(t, "requests", (int64_t)serve_metrics_exchanges(b->s->metrics));
    dash_integer(t, "viewers", (int64_t)b->viewers);
    http_buffer_text(t, ",\"losses\":{");
    for (size_t i = 1; i < sizeof causes / sizeof *causes; i++)
        dash_integer(t, causes[i], (int64_t)s.losses[i]);
    http_buffer_text(t, "}");
    put_histogram(t, "acquire", &s.acquire);
    put_histogram(t, "wait", &s.wait);
    put_histogram(t, "hold", &s.hold);
    put_histogram(t, "late", &s.late);
    http_buffer_text(t, "}");
}

static void put_problem(http_buffer *t, const char *part, const char *message)
{
    if (!message[0])
        return;
    dash_comma(t);
    http_buffer_add(t, "{", 1);
    dash_member(t, "part", part);
    dash_member(t, "message", message);
    http_buffer_add(t, "}", 1);
}

/* `gone` NULL: a whole list. */
static void put_list(http_buffer *t, const char *key, const http_exchange *x, const dash_list *now,
                     const dash_list *gone, uint64_t frame)
{
    http_buffer_format(t, ",\"%s\":{\"cut\":%s,\"put\":[", key, now->cut ? "true" : "false");
    for (size_t i = 0; i < now->count; i++) {
        const dash_row *row = &now->row[i];

        if ((gone && row->changed != frame) || !http_may_name(x, row->name))
            continue;
        dash_comma(t);
        dash_row_write(row, t);
    }
    http_buffer_text(t, "]");
    if (gone) {
        http_buffer_text(t, ",\"drop\":[");
        for (size_t i = 0; i < gone->count; i++)
            if (http_may_name(x, gone->row[i].name)) {
                dash_comma(t);
                http_buffer_text(t, gone->row[i].identity);
            }
        http_buffer_text(t, "]");
    }
    http_buffer_text(t, "}");
}

static void put_constants(http_buffer *t, const serve_dashboard *b, const http_exchange *x)
{
    dash_member(t, "engine", b->s->engine->scheme);
    dash_member(t, "version", dibs_version());
    dash_integer(t, "started_ms", b->started_ms);
    http_buffer_format(t, ",\"may\":{\"break\":%s,\"admin\":%s},\"token\":%s",
                       http_may(x, HTTP_BREAK) ? "true" : "false",
                       http_may(x, HTTP_ADMIN) ? "true" : "false",
                       http_client(x)[0] ? "true" : "false");
}

static void put_watched(http_buffer *t, const dash_view *view)
{
    http_buffer_text(t, ",\"watched\":[");
    for (size_t i = 0; i < view->watches; i++)
        if (view->watch[i]->text) {
            dash_comma(t);
            http_buffer_text(t, view->watch[i]->text);
        }
    http_buffer_text(t, "]");
}

/* NULL: out of memory. */
static http_shared *write_frame(serve_dashboard *b, const dash_view *view, bool whole)
{
    const http_exchange *x = view->viewers->x;
    http_buffer *t = &b->text;

    http_buffer_clear(t);
    http_buffer_text(t, "event: frame\ndata: {");
    http_buffer_format(t, "\"whole\":%s", whole ? "true" : "false");
    dash_integer(t, "seq", (int64_t)b->frame);
    dash_integer(t, "at_ms", b->when.at_ms);
    dash_integer(t, "took_ms", b->took_ms);
    dash_integer(t, "every_ms", b->every_ms);
    if (whole)
        put_constants(t, b, x);
    http_buffer_text(t, ",\"problems\":[");
    put_problem(t, "locks", b->locks_problem);
    put_problem(t, "keys", b->keys_problem);
    http_buffer_text(t, "]");
    put_list(t, "locks", x, &b->locks, whole ? NULL : &b->gone_locks, b->frame);
    put_list(t, "once", x, &b->keys, whole ? NULL : &b->gone_keys, b->frame);
    put_watched(t, view);
    put_server(t, b);
    http_buffer_text(t, "}\n\n");
    return t->failed ? NULL : http_shared_new(http_buffer_start(t), http_buffer_size(t));
}

/* ---- Sending --------------------------------------------------------------------------------- */

static void send_whole(serve_dashboard *b, dash_viewer *viewer)
{
    dash_view *view = viewer->view;

    if (!http_stream_has_room(viewer->x))
        return; /* it does not read: nothing is written for it */
    if (!view->whole)
        view->whole = write_frame(b, view, true);
    viewer->whole = view->whole && http_stream_share(viewer->x, view->whole);
}

static void send_view(serve_dashboard *b, dash_view *view)
{
    http_shared *changes = NULL;

    http_shared_drop(view->whole);
    view->whole = NULL;
    for (dash_viewer *v = view->viewers; v; v = v->next) {
        if (!v->whole) {
            send_whole(b, v);
            continue;
        }
        if (!changes)
            changes = write_frame(b, view, false);
        v->whole = changes && http_stream_share(v->x, changes);
    }
    http_shared_drop(changes);
}

void dash_views_send(serve_dashboard *b)
{
    for (dash_view *view = b->views; view; view = view->next)
        send_view(b, view);
}

/* ---- Coming and going ------------------------------------------------------------------------ */

static void free_view(serve_dashboard *b, dash_view *view)
{
    dash_view **at = &b->views;

    while (*at != view)
        at = &(*at)->next;
    *at = view->next;
    for (size_t i = 0; i < view->watches; i++)
        dash_watch_drop(view->watch[i]);
    http_shared_drop(view->whole);
    free(view);
}

static void on_gone(void *data)
{
    dash_viewer *v = data, **at = &v->view->viewers;
    serve_dashboard *b = v->board;

    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    if (!v->view->viewers)
        free_view(b, v->view);
    free(v);
    if (--b->viewers == 0)
        http_timer_stop(b->s->http, &b->timer);
}

static dash_view *find_view(serve_dashboard *b, const http_exchange *x, dash_watch *const watch[],
                            size_t count)
{
    size_t views = 0;

    for (dash_view *view = b->views; view; view = view->next) {
        views++;
        if (http_same_client(view->viewers->x, x) && view->watches == count &&
            (count == 0 || memcmp(view->watch, watch, count * sizeof *watch) == 0))
            return view;
    }
    return views < DASH_VIEWS ? calloc(1, sizeof(dash_view)) : NULL;
}

/* The view of an earlier viewer has its watches already. */
static dash_view *enter_view(serve_dashboard *b, const http_exchange *x, dash_watch *const watch[],
                             size_t count)
{
    dash_view *view = find_view(b, x, watch, count);

    if (!view)
        return NULL;
    if (view->viewers) {
        for (size_t i = 0; i < count; i++)
            dash_watch_drop(watch[i]);
        return view;
    }
    if (count > 0)
        memcpy(view->watch, watch, count * sizeof *watch);
    view->watches = count;
    view->next = b->views;
    b->views = view;
    return view;
}

bool dash_views_join(serve_dashboard *b, http_exchange *x, dash_watch *const watch[], size_t count)
{
    dash_viewer *v = b->viewers < DASH_VIEWERS ? calloc(1, sizeof *v) : NULL;

    if (!v || !(v->view = enter_view(b, x, watch, count))) {
        free(v);
        return false;
    }
    v->board = b;
    v->x = x;
    v->next = v->view->viewers;
    v->view->viewers = v;
    b->viewers++;
    http_stream_open(x);
    http_on_gone(x, on_gone, v);
    if (dash_feed_is_recent(b, b->every_ms))
        send_whole(b, v);
    dash_feed_want(b);
    return true;
}

static void close_viewer(dash_viewer *v)
{
    http_exchange *x = v->x;

    on_gone(v);
    http_stream_end(x);
}

void dash_views_close(serve_dashboard *b)
{
    while (b->views)
        close_viewer(b->views->viewers);
}

/* All viewers of a view have the same rights. */
void dash_views_check(serve_dashboard *b)
{
    for (dash_view *view = b->views, *next; view; view = next) {
        next = view->next;
        for (dash_viewer *v = http_is_welcome(view->viewers->x) ? NULL : view->viewers, *other; v;
             v = other) {
            other = v->next;
            close_viewer(v);
        }
    }
}
