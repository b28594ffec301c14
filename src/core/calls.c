/* The public calls of dibs.h that take a dibs_error; see the header. */
#include "core/calls.h"
#include "core/error.h"

DIBS__CALLS(DIBS__CALL_DEFINE)
