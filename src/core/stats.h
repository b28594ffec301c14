/* Histograms of the handle: powers of two in microseconds. */
#ifndef DIBS_CORE_STATS_H
#define DIBS_CORE_STATS_H

#include "dibs.h"

void dibs__histogram_add(dibs_histogram *h, int64_t us);

#endif
