/* What the files of the dashboard share. */
#ifndef DIBS_SERVE_DASHBOARD_INNER_H
#define DIBS_SERVE_DASHBOARD_INNER_H

#include "serve/dashboard.h"
#include "serve/dashboard_rows.h"

enum {
    DASH_VIEWERS = 256,
    DASH_VIEWS = 32,
    DASH_WATCHES = 64, /* of all viewers */
    DASH_WATCHED = 16, /* of one */
    DASH_LOOKS = 32,   /* queues that are looked at for one frame */
    DASH_SCRAPES = 16,
    DASH_EVERY_MS = 1000,
    DASH_EVERY_MAX_MS = 30000,
    DASH_SHARE = 10,      /* listings of either kind may take this part of the time, and no more */
    DASH_PROMPT_MS = 250, /* a frame does not wait for keys that took longer the last time */
};

/* A counter or a cell that somebody watches. */
typedef struct dash_watch {
    serve_dashboard *board;
    char *name;
    bool counter, asked;
    size_t users;
    char *text; /* a JSON object; NULL: not read yet */
} dash_watch;

/* Those who may see the same, and watch the same, get the same text. */
typedef struct dash_view {
    struct dash_view *next;
    dash_watch *watch[DASH_WATCHED];
    size_t watches;
    struct dash_viewer *viewers;
    http_shared *whole; /* everything, of this frame; NULL: not written yet */
} dash_view;

typedef struct dash_viewer {
    struct dash_viewer *next;
    serve_dashboard *board;
    dash_view *view;
    http_exchange *x;
    bool whole; /* it has everything up to the last frame; false: it needs a whole one */
} dash_viewer;

/* A request for /metrics that waits for a listing. */
typedef struct dash_scrape {
    serve_dashboard *board;
    http_exchange *x; /* NULL: free */
} dash_scrape;

typedef struct dash_look {
    serve_dashboard *board;
    char name[DIBS_NAME_MAX + 1];
} dash_look;

struct serve_dashboard {
    serve *s;
    int64_t started_ms; /* Unix time */
    /* What the engine said last, and what that has changed. */
    dash_list locks, gone_locks, keys, gone_keys;
    dash_list fresh_keys; /* of a listing that goes on with the next frame */
    char *keys_after;
    bool keys_asked, keys_awaited; /* an outcome is out; the frame waits for it */
    int64_t keys_began_ms, keys_took_ms, keys_next_ms;
    bool locks_known, keys_known;
    char locks_problem[1024], keys_problem[1024];
    uint64_t frame;             /* the number of the last frame */
    dash_when when;             /* of its listing */
    int64_t began_ms, ended_ms; /* http_now_ms */
    int64_t took_ms, every_ms;
    size_t pending; /* outcomes that the next frame waits for; 0: none is being made */
    dash_look look[DASH_LOOKS];
    dash_watch watch[DASH_WATCHES];
    dash_view *views;
    size_t viewers;
    dash_scrape scrape[DASH_SCRAPES];
    http_timer timer;
    http_buffer text; /* where frames are written */
};

/* Begins the next frame, unless one is being made. */
void dash_feed_begin(serve_dashboard *b);
/* Somebody looks: soon there is a frame, if there is none that is new enough. */
void dash_feed_want(serve_dashboard *b);
bool dash_feed_is_recent(const serve_dashboard *b, int64_t within_ms);

/* The frame is complete: sends it to all viewers. */
void dash_views_send(serve_dashboard *b);
bool dash_views_join(serve_dashboard *b, http_exchange *x, dash_watch *const watch[], size_t count);
void dash_views_close(serve_dashboard *b);
void dash_views_check(serve_dashboard *b);

/* Answers the requests for /metrics that wait. */
void dash_scrapes_answer(serve_dashboard *b);

/* NULL: all places are taken. */
dash_watch *dash_watch_take(serve_dashboard *b, bool counter, const char *name);
void dash_watch_drop(dash_watch *w);

#endif
