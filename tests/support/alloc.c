#define _GNU_SOURCE
#include "support/alloc.h"

#include "support/countdown.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static countdown allocations;
static atomic_long live;

static bool refused(const void *caller)
{
    if (!countdown_strikes(&allocations, caller))
        return false;
    errno = ENOMEM;
    return true;
}

void alloc_fail(long n, bool for_ever)
{
    countdown_start(&allocations, n, for_ever);
}

bool alloc_heal(void)
{
    return countdown_end(&allocations);
}

void alloc_only_ours(bool ours)
{
    atomic_store(&allocations.ours, ours);
}

long alloc_live(void)
{
    return atomic_load(&live);
}

#ifdef ALLOC_WRAPPED

const bool alloc_balances = false;

#define REAL(name) __real_##name
#define OURS(name) __wrap_##name

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
char *OURS(strdup)(const char *text);
char *OURS(strndup)(const char *text, size_t size);

static void *counted(void *new)
{
    if (new)
        atomic_fetch_add(&live, 1);
    return new;
}

void *OURS(malloc)(size_t size)
{
    return refused(__builtin_return_address(0)) ? NULL : counted(REAL(malloc)(size));
}

void *OURS(calloc)(size_t count, size_t size)
{
    return refused(__builtin_return_address(0)) ? NULL : counted(REAL(calloc)(count, size));
}

void *OURS(realloc)(void *old, size_t size)
{
    void *new;

    if (refused(__builtin_return_address(0)))
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

/* The C library's would ask for memory in its own name. */
char *OURS(strndup)(const char *text, size_t size)
{
    size_t length = strnlen(text, size);
    char *copy = refused(__builtin_return_address(0)) ? NULL : counted(REAL(malloc)(length + 1));

    if (copy) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

char *OURS(strdup)(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = refused(__builtin_return_address(0)) ? NULL : counted(REAL(malloc)(size));

    return copy ? memcpy(copy, text, size) : NULL;
}
