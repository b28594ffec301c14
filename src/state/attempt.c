#include "state/attempt.h"

#include <stdlib.h>
#include <string.h>

/* The bytes before the dash; all of them when there is none. */
static size_t handle_length(const char *attempt)
{
    const char *dash = strrchr(attempt, '-');

    return dash ? (size_t)(dash - attempt) : strlen(attempt);
}

dibs__kin dibs__attempt_kin(const char *attempt, const char *other)
{
    size_t n = handle_length(attempt);

    if (strcmp(attempt, other) == 0)
        return DIBS__SAME;
    if (n != handle_length(other) || memcmp(attempt, other, n) != 0 || !attempt[n] || !other[n])
        return DIBS__FOREIGN;
    return strtoull(attempt + n + 1, NULL, 16) > strtoull(other + n + 1, NULL, 16) ? DIBS__NEWER
                                                                                   : DIBS__OLDER;
}

bool dibs__owner_is_private(const char *owner, const char *attempt)
{
    size_t n = handle_length(attempt);

    return n > 0 && strncmp(owner, attempt, n) == 0 && (owner[n] == '/' || owner[n] == '-');
}
