/* What a test that is an engine's handle does not listen to: QUIET_SINK in the initializer of its sink. */
#ifndef DIBS_TESTS_SINK_H
#define DIBS_TESTS_SINK_H

#include "engines/engine.h"

static inline void quiet_look_again(dibs__sink *sink, bool holders)
{
    (void)sink, (void)holders;
}

static inline bool quiet_waited_for(dibs__sink *sink)
{
    (void)sink;
    return true;
}

#define QUIET_SINK .look_again = quiet_look_again, .waited_for = quiet_waited_for

#endif
