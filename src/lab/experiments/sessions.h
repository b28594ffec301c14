/* Two sessions on one database, side by side, and what the second one meets. */
#ifndef DIBS_LAB_SESSIONS_H
#define DIBS_LAB_SESSIONS_H

#include "lab/finding.h"
#include "lab/raw.h"

typedef struct lab_sessions {
    lab_seat seat;
    lab_server server;
    lab_sql *a, *b; /* b gives up waiting for a lock after a second */
    char why[256];
} lab_sessions;

/* False: x->why; nothing is left. */
bool lab_sessions_open(lab_sessions *x, const lab_site *site, lab_server server);
void lab_sessions_close(lab_sessions *x);

/* Each runs what it is told; false: `why` (also kept in seat.note). */
bool lab_a(lab_sessions *x, const char *sql);
bool lab_b(lab_sessions *x, const char *sql);
/* Does this statement of b's wait for a? Whatever it did is rolled back. */
bool lab_b_waits(lab_sessions *x, const char *sql);

/* Rows for a finding's table. */
typedef struct lab_rows lab_rows;
lab_rows *lab_rows_new(const char *heading); /* cells separated by tabs */
void lab_rows_add(lab_rows *rows, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *lab_rows_end(lab_rows *rows); /* the finding's to free */

#endif
