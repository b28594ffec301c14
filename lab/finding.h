/* What a hazard or an experiment found out: measured, with one sentence for people.
 *
 * A *hazard* happens to a strategy (its holder is killed, paused, its lease is too short …) and is
 * executed with real processes and real servers. An *experiment* shows a row that is no
 * purchase (which statements are idempotent, which rows a second session waits for …). Neither knows
 * the outcome beforehand: they measure, and the strategy's claims are compared afterwards. */
#ifndef DIBS_LAB_FINDING_H
#define DIBS_LAB_FINDING_H

#include "lab.h"

typedef enum lab_outcome {
    LAB_NOT_RUN,  /* could not be run here: `text` says why */
    LAB_SURVIVED, /* nobody was hurt: one holder at a time, nobody stuck, books right */
    LAB_BROKE,    /* two holders at once, stuck for ever, oversold, another's lock deleted … */
    LAB_SHOWN,    /* an experiment: neither good nor bad */
    LAB_NOT_APPLICABLE, /* it cannot happen to this strategy: `text` says why */
} lab_outcome;

typedef struct lab_finding {
    lab_outcome outcome;
    int64_t at_once;  /* the most holders that were inside at the same moment; -1: not looked at */
    int64_t stuck_ms; /* how long the next one waited; INT64_MAX: as long as we looked, for ever */
    int64_t oversold; /* pieces */
    int64_t foreign;  /* locks of others that were deleted or taken over */
    bool claimed;     /* the strategy, or dibs in an experiment, says that it survives this */
    char text[600];   /* one sentence with the figures */
    char *table;      /* rows and columns, tab-separated, heading first; NULL: none. malloc'ed */
} lab_finding;

/* In the order of the issue; a bit each in lab_strategy.survives. */
typedef enum lab_hazard_kind {
    LAB_HOLDER_KILLED,
    LAB_KILLED_BEFORE_EXPIRE, /* at the point "between SETNX and EXPIRE" */
    LAB_HOLDER_PAUSED,        /* SIGSTOP past its lease, then it goes on and writes */
    LAB_LATE_RELEASE,         /* an overdue holder releases: whose lock goes? */
    LAB_RELEASE_GAP,          /* paused at the point "between GET and DEL" */
    LAB_LONG_WORK,            /* the work takes longer than the lease */
    LAB_WRONG_CLOCK,          /* one client's clock is ahead */
    LAB_REPLY_LOST,           /* the server did it, the answer never came */
    LAB_TWO_PROCESSES,        /* instead of one */
    LAB_RENEWER_OUTLIVES,     /* whoever renews goes on after the holder's death */
    LAB_EXPLICIT_LEASE,       /* a lease given by hand switches renewal off */
    LAB_HAZARDS
} lab_hazard_kind;

#define LAB_SURVIVES(kind) ((lab_hazards)1 << (kind))

typedef struct lab_hazard {
    lab_hazard_kind kind;
    const char *name; /* "holder-killed" */
    const char *title;
    /* NULL: it can happen to this strategy. Else why it cannot, in a few words. */
    const char *(*why_not)(const lab_strategy *strategy);
    void (*run)(const lab_strategy *strategy, const lab_site *site, lab_finding *out);
} lab_hazard;

typedef struct lab_experiment {
    const char *id;   /* the row: "D2" */
    const char *name; /* "gap-locks-mariadb" */
    const char *title;
    unsigned needs;
    void (*run)(const lab_site *site, lab_finding *out);
    bool promised; /* by dibs: that it is not survived fails the run */
} lab_experiment;

const char *lab_outcome_name(lab_outcome outcome);

/* Did it survive, if its strategy says so? */
bool lab_claim_holds(const lab_finding *finding);

/* Runs it, if it can happen, and notes what the strategy claims. `out->table` is the caller's to free. */
void lab_hazard_run(const lab_hazard *h, const lab_strategy *s, const lab_site *site,
                    lab_finding *out);

void lab_experiment_run(const lab_experiment *e, const lab_site *site, lab_finding *out);

extern const lab_hazard *const lab_hazard_table[]; /* NULL-terminated */
extern const lab_experiment
    *const lab_experiments[]; /* NULL-terminated, in the order of the rows */

#endif
