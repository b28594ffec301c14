/* What the page shows, as rows of JSON that are written anew only when something in them has changed. */
#ifndef DIBS_SERVE_DASHBOARD_ROWS_H
#define DIBS_SERVE_DASHBOARD_ROWS_H

#include "dibs.h"
#include "serve/dashboard_text.h"
#include "serve/metrics.h"

enum { DASH_LOCKS = 10000, DASH_KEYS = 1000, DASH_QUEUE = 100, DASH_WAITS = 128 };

/* Somebody in a queue, so that it is known again when it holds the lock. */
typedef struct dash_waiter {
    uint64_t who;
    int64_t since_ms;
} dash_waiter;

/* What becomes of a row when its list is replaced. */
typedef enum dash_fate { DASH_GONE, DASH_MOVED, DASH_REPLACED } dash_fate;

typedef struct dash_row {
    char *id;         /* rows are sorted by it: a lock's name, a key's scope and key */
    const char *name; /* what a client must be allowed to see: the lock's name, the key */
    char *text;     /* a JSON object without its end, so that members can follow; NULL: no memory */
    char *identity; /* the object that says which row it is */
    uint64_t mark;  /* a hash of what is shown */
    int64_t until_ms;      /* the earliest end of a lease */
    uint64_t changed;      /* the frame with its last change */
    size_t held, waiting;  /* locks: holders, waiters */
    dibs_once_state state; /* keys */
    dash_fate fate;
    /* Of a contended lock, from the last look at its queue: */
    uint64_t looked; /* the frame of that look; 0: none */
    char *queue;     /* JSON array; NULL: not known */
    dash_waiter *waiter;
    size_t waiters;
    uint32_t *wait_ms; /* the last DASH_WAITS waits that were seen to end; NULL: none */
    size_t waits;      /* all that were seen */
} dash_row;

typedef struct dash_list {
    dash_row *row;
    size_t count, room;
    bool cut; /* there are more */
} dash_list;

void dash_list_free(dash_list *l);

/* When something was listed. On engines whose locks live as long as a session (lease_of_handle) a lease says no more than
 * that the session is alive, and some of them do not know since when a lock is held: they say that it is since the listing. */
typedef struct dash_when {
    int64_t began_ms, at_ms; /* Unix time */
    bool session;
} dash_when;

/* Makes `now` what the report says. Rows that are as they were move over from it; `gone` receives those that are not in
 * the report any more. False: out of memory; `now` is empty then. */
bool dash_locks_take(dash_list *now, dash_list *gone, const dibs_lock_report *report,
                     const dash_when *when, uint64_t frame);
/* The same for keys, which come in pages: `fresh` collects them, and becomes `now` after the last one. */
bool dash_keys_add(dash_list *fresh, const dibs_once_report *page, int64_t at_ms);
bool dash_keys_take(dash_list *now, dash_list *gone, dash_list *fresh, uint64_t frame);

/* A look at one lock's queue. */
void dash_row_look(dash_row *row, const dibs_lock_info *lock, const dash_when *when,
                   uint64_t frame);
dash_row *dash_list_find(const dash_list *l, const char *id);

void dash_row_write(const dash_row *row, http_buffer *out);

void dash_count(const dash_list *locks, const dash_list *keys, serve_census *out);

#endif
