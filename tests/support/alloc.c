#define _GNU_SOURCE
#include "support/alloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long asked, live, fail_at;
static atomic_bool fail_on, failed;

static bool refused(void)
{
    long at = atomic_load(&fail_at), n;

    if (at == 0)
        return false;
    n = atomic_fetch_add(&asked, 1) + 1;
    if (n != at && !(n > at && atomic_load(&fail_on)))
        return false;
    atomic_store(&failed, true);
    errno = ENOMEM;
    return true;
}

void alloc_fail(long n, bool for_ever)
{
    atomic_store(&asked, 0);
    atomic_store(&failed, false);
    atomic_store(&fail_on, for_ever);
    atomic_store(&fail_at, n);
}

bool alloc_heal(void)
{
    atomic_store(&fail_at, 0);
    return atomic_load(&failed);
}

long alloc_count(void)
{
    return atomic_load(&asked);
}

long alloc_live(void)
{
    return atomic_load(&live);
}

#ifdef ALLOC_WRAPPED

const bool alloc_balances = false;

#define REAL(name) __real_##name
#define OURS(name) __wrap_##name
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);

char *__wrap_strdup(const char *text)
{
    return refused() ? NULL : __real_strdup(text);
}

#else

const bool alloc_balances = true;

#define REAL(name) __libc_##name
#define OURS(name) name

#endif

void *REAL(malloc)(size_t size);
void *REAL(calloc)(size_t count, size_t size);
void *REAL(realloc)(void *old, size_t size);
void REAL(free)(void *old);
void *OURS(malloc)(size_t size);
void *OURS(calloc)(size_t count, size_t size);
void *OURS(realloc)(void *old, size_t size);
void OURS(free)(void *old);

static void *counted(void *new)
{
    if (new)
        atomic_fetch_add(&live, 1);
    return new;
}

void *OURS(malloc)(size_t size)
{
    return refused() ? NULL : counted(REAL(malloc)(size));
}

void *OURS(calloc)(size_t count, size_t size)
{
    return refused() ? NULL : counted(REAL(calloc)(count, size));
}

void *OURS(realloc)(void *old, size_t size)
{
    void *new;

    if (refused())
        return NULL;
    new = REAL(realloc)(old, size);
    return old ? new : counted(new);
}

void OURS(free)(void *old)
{
    if (old)
        atomic_fetch_sub(&live, 1);
    REAL(free)(old);
}
