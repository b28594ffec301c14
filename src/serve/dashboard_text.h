/* JSON in a buffer, without objects in between. */
#ifndef DIBS_SERVE_DASHBOARD_TEXT_H
#define DIBS_SERVE_DASHBOARD_TEXT_H

#include "http/buffer.h"

#include <stdint.h>

/* A member "key":"text" and, if the bytes are not UTF-8, "key_hex" beside it, with each such byte as \xNN in the text: as
 * `dibs ls --json` does. NULL: null. */
void dash_member(http_buffer *t, const char *key, const char *bytes);
void dash_integer(http_buffer *t, const char *key, int64_t value); /* "key":1 */
/* A comma, unless an object, an array or a member has just been opened. */
void dash_comma(http_buffer *t);

#endif
