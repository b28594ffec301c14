/* Checks that are the same for every engine: the p99 of a round trip in percent of the lease. */
#include "doctor/checks.h"

#include <stddef.h>

const dibs__check dibs__checks_any[] = {
    {"latency.too-slow",
     DIBS__DANGER,
     {{"latency", DIBS__ABOVE, "33"}},
     "a round trip takes {p50} (p50), {p99} (p99 of {exchanges}); the lease is {lease}",
     "a lease is renewed when a third of it has passed: a slow renewal arrives after its end, and "
     "the "
     "lock is lost",
     "use a longer lease (--lease, lease_ms), or a server that is nearer or less busy"},
    {"latency.slow",
     DIBS__WARNING,
     {{"latency", DIBS__ABOVE, "5"}, {"latency", DIBS__BELOW, "34"}},
     "a round trip takes {p50} (p50), {p99} (p99 of {exchanges}); the lease is {lease}",
     "few retries fit between a renewal that fails and the end of the lease",
     "use a longer lease (--lease, lease_ms), or a server that is nearer or less busy"},
    {0},
};
