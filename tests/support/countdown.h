/* The n-th of something fails, alone or with all after it, in whatever thread. */
#ifndef DIBS_TESTS_COUNTDOWN_H
#define DIBS_TESTS_COUNTDOWN_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct countdown {
    atomic_long asked, at; /* at = 0: nothing fails */
    atomic_bool on, struck, ours;
} countdown;

static inline void countdown_start(countdown *c, long n, bool for_ever)
{
    atomic_store(&c->asked, 0);
    atomic_store(&c->struck, false);
    atomic_store(&c->on, for_ever);
    atomic_store(&c->at, n);
}

/* True: it has struck. */
static inline bool countdown_end(countdown *c)
{
    atomic_store(&c->at, 0);
    return atomic_load(&c->struck);
}

/* Code of the program itself, which the library is linked into, or of a shared library? */
static inline bool countdown_is_ours(const void *caller)
{
    extern const char __executable_start[], etext[];

    return (const char *)caller >= __executable_start && (const char *)caller < etext;
}

/* `caller`: the return address of what was called. */
static inline bool countdown_strikes(countdown *c, const void *caller)
{
    long at = atomic_load(&c->at), n;

    if (at == 0 || (atomic_load(&c->ours) && !countdown_is_ours(caller)))
        return false;
    n = atomic_fetch_add(&c->asked, 1) + 1;
    if (n != at && !(n > at && atomic_load(&c->on)))
        return false;
    atomic_store(&c->struck, true);
    return true;
}

#endif
