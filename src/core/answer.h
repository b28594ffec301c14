/* A request is out, and its answer will come: one thread waits for it, for as long as its patience lasts, another
 * brings it. What they share (the request, room for the answer) is freed by the one who is done with it last.
 *
 *   who asks     dibs__answer_expect, hand the request over (or expect_none), dibs__answer_wait, dibs__answer_leave
 *   who answers  write the answer, dibs__answer_give
 *
 * Neither takes a mutex for this, and what one of them has written before, the other sees after. For calls whose callers
 * take turns in reading the answers for each other, see core/driver.h. */
#ifndef DIBS_CORE_ANSWER_H
#define DIBS_CORE_ANSWER_H

#include "core/env.h"

#include <stdbool.h>

/* Zeroed: no answer is awaited, and somebody wants it. */
typedef struct dibs__answer {
    _Atomic int word; /* 1: nobody waits any more; and 2 for each answer that is to come */
} dibs__answer;

/* One more is to come: before the request is handed over. */
void dibs__answer_expect(dibs__answer *a);
/* It could not be handed over. */
void dibs__answer_expect_none(dibs__answer *a);

int dibs__answer_awaited(const dibs__answer *a); /* how many */
static inline bool dibs__answer_came(const dibs__answer *a)
{
    return dibs__answer_awaited(a) == 0;
}
/* True: all have come. */
bool dibs__answer_wait(dibs__answer *a, const dibs__env *env, dibs__deadline until);

/* Each is called once by its side, which afterwards touches nothing of it. True: the other side is done with it, and
 * the caller frees what they share. */
bool dibs__answer_leave(dibs__answer *a);
bool dibs__answer_give(dibs__answer *a);

#endif
