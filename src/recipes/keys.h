/* What an operator sees of a key of `once`, and what he may put in its place: what keys.c (list, inspect) and
 * settle.c (forget, resolve) share. */
#ifndef DIBS_RECIPES_KEYS_H
#define DIBS_RECIPES_KEYS_H

#include "recipes/cell.h"
#include "recipes/record.h"

/* What a record of that age is to somebody who asks for the key now. */
dibs_once_state dibs__once_state_of(const dibs__run_record *r, int64_t age);

/* The scope and the key: 1 to DIBS_NAME_MAX bytes; the scope may be NULL or empty. */
dibs_status dibs__check_key(dibs *d, const char *scope, const char *key, dibs_error *err);

/* The record of a key, with an age that tells whether its runner is alive. DIBS_NOT_FOUND: there is none. The
 * reply's data is the caller's, whatever the status. */
dibs_status dibs__once_read(dibs *d, const char *cell, const char *key, dibs__cell_reply *out,
                            dibs__deadline until, dibs_error *err);

#endif
