/* Paths: their normal form, and patterns that match them. */
#ifndef DIBS_GATEWAY_PATH_H
#define DIBS_GATEWAY_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* The normal form of `path`: escapes of unreserved characters are decoded, the others have capital digits, dot
 * segments are removed. `out` has room for size + 1. False: an escape is invalid or hides a control character, a backslash
 * is in it, or a dot segment with parameters, which servlet containers remove later. */
bool gate_path_normal(const char *path, size_t size, char *out);
/* In place, from the normal form: what routes are compared with. // is one /, the parameters of a segment (";a=b") are
 * left out, and an escape is the character, unless that has a meaning of its own in a path or is not printable. */
void gate_path_plain(char *path);

/* A value of a query, decoded; `out` has room for size + 1. False: an escape is invalid, or a NUL. */
bool gate_query_decode(const char *text, size_t size, char *out);

/* "/orders/{asterisk}" is one segment, "/orders/{asterisk}{asterisk}" the rest, at least one segment. Only what a
 * plain path can match: it is plain itself. */
bool gate_pattern_valid(const char *pattern);
/* `first`, `first_size`: what the first asterisk matched; may be NULL. */
bool gate_pattern_match(const char *pattern, const char *path, const char **first,
                        size_t *first_size);
/* Does `wide` match everything that `narrow` matches? */
bool gate_pattern_covers(const char *wide, const char *narrow);

#endif
