/* JSON as compact text. */
#ifndef DIBS_HTTP_JSON_H
#define DIBS_HTTP_JSON_H

#include <jansson.h>
#include <stddef.h>

/* As json_dumps with JSON_COMPACT and JSON_ENCODE_ANY; the value has no loops. To be freed by the caller; a NUL follows,
 * which `size` does not count. NULL: no value, or out of memory. */
char *http_json_text(const json_t *value, size_t *size);

#endif
