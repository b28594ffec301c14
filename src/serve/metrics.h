/* What this server counts about itself, and all of it as text for Prometheus. Counters live as long as the process. */
#ifndef DIBS_SERVE_METRICS_H
#define DIBS_SERVE_METRICS_H

#include "serve/serve.h"

/* What a listing of the whole engine has found; `known` false: there is none that is recent enough. */
typedef struct serve_census {
    bool known;
    size_t held, waiters, contended;
    size_t running, crashed, damaged; /* keys of once; once_known false: not counted */
    bool once_known;
} serve_census;

serve_metrics *serve_metrics_new(void); /* NULL: out of memory */
void serve_metrics_free(serve_metrics *m);

/* One exchange has ended: as http_ended_fn. Streams are counted, and not timed: they last as long as their client. */
void serve_metrics_exchange(serve_metrics *m, const http_route *route, const char *method,
                            int status, int64_t us);
/* One request to the engine has ended. */
void serve_metrics_outcome(serve_metrics *m, const dibs_outcome *o);

uint64_t serve_metrics_exchanges(const serve_metrics *m); /* all that have ended */

/* The text; free it with free(). NULL: out of memory. */
char *serve_metrics_text(const serve_metrics *m, dibs *d, const serve_census *census,
                         size_t connections, size_t viewers, size_t *size);

#endif
