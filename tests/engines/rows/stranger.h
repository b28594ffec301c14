/* A stranger in the database: a session that is not the engine's and keeps rows locked, on PostgreSQL or
 * MariaDB. */
#ifndef DIBS_TESTS_STRANGER_H
#define DIBS_TESTS_STRANGER_H

#include "support/database.h"

#include <stdbool.h>
#include <stdint.h>

extern database stranger_db; /* the private server of the program */
extern char stranger_url[256];

/* Starts the server of `engine`; harmless where there is none. 0, or -1. */
int stranger_setup(const char *engine);
void stranger_teardown(void);
void stranger_need(void); /* skips the case, or fails it where servers are required */
bool stranger_is_postgresql(void);

/* The URL of the same server by another port (a proxy's), with a query or "". */
const char *stranger_url_by(int port, const char *query);

typedef struct stranger stranger;

stranger *stranger_new(void);
/* A statement that must succeed; the first number of its first row, or 0. */
int64_t stranger_ask(stranger *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A statement that may fail. */
bool stranger_try(stranger *s, const char *sql);
/* Opens a transaction and keeps the rows of these names locked until stranger_let_go. */
void stranger_keep(stranger *s, const char *table, const char *const names[], int count);
void stranger_let_go(stranger *s);
void stranger_free(stranger *s);

#endif
