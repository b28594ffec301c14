/* Cells over a network that is cut at any byte: what was asked for once is done once, or said to be
 * unknown, and what is told is true. */
#ifndef DIBS_TESTS_CUTTING_H
#define DIBS_TESTS_CUTTING_H

#include "dibs.h"
#include "support/proxy.h"

/* `d` goes through the proxy, `witness` does not. The cuts come every `up` and `down` bytes. */
void cut_counters(proxy *p, dibs *d, dibs *witness, int up, int down);
void cut_cells(proxy *p, dibs *d, dibs *witness, int up, int down);

#endif
