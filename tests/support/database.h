/* A private PostgreSQL or MariaDB server on a free loopback port and a unix socket, in a scratch
 * folder of its own.
 *
 *     database d;
 *     database_need(&d, DATABASE_POSTGRESQL, NULL);   skips the test where there is none
 *     … port d.port, user d.user without a password, database d.user or none …
 *     database_stop(&d);
 *
 * Root runs it as the account that the packages made, everybody else as itself. It ends with the
 * test program, whatever happens. */
#ifndef DIBS_TESTS_DATABASE_H
#define DIBS_TESTS_DATABASE_H

#include "support/scratch.h"

#include <stdbool.h>
#include <sys/types.h>

#define DATABASE_ARGS_MAX 32

typedef enum database_kind { DATABASE_POSTGRESQL, DATABASE_MARIADB } database_kind;

typedef struct database {
    database_kind kind;
    pid_t pid; /* 0: not running */
    int port;
    scratch folder;
    char data[SCRATCH_MAX + 16];
    char socket[SCRATCH_MAX + 16]; /* PostgreSQL: the folder of it */
    const char *user;              /* "postgres" or "root" */
    char *args[DATABASE_ARGS_MAX]; /* owned; for the restart */
} database;

bool database_available(database_kind kind);

/* Makes the data folder and starts the server with `extra` arguments (NULL-terminated; NULL: none).
 * 0, or -1 with a message on stderr. */
int database_start(database *d, database_kind kind, const char *const extra[]);

/* PostgreSQL: an empty database. 0 or -1. */
int database_make(const database *d, const char *name);

/* The same as database_start inside a cmocka test: skips it where there is no server, fails it where there must be
 * one. */
void database_need(database *d, database_kind kind, const char *const extra[]);

/* Ends the process and reaps it; port, folder and arguments are kept. `signal`: SIGTERM for a clean
 * end, SIGKILL for a crash. */
void database_end(database *d, int signal);

/* Starts it again after database_end, same port, same data. 0 or -1. */
int database_restart(database *d);

void database_pause(database *d); /* SIGSTOP to all of it */
void database_continue(database *d);

/* Ends it if it runs and removes everything. Harmless on a zeroed struct. */
void database_stop(database *d);

#endif
