/* What the tests of the two ensemble engines share: a server that runs for the whole program, handles
 * to it, straight or through a proxy, and threads that lock. */
#ifndef DIBS_TESTS_LINE_KIT_H
#define DIBS_TESTS_LINE_KIT_H

#include "dibs.h"
#include "support/clock.h"
#include "support/ensemble.h"
#include "support/proxy.h"
#include "support/server.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>

#define SESSION_MS 3000
#define SOON_MS    5000  /* what happens "at once" happens within this, on the slowest machine */
#define LONG_MS    30000 /* what takes longer than this hangs */

#define assert_status(got, want) assert_string_equal(dibs_status_name(got), dibs_status_name(want))

/* ---- The server ------------------------------------------------------------------------------ */

extern ensemble the_server;

/* To be said first: what kind it is and what it is started with. */
void describe_server(ensemble_kind kind, const char *const extra[]);
/* One node, started by the first case that needs it; skips the case where there is none. */
void need_server(void);

/* "zookeeper://HOSTS/PLACE?session=3000msMORE"; the last eight live on. */
const char *url_of(const char *hosts, const char *more);
const char *url_at(int port, const char *more);
/* With a session that a busy machine does not outlast: for cases in which nothing may be lost. */
const char *url_lasting(const char *hosts);

/* Runs a program (NULL-terminated words) to its end: its exit code. `out`: what it said on stdout,
 * may be NULL. */
int run_program(char *out, size_t size, const char *const words[]);

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *open_url(const char *url);    /* or the case fails */
dibs *open_here(void);              /* the_server, straight */
dibs *open_through(const proxy *p); /* by that proxy */
dibs *open_logged(const char *url); /* its log lines are counted in log_lines */
extern atomic_int log_lines;        /* warnings and errors */
void close_handle(dibs *d);         /* others are closed after the case */
int close_all(void **state);        /* a teardown */
proxy *proxy_to(int port);          /* ended after the case */
proxy *proxy_here(void);            /* to the_server */

/* The dibs_open of a URL that must fail so, with a message that has all of `words` in it
 * (NULL-terminated). */
void refused(const char *url, dibs_status want, const char *const words[]);

/* ---- Locks ----------------------------------------------------------------------------------- */

dibs_grant *take(dibs *d, const char *name, const dibs_lock_options *options);
dibs_status try_lock(dibs *d, const char *name);
size_t holders_of(dibs *d, const char *name);
size_t waiters_of(dibs *d, const char *name);
void wait_for_line(dibs *d, const char *name, size_t holders, size_t waiters);

typedef struct job {
    pthread_t thread;
    dibs *d;
    char name[64];
    dibs_lock_options options;
    const dibs_grant *rival; /* looked at in the moment of the grant */
    bool rival_held;
    atomic_bool done;
    dibs_status status;
    dibs_error err;
    dibs_grant *g;
    uint64_t fence;
    bool held;
    int64_t at;
} job;

/* A thread calls dibs_lock and ends. */
job *job_start(dibs *d, const char *name, const dibs_lock_options *options,
               const dibs_grant *rival);
bool job_done_within(job *j, int64_t ms);
void job_join(job *j); /* it has the lock, within LONG_MS, or the case fails */

typedef struct loss_note {
    atomic_int count, why;
    int64_t at;
} loss_note;

void note_loss(void *data, dibs_grant *g, dibs_loss why);
bool loss_within(loss_note *n, int64_t ms);

#endif
