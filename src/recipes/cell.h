/* What the recipes on cells share: keys, checks, and one command with its repetition when the reply
 * was lost. */
#ifndef DIBS_RECIPES_CELL_H
#define DIBS_RECIPES_CELL_H

#include "core/handle.h"

#define DIBS__DAY_MS ((int64_t)24 * 3600 * 1000)

/* The first letter of a key: what the cell is used for. */
typedef enum dibs__key_kind {
    DIBS__KEY_CELL = 'c',
    DIBS__KEY_COUNTER = 'n',
    DIBS__KEY_ONCE = 'o',
    DIBS__KEY_TOKEN = 't',
} dibs__key_kind;

/* "c:name", or "o:3:payname": the scope's size keeps ("ab", "c") and ("a", "bc") apart. `scope` NULL:
 * this kind has none. */
void dibs__key(dibs__key_kind kind, const char *scope, const char *name,
               char out[DIBS__CELL_KEY_SIZE]);

/* 1 to DIBS_NAME_MAX bytes, or DIBS_INVALID; `what` begins the message: "a cell's name". */
dibs_status dibs__check_text(const char *what, const char *text, bool may_be_empty,
                             dibs_error *err);
/* Does a value of so many bytes fit the engine? */
dibs_status dibs__check_size(const dibs *d, const char *what, const void *data, size_t size,
                             dibs_error *err);
/* The handle is ours to use, and its engine has cells. */
dibs_status dibs__cells_ready(dibs *d, dibs_error *err);

/* One command, asked again with the same stamp while no answer comes; a counter's without a request
 * is not: it could count twice. `unsure` (may be NULL) is set when a reply was lost on the way: then
 * CONFLICT and ABSENT may be of our own doing. `reply->data` is the caller's. Not with the mutex. */
dibs_status dibs__cell_do(dibs *d, const char *key, const dibs__cell_command *command, bool notify,
                          dibs__deadline until, dibs__cell_reply *reply, bool *unsure,
                          dibs_error *err);

#endif
