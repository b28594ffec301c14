/* What the holder of a lock sees and leaves behind, in memory that all workers share: whoever is
 * inside must be alone there, with a higher fence than the last one. */
#include "bench.h"

#include <stdatomic.h>

void bench_section_in(bench_section *s, int id, uint64_t fence, bool counted)
{
    if (atomic_exchange(&s->inside, id + 1) != 0)
        atomic_fetch_add(&s->violations, 1);
    if (fence != 0 && fence <= atomic_exchange(&s->fence, fence))
        atomic_fetch_add(&s->violations, 1);
    if (atomic_exchange(&s->owner, id + 1) != id + 1 && counted)
        atomic_fetch_add(&s->changes, 1);
}

void bench_section_out(bench_section *s, int id)
{
    if (atomic_exchange(&s->inside, 0) != id + 1)
        atomic_fetch_add(&s->violations, 1);
}
