/* Attempts are written HANDLE-NUMBER: the handle that asks, and a number in hexadecimal that grows with
 * every attempt of that handle. A handle gives an attempt up before it makes the next one for the same
 * owner and lock, but the messages of the old one may still arrive, at any time later: so a lower number
 * never replaces a higher one of the same handle. Between two handles the numbers say nothing.
 *
 * Those of a portable lock are HANDLE.SECRET-NUMBER: only who knows the secret can renew and release. Each
 * grant has its own, and so is a handle of its own: a later request of the same handle and owner does not
 * replace a lock that was detached, and that another handle may have adopted. */
#ifndef DIBS_STATE_ATTEMPT_H
#define DIBS_STATE_ATTEMPT_H

#include <stdbool.h>

#define DIBS__SECRET '.'

/* What the first attempt is to the second. */
typedef enum dibs__kin {
    DIBS__SAME,    /* the same attempt */
    DIBS__NEWER,   /* of the same handle, made later: replaces it */
    DIBS__OLDER,   /* of the same handle, made earlier: a late message */
    DIBS__FOREIGN, /* of another handle */
} dibs__kin;

dibs__kin dibs__attempt_kin(const char *attempt, const char *other);

/* The owner is the attempt's own handle, or a thread or request of it: no other handle uses it. Else it
 * is a name that any handle may use. */
bool dibs__owner_is_private(const char *owner, const char *attempt);

#endif
