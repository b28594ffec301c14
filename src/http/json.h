/* JSON as text, in both directions. */
#ifndef DIBS_HTTP_JSON_H
#define DIBS_HTTP_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* As json_dumps with JSON_COMPACT and JSON_ENCODE_ANY; the value has no loops. To be freed by the caller; a NUL follows,
 * which `size` does not count. NULL: no value, or out of memory. */
char *http_json_text(const json_t *value, size_t *size);

/* A member of a plain object. The name and a text are not copied, and have no NUL behind them. */
typedef struct http_json_member {
    const char *name, *text;
    size_t name_size, size;
    json_type
        type; /* JSON_STRING: `text`; JSON_INTEGER: `number`; JSON_TRUE, JSON_FALSE, JSON_NULL */
    json_int_t number;
} http_json_member;

/* Reads what most requests send: one object whose members are texts of printable ASCII without escapes, whole numbers of
 * up to 15 digits, booleans and null, each name once. False: it is something else, which may be JSON as well. */
bool http_json_plain(const char *text, size_t size, http_json_member out[], size_t most,
                     size_t *count);

#endif
