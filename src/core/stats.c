/* Histograms of the handle: powers of two in microseconds. */
#include "core/stats.h"

void dibs__histogram_add(dibs_histogram *h, int64_t us)
{
    uint64_t value = us > 0 ? (uint64_t)us : 0;
    int bucket = value ? 64 - __builtin_clzll(value) : 0;

    h->count++;
    h->sum_us += value;
    if (value > h->max_us)
        h->max_us = value;
    h->bucket[bucket < DIBS_BUCKETS ? bucket : DIBS_BUCKETS - 1]++;
}
