/* A private redis-server on a free loopback port and a unix socket, in a scratch folder of its own.
 *
 *     server s;
 *     server_need(&s, NULL);           skips the test where there is no redis-server
 *     … "redis://127.0.0.1:%d", s.port …
 *     server_stop(&s);
 *
 * It is killed with the test program, whatever happens. No persistence unless `extra` asks for it.
 */
#ifndef DIBS_TESTS_SERVER_H
#define DIBS_TESTS_SERVER_H

#include "support/scratch.h"

#include <stdbool.h>
#include <sys/types.h>

#define SERVER_ARGS_MAX 48

typedef struct server {
    pid_t pid; /* 0: not running */
    int port;
    scratch folder;
    char socket[SCRATCH_MAX + 16]; /* unix socket */
    char url[64];                  /* redis://127.0.0.1:port */
    char *args[SERVER_ARGS_MAX];   /* owned; for the restart */
} server;

/* Is there a redis-server in $PATH? */
bool server_available(void);

/* May a missing server be skipped? Not when $CI or $DIBS_TEST_REQUIRE_SERVERS is set. */
bool server_required(void);

/* Starts it with `extra` arguments (NULL-terminated, e.g. {"--requirepass", "x", NULL}; NULL: none)
 * and waits until it answers PING with anything. 0, or -1 with a message on stderr. */
int server_start(server *s, const char *const extra[]);

/* A sentinel that watches the server at `port` under the name `service`; `more`: lines of its configuration, "" for none.
 * What begins with server_ works on it, too. 0 or -1. */
int sentinel_start(server *s, const char *service, int port, int quorum, const char *more);

/* The same inside a cmocka test: skips it when there is no server, fails it when there must be one.
 */
void server_need(server *s, const char *const extra[]);

/* Ends the process and reaps it; the port, the folder and the arguments are kept. `signal`: SIGTERM
 * for a clean end, SIGKILL for a crash. */
void server_end(server *s, int signal);

/* Starts it again after server_end, same port, same folder. 0 or -1. */
int server_restart(server *s);

void server_pause(server *s); /* SIGSTOP, returns when it is stopped */
void server_continue(server *s);

/* Ends it if it runs and removes everything. Harmless on a zeroed struct. */
void server_stop(server *s);

/* Arguments for TLS alone, at `port`, with good.crt, good.key and ca.crt of `folder`, behind the `n` of `extra`; how many
 * there are then. `texts` must live until the server has started. The server's `port` is the caller's to set. */
typedef struct server_tls_args {
    char cert[SCRATCH_MAX + 16], key[SCRATCH_MAX + 16], ca[SCRATCH_MAX + 16];
} server_tls_args;
int server_add_tls(server_tls_args *texts, const char *folder, const char *port,
                   const char *extra[], int n);

/* Sends one inline command ("FLUSHALL", "CONFIG SET x y") on a connection of its own and puts the
 * start of the raw reply into `reply` (may be NULL). 0, or -1. */
int server_command(server *s, const char *command, char *reply, size_t size);

/* A loopback port that was free a moment ago. */
int free_port(void);

#endif
