/* Durations as people write them, in options of the command and in URLs: 500ms, 5s, 5 (seconds), 1.5s,
 * 1h30m, 7d. Knows nothing of the rest of the library. */
#ifndef DIBS_CORE_SPAN_H
#define DIBS_CORE_SPAN_H

#include <stdint.h>

/* Milliseconds; -1: it is no duration, or finer than a millisecond. INT64_MAX: too long for a number. */
int64_t dibs__span_parse(const char *text);

/* The largest unit that needs no fraction: "90s", "500ms". */
const char *dibs__span_write(char out[32], int64_t ms);

#endif
