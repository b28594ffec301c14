/* The dashboard: a page, and one stream of events that feeds all pages that are open.
 *
 * While somebody looks, the engine is asked for one listing about every second, less often when a listing takes long, and
 * not at all when nobody does. What a listing changes is written once for all who may see the same, and shared by their
 * streams: the cost at the engine does not depend on how many look. */
#ifndef DIBS_SERVE_DASHBOARD_H
#define DIBS_SERVE_DASHBOARD_H

#include "serve/serve.h"

/* The page, what it loads, its events, and /metrics. */
extern const http_route serve_dashboard_routes[];

serve_dashboard *serve_dashboard_new(serve *s); /* NULL: out of memory */
/* After the HTTP server has closed, and before the handle is: nothing of it is asked any more. */
void serve_dashboard_free(serve_dashboard *b);
/* SIGHUP: ends the streams of clients whose token has changed. */
void serve_dashboard_check(serve_dashboard *b);
/* SIGTERM: ends the streams; their pages connect to another server, or wait. */
void serve_dashboard_drain(serve_dashboard *b);

#endif
