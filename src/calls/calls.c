/* The public calls of dibs.h that take a dibs_error; see core/calls.h. What each does is the core's, a recipe's or the
 * doctor's, which know nothing of this folder. */
#include "core/calls.h"
#include "core/error.h"

DIBS__CALLS(DIBS__CALL_DEFINE)
