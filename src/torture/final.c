/* The state that the run left in the store, read when no worker is left. */
#define _GNU_SOURCE
#include "torture.h"

void torture_final(const torture_plan *plan, const torture_shared *shared, int history)
{
    (void)plan;
    (void)shared;
    (void)history;
}
