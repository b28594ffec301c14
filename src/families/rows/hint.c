/* What is known of a name without asking: whether a fast statement would be in vain. A wrong hint
 * costs an exchange and nothing else; names that fall together share theirs. */
#include "families/rows/inner.h"

unsigned dibs__sql_hint(dibs__sql *e, uint64_t hash)
{
    return atomic_load_explicit(&e->hint[hash % DIBS__SQL_HINTS], memory_order_relaxed);
}

void dibs__sql_hint_stuck(dibs__sql *e, uint64_t hash, bool stuck)
{
    unsigned hint = dibs__sql_hint(e, hash);

    if (stuck != ((hint & DIBS__SQL_STUCK) != 0))
        dibs__sql_hint_set(e, hash, hint ^ DIBS__SQL_STUCK);
}

void dibs__sql_hint_set(dibs__sql *e, uint64_t hash, unsigned hint)
{
    atomic_store_explicit(&e->hint[hash % DIBS__SQL_HINTS], (uint8_t)hint, memory_order_relaxed);
}
