/* Names and times for people. Names are any bytes but NUL: control characters, invisible ones and those that
 * change the direction of writing (U+202E), bytes that are no UTF-8 and the backslash are shown as \n, \t, \xNN and \\, so that no name can steer a terminal or
 * break a line. */
#ifndef DIBS_CLI_TEXT_H
#define DIBS_CLI_TEXT_H

#include "dibs.h"

#include <stdio.h>

/* Holds any name, owner or host, escaped. */
#define CLI_SHOWN_SIZE (DIBS_NAME_MAX * 4 + 1)

/* Escapes as above; cuts what does not fit. Returns the columns it takes. */
size_t cli_escape(char *out, size_t size, const char *bytes);

/* Prints a message of ours as one line: as above, but a backslash stays as it is. */
void cli_print_line(FILE *to, const char *message);

/* What stands before the last @ of `text[0..size)` becomes ***, in place. */
void cli_hide_login(char *text, size_t size);

/* Length of the UTF-8 character at `s`, which ends in NUL; 0 when it is none. */
size_t cli_utf8_length(const char *s);

/* How many columns of a terminal the UTF-8 character at `s` takes: 0 (a combining one), 1 or 2. */
size_t cli_columns(const char *s);

/* "850ms", "12s", "3m05s", "2h10m", "3d04h" */
const char *cli_format_span(char out[24], int64_t ms);

/* Local time: "2024-05-01 12:00:03" */
const char *cli_format_time(char out[32], int64_t unix_ms);

#endif
