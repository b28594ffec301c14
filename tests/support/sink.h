/* What a test that is an engine's handle does not listen to: QUIET_SINK in the initializer of its sink. */
#ifndef DIBS_TESTS_SINK_H
#define DIBS_TESTS_SINK_H

#include "engines/engine.h"

static inline void quiet_changed(dibs__sink *sink, uint64_t cell)
{
    (void)sink, (void)cell;
}

static inline void quiet_check_all(dibs__sink *sink, unsigned at)
{
    (void)sink, (void)at;
}

static inline bool quiet_waited_for(dibs__sink *sink)
{
    (void)sink;
    return true;
}

#define QUIET_SINK \
    .changed = quiet_changed, .check_all = quiet_check_all, .waited_for = quiet_waited_for

#endif
