/* What `dibs once` leaves behind for duplicates, as the bytes of a result. Output on stdout alone is
 * the result as it is; else a head comes first:
 *
 *     "\x7f" "dibs" 1   which this is, and its version
 *     how               0: output follows; 1: it was too long; 2: it was not asked for
 *     0
 *     size of stdout    4 bytes, the lowest first
 *     stdout, stderr
 *
 * The exit code is the code beside the result. So a program that uses the library can read what a
 * command said, and the other way round. */
#ifndef DIBS_CLI_RESULT_H
#define DIBS_CLI_RESULT_H

#include "capture.h"

typedef enum cli_output_kind {
    CLI_OUTPUT_KEPT,
    CLI_OUTPUT_TOO_LONG,
    CLI_OUTPUT_NOT_ASKED,
} cli_output_kind;

typedef struct cli_result {
    cli_output_kind kind;
    const void *data[2]; /* stdout, stderr */
    size_t size[2];
} cli_result;

/* The bytes, freed by the caller; NULL: out of memory. */
void *cli_result_encode(const cli_result *result, size_t *size);

/* `out` borrows from `bytes`. False: it is one of ours, but of a version that we do not know. */
bool cli_result_decode(const void *bytes, size_t size, cli_result *out);

#endif
