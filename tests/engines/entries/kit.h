/* What the tests of the two ensemble engines share: a server that runs for the whole program, handles
 * to it, straight or through a proxy, and threads that lock. */
#ifndef DIBS_TESTS_ENTRIES_KIT_H
#define DIBS_TESTS_ENTRIES_KIT_H

#include "support/clock.h"
#include "support/ensemble.h"
#include "support/jobs.h"
#include "support/proxy.h"
#include "support/server.h"
#include "support/test.h"

#define SESSION_MS 3000

/* ---- The server ------------------------------------------------------------------------------ */

extern ensemble the_server;

/* To be said first: what kind it is and what it is started with. */
void describe_server(ensemble_kind kind, const char *const extra[]);
/* One node, started by the first case that needs it; skips the case where there is none. */
void need_server(void);

/* "zookeeper://HOSTS/FOLDER?session=3000msMORE"; the last eight live on. */
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
int close_all(void **state);        /* a teardown */
proxy *proxy_to(int port);          /* ended after the case */
proxy *proxy_here(void);            /* to the_server */
const char *hosts_of(const proxy *p);
bool has_connections(void *p); /* for wait_until */

/* The dibs_open of a URL that must fail so, with a message that has all of `words` in it
 * (NULL-terminated). */
void refused(const char *url, dibs_status want, const char *const words[]);

/* Waits until so many hold and wait. */
void wait_for_queue(dibs *d, const char *name, size_t holders, size_t waiters);

#endif
