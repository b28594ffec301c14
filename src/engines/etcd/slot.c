/* Which key an entry gets. Etcd remembers every key that ever was until its history is compacted,
 * and a look at a queue walks over all of them, so that keys are used again: each entry of a handle
 * takes the lowest number that is free. The number belongs to the attempt as long as its entry may
 * exist: an attempt that asks again asks for the same key. */
#define _GNU_SOURCE
#include "engines/etcd/etcd.h"

#include <stdlib.h>
#include <string.h>

typedef struct slot {
    dibs__node by_attempt;
    unsigned number;
    bool by_tail; /* the end of the queue may tell of its entry */
    char attempt[];
} slot;

static slot *find(dibs__etcd *e, const char *attempt, size_t length)
{
    dibs__node *n = NULL;
    char text[DIBS__ATTEMPT_SIZE];

    if (length >= sizeof text)
        return NULL;
    memcpy(text, attempt, length);
    text[length] = '\0';
    for (n = dibs__table_first(&e->slots, dibs__hash(text)); n; n = dibs__table_next(n))
        if (strcmp(DIBS__FROM(slot, by_attempt, n)->attempt, text) == 0)
            return DIBS__FROM(slot, by_attempt, n);
    return NULL;
}

/* The lowest bit that is not set; grows when there is none. */
static bool lowest_free(dibs__etcd *e, unsigned *out)
{
    for (size_t i = 0; i < e->slot_words; i++) {
        if (e->slot_used[i] != UINT64_MAX) {
            *out = (unsigned)(i * 64 + (size_t)__builtin_ctzll(~e->slot_used[i]));
            return true;
        }
    }
    size_t words = e->slot_words ? 2 * e->slot_words : 1;
    uint64_t *used = realloc(e->slot_used, words * sizeof *used);
    if (!used)
        return false;
    memset(used + e->slot_words, 0, (words - e->slot_words) * sizeof *used);
    *out = (unsigned)(e->slot_words * 64);
    e->slot_used = used;
    e->slot_words = words;
    return true;
}

bool dibs__etcd_slot_take(dibs__etcd *e, const char *attempt, bool by_tail, unsigned *out)
{
    slot *s;
    bool ok = true;

    pthread_mutex_lock(&e->lock);
    s = find(e, attempt, strlen(attempt));
    if (!s) {
        s = calloc(1, sizeof *s + strlen(attempt) + 1);
        ok = s && dibs__table_reserve(&e->slots) && lowest_free(e, &s->number);
        if (ok) {
            strcpy(s->attempt, attempt);
            e->slot_used[s->number / 64] |= 1ull << s->number % 64;
            dibs__table_add(&e->slots, &s->by_attempt, dibs__hash(attempt));
        } else {
            free(s);
        }
    }
    if (ok) {
        *out = s->number;
        s->by_tail |= by_tail;
    }
    pthread_mutex_unlock(&e->lock);
    return ok;
}

bool dibs__etcd_slot_by_tail(dibs__etcd *e, const char *attempt, size_t length)
{
    const slot *s;
    bool yes;

    pthread_mutex_lock(&e->lock);
    s = find(e, attempt, length);
    yes = !s || s->by_tail;
    pthread_mutex_unlock(&e->lock);
    return yes;
}

/* Frees the number too, unless somebody else's entry is in the way there. */
static void drop(dibs__etcd *e, slot *s, bool reuse)
{
    if (!s)
        return;
    if (reuse)
        e->slot_used[s->number / 64] &= ~(1ull << s->number % 64);
    dibs__table_remove(&e->slots, &s->by_attempt);
    free(s);
}

void dibs__etcd_slot_drop(dibs__etcd *e, const char *attempt, size_t length, bool reuse)
{
    pthread_mutex_lock(&e->lock);
    drop(e, find(e, attempt, length), reuse);
    pthread_mutex_unlock(&e->lock);
}

void dibs__etcd_slots_clear(dibs__etcd *e)
{
    for (size_t i = 0; i < e->slots.size; i++)
        while (e->slots.slot[i])
            drop(e, DIBS__FROM(slot, by_attempt, e->slots.slot[i]), true);
    if (e->slot_used)
        memset(e->slot_used, 0, e->slot_words * sizeof *e->slot_used);
}

void dibs__etcd_slots_fini(dibs__etcd *e)
{
    dibs__etcd_slots_clear(e);
    dibs__table_fini(&e->slots);
    free(e->slot_used);
}
