/* A disk between SQLite and the system that fails on demand and remembers what would survive a
 * power cut. While it is in, it is SQLite's default: everything that is opened goes through it. One
 * at a time. */
#ifndef DIBS_TESTS_DISK_H
#define DIBS_TESTS_DISK_H

#include <stdbool.h>

typedef enum disk_fault {
    DISK_FULL,        /* the n-th write finds no room */
    DISK_WRITE_FAILS, /* the n-th write fails */
    DISK_SYNC_FAILS,  /* the n-th sync fails */
    DISK_FAULTS,
} disk_fault;

void disk_put_in(void);
void disk_take_out(void);

/* The n-th such call from now on fails, and with `for_ever` all after it; n = 0: none. */
void disk_fail(disk_fault fault, int n, bool for_ever);
/* Has it struck since? */
bool disk_failed(void);

/* Copies the database `from` with its log to `to`, as they were when last synced: what a power cut
 * leaves, at worst. */
void disk_cut_power(const char *from, const char *to);

#endif
