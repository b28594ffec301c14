/* The routes of the dashboard: the page and what it loads, its stream of events, and the metrics. */
#include "serve/dashboard.h"

#include "serve/assets.h"
#include "serve/dashboard_inner.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WATCH_TEXT = 6000, RECENT_MS = 5000 };

serve_dashboard *serve_dashboard_new(serve *s)
{
    serve_dashboard *b = calloc(1, sizeof *b);

    if (!b)
        return NULL;
    b->s = s;
    b->started_ms = (int64_t)time(NULL) * 1000;
    b->every_ms = DASH_EVERY_MS;
    return b;
}

void serve_dashboard_free(serve_dashboard *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < DASH_WATCHES; i++) {
        free(b->watch[i].name);
        free(b->watch[i].text);
    }
    dash_list_free(&b->locks);
    dash_list_free(&b->gone_locks);
    dash_list_free(&b->keys);
    dash_list_free(&b->gone_keys);
    dash_list_free(&b->fresh_keys);
    free(b->keys_after);
    http_buffer_free(&b->text);
    free(b);
}

void serve_dashboard_drain(serve_dashboard *b)
{
    http_timer_stop(b->s->http, &b->timer);
    dash_views_close(b);
    dash_scrapes_answer(b);
}

void serve_dashboard_check(serve_dashboard *b)
{
    dash_views_check(b);
}

static serve_dashboard *board_of(const http_exchange *x)
{
    return ((serve *)http_context(x))->dashboard;
}

/* ---- The page -------------------------------------------------------------------------------- */

static const serve_asset *find_asset(const char *path)
{
    for (const serve_asset *a = serve_assets; a->path; a++)
        if (strcmp(a->path, path) == 0)
            return a;
    return NULL;
}

/* Nothing is loaded from elsewhere, no script is part of the page, and no text becomes HTML. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; "
    "trusted-types 'none'";

static void asset(http_exchange *x)
{
    const serve_asset *a = find_asset(http_route_of(x)->path);
    const char *known = http_header(x, "If-None-Match");

    http_set_header(x, "Content-Security-Policy", policy);
    http_set_header(x, "Referrer-Policy", "no-referrer");
    http_set_header(x, "X-Frame-Options", "DENY");
    http_set_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    http_set_header(x, "Cache-Control", "no-cache");
    http_set_header(x, "ETag", a->etag);
    if (known && strcmp(known, a->etag) == 0)
        http_reply_empty(x, 304);
    else
        http_reply_static(x, 200, a->type, a->data, a->size);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static bool refuse_watch(http_exchange *x, int http, const char *why)
{
    http_reply_problem(x, http,
                       http == 403   ? DIBS_DENIED
                       : http == 503 ? DIBS_UNAVAILABLE
                                     : DIBS_INVALID,
                       "watch: %s", why);
    return false;
}

/* [["counter", "seats"], ["cell", "config"]] */
static bool read_watch(http_exchange *x, const json_t *list, dash_watch *out[], size_t *count)
{
    static const char *const form =
        "is a JSON array of at most 16 pairs, [\"counter\", NAME] or [\"cell\", NAME]";
    size_t i;
    json_t *pair;

    if (!json_is_array(list) || json_array_size(list) > DASH_WATCHED)
        return refuse_watch(x, 400, form);
    json_array_foreach(list, i, pair)
    {
        const char *kind = json_string_value(json_array_get(pair, 0));
        const char *name = json_string_value(json_array_get(pair, 1));
        bool counter = kind && strcmp(kind, "counter") == 0;

        if (!name || !*name || strlen(name) > DIBS_NAME_MAX || !kind ||
            (!counter && strcmp(kind, "cell") != 0))
            return refuse_watch(x, 400, form);
        if (!http_may_name(x, name))
            return refuse_watch(x, 403,
                                "this name is outside of the prefixes of the client's token");
        out[*count] = dash_watch_take(board_of(x), counter, name);
        if (!out[*count])
            return refuse_watch(x, 503, "too many names are watched already");
        ++*count;
    }
    return true;
}

