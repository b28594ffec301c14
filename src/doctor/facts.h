/* Facts about a server: what an engine's `examine` collects and the tables of checks judge.
 *
 * A fact has a name and a text: "appendfsync" is "everysec". One that could not be looked at has the
 * reason instead. Facts of several nodes or members are parts: each has its own label and its own table
 * of checks. A failed allocation is remembered and reported at the end. */
#ifndef DIBS_DOCTOR_FACTS_H
#define DIBS_DOCTOR_FACTS_H

#include "core/env.h"
#include "dibs.h"

#include <stdarg.h>

typedef struct dibs__fact {
    struct dibs__fact *next;
    bool unseen; /* `text` is the reason */
    const char *text;
    char name[]; /* and the text */
} dibs__fact;

typedef struct dibs__facts {
    struct dibs__facts *next; /* of the parts */
    struct dibs__facts *whole;
    const char *checks; /* name of the table that judges it */
    char label[300];    /* part: "node 2 of 3 (host:port)" */
    dibs__fact *first;
    bool failed; /* out of memory; of the whole */
    dibs_latency latency;
} dibs__facts;

/* A later fact of the same name replaces the earlier one. */
void dibs__fact_add(dibs__facts *f, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void dibs__fact_number(dibs__facts *f, const char *name, int64_t value);
void dibs__fact_flag(dibs__facts *f, const char *name, bool value); /* "yes" or "no" */
void dibs__fact_unseen(dibs__facts *f, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* NULL: nobody said. */
const dibs__fact *dibs__fact_find(const dibs__facts *f, const char *name);
/* Its text, or `otherwise` when it is not known. */
const char *dibs__fact_text(const dibs__facts *f, const char *name, const char *otherwise);
int64_t dibs__fact_value(const dibs__facts *f, const char *name, int64_t otherwise);

/* A node or member, judged by the table `checks`. Returns `f` itself when out of memory. */
dibs__facts *dibs__facts_part(dibs__facts *f, const char *checks, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void dibs__facts_fini(dibs__facts *f);

/* How long looking at one server may take once it is connected. */
#define DIBS__EXAMINE_SPAN (15 * DIBS__SECOND)

/* ---- What several engines state alike -------------------------------------------------------- */

/* "clock_off_ms": the server's Unix time in microseconds, asked for between `before` and `after` of our
 * own wall clock. */
void dibs__fact_clock(dibs__facts *f, int64_t server, int64_t before, int64_t after);
/* NAME_percent of `limit`; nothing when there is none. */
void dibs__fact_percent(dibs__facts *f, const char *name, int64_t used, int64_t limit);

/* Times up to 100 exchanges, for at most a second and until `until`. `exchange` returns false when it
 * failed. */
void dibs__facts_measure(dibs__facts *f, const dibs__env *env, dibs__deadline until,
                         bool (*exchange)(void *ctx), void *ctx);

#endif
