/* How long things took: counts in buckets of 2 percent each, so that a worker's share is a few kilobytes in shared
 * memory however many things it does. */
#include "bench.h"

#include <math.h>

#define PARTS BENCH_SPREAD_PARTS /* a power of two is divided into so many */

void bench_spread_add(bench_spread *s, double seconds)
{
    int exponent;
    double fraction = frexp(seconds * 1e9 + 1, &exponent); /* from 0.5 to 1 */
    int at = exponent * PARTS + (int)((fraction - 0.5) * 2 * PARTS);

    s->count[at < BENCH_SPREAD_BUCKETS ? at : BENCH_SPREAD_BUCKETS - 1]++;
    s->all++;
}

void bench_spread_merge(bench_spread *into, const bench_spread *from)
{
    for (int i = 0; i < BENCH_SPREAD_BUCKETS; i++)
        into->count[i] += from->count[i];
    into->all += from->all;
}

double bench_spread_us(const bench_spread *s, double share)
{
    long left = (long)((double)(s->all - 1) * share);
    int at = 0;

    if (s->all == 0)
        return 0;
    for (; at < BENCH_SPREAD_BUCKETS - 1 && left >= s->count[at]; at++)
        left -= s->count[at];
    return ldexp(0.5 + (at % PARTS + 0.5) / (2.0 * PARTS), at / PARTS) / 1e3;
}