static void events(http_exchange *x)
{
    const char *text = http_text(x, "watch");
    json_t *list = text ? json_loads(text, 0, NULL) : json_array();
    dash_watch *watch[DASH_WATCHED];
    size_t count = 0;
    bool good = read_watch(x, list, watch, &count);

    json_decref(list);
    if (good && dash_views_join(board_of(x), x, watch, count))
        return;
    for (size_t i = 0; i < count; i++)
        dash_watch_drop(watch[i]);
    if (good)
        http_reply_problem(x, 503, DIBS_UNAVAILABLE,
                           "too many dashboards are open: close one of them");
}

/* ---- Metrics --------------------------------------------------------------------------------- */

static void answer_metrics(serve_dashboard *b, http_exchange *x)
{
    serve_census census = {.known = b->locks_known && !b->locks_problem[0],
                           .once_known = b->keys_known && !b->keys_problem[0]};
    size_t size;
    char *text;

    dash_count(&b->locks, &b->keys, &census);
    text = serve_metrics_text(b->s->metrics, b->s->d, &census, http_server_connections(b->s->http),
                              b->viewers, &size);
    if (text)
        http_reply_bytes(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, size);
    else
        http_reply_problem(x, 500, DIBS_NO_MEMORY, "out of memory");
    free(text);
}

void dash_scrapes_answer(serve_dashboard *b)
{
    for (size_t i = 0; i < DASH_SCRAPES; i++) {
        http_exchange *x = b->scrape[i].x;

        b->scrape[i].x = NULL;
        if (x)
            answer_metrics(b, x);
    }
}

static void on_scrape_gone(void *data)
{
    ((dash_scrape *)data)->x = NULL;
}

/* Counts of the whole engine are at most five seconds old: a scrape begins a frame if there is none. */
static void metrics(http_exchange *x)
{
    serve_dashboard *b = board_of(x);
    dash_scrape *free_one = NULL;

    for (size_t i = 0; i < DASH_SCRAPES && !free_one; i++)
        if (!b->scrape[i].x)
            free_one = &b->scrape[i];
    if (!free_one || dash_feed_is_recent(b, RECENT_MS) || http_server_draining(b->s->http)) {
        answer_metrics(b, x);
        return;
    }
    free_one->x = x;
    http_on_gone(x, on_scrape_gone, free_one);
    dash_feed_want(b);
}

/* ---- The table ------------------------------------------------------------------------------- */

static const http_field events_query[] = {
    {"watch", HTTP_TEXT, 0, WATCH_TEXT,
     "Counters and cells to read: a JSON array of [\"counter\", NAME] and [\"cell\", NAME].",
     false},
    {0},
};
static const http_answer page_answers[] = {{200, "*"}, {304, NULL}, {0}};
static const http_answer text_answers[] = {{200, "*"}, {0}};

#define ASSET(file)                                                                    \
    {                                                                                  \
        .method = "GET", .path = "/" file, .verb = HTTP_OPEN,                          \
        .summary = "A part of the dashboard", .answers = page_answers, .handle = asset \
    }

const http_route serve_dashboard_routes[] = {
    ASSET(""),
    ASSET("api.js"),
    ASSET("app.js"),
    ASSET("charts.js"),
    ASSET("detail.js"),
    ASSET("icon.svg"),
    ASSET("keys.js"),
    ASSET("locks.js"),
    ASSET("page.css"),
    ASSET("store.js"),
    ASSET("stream.js"),
    ASSET("text.js"),
    ASSET("tree.js"),
    ASSET("watch.js"),
    {.method = "GET",
     .path = "/dashboard/events",
     .verb = HTTP_READ,
     .summary = "What the dashboard shows, and how it changes",
     .query = events_query,
     .answers = text_answers,
     .handle = events,
     .stream = true},
    {.method = "GET",
     .path = "/metrics",
     .verb = HTTP_READ,
     .summary = "Counters and histograms for Prometheus",
     .answers = text_answers,
     .handle = metrics},
    {0},
};
