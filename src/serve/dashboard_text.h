/* Text that grows, and JSON in it. A failure is remembered until the end, so that no call in between is checked. */
#ifndef DIBS_SERVE_DASHBOARD_TEXT_H
#define DIBS_SERVE_DASHBOARD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dash_text {
    char *data; /* a NUL follows `size` bytes once something was put */
    size_t size, room;
    bool failed;
} dash_text;

void dash_put(dash_text *t, const char *bytes, size_t size);
void dash_puts(dash_text *t, const char *text);
void dash_printf(dash_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A member "key":"text" and, if the bytes are not UTF-8, "key_hex" beside it, with each such byte as \xNN in the text: as
 * `dibs ls --json` does. NULL: null. */
void dash_member(dash_text *t, const char *key, const char *bytes);
void dash_integer(dash_text *t, const char *key, int64_t value); /* "key":1 */
/* A comma, unless an object, an array or a member has just been opened. */
void dash_comma(dash_text *t);

void dash_text_clear(dash_text *t); /* keeps its memory */
void dash_text_free(dash_text *t);
/* The bytes as the caller's own, exactly so long; NULL: out of memory, now or before. */
char *dash_text_copy(const dash_text *t);

#endif
