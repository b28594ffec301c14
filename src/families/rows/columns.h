/* The lists of columns that sql.h names, in that order: the same text in every dialect. */
#ifndef DIBS_FAMILIES_ROWS_COLUMNS_H
#define DIBS_FAMILIES_ROWS_COLUMNS_H

#define WHO "owner, attempt, host, pid, wake, weight, lease, min_hold"
#define RECORD                                                                             \
    "capacity, used, holders, waiters, fence, place, broken_fence, broken_at, broken_by, " \
    "first_place"
#define HELD   WHO ", held, since, expires, released"
#define HOLDER WHO ", fence, since, expires, released"
#define WAITER WHO ", place, since, span, alive_until"

#define DAY "86400000000" /* microseconds */

#endif
