/* See answer.h. */
#include "core/answer.h"

#include "core/thread.h"

#include <stdatomic.h>

enum { LEFT = 1, ONE = 2 };

void dibs__answer_expect(dibs__answer *a)
{
    atomic_fetch_add(&a->word, ONE);
}

void dibs__answer_expect_none(dibs__answer *a)
{
    atomic_fetch_sub(&a->word, ONE);
}

int dibs__answer_awaited(const dibs__answer *a)
{
    return atomic_load(&a->word) / ONE;
}

bool dibs__answer_wait(dibs__answer *a, const dibs__env *env, dibs__deadline until)
{
    int word = atomic_load(&a->word);

    while (word >= ONE && dibs__now(env) < until)
        word = dibs__word_sleep(&a->word, word, env, until);
    return word < ONE;
}

bool dibs__answer_leave(dibs__answer *a)
{
    return atomic_fetch_or(&a->word, LEFT) < ONE;
}

bool dibs__answer_give(dibs__answer *a)
{
    int word = atomic_fetch_sub(&a->word, ONE);

    if (word == ONE)
        dibs__word_wake(&a->word);
    return word == (ONE | LEFT);
}
