/* A ring, the oldest first, and two tables of chains into it; see the header. */
#include "serve/past.h"
#include "serve/secret.h"
#include "serve/sets.h"

#include <stdlib.h>
#include <string.h>

enum { PAST = 1 << 17, CHAINS = 1 << 16 };

typedef struct entry {
    serve_ended ended;
    int64_t until_ms;
    uint32_t next[2]; /* in the chain of its key, and of its id: 0, or one more than the place */
} entry;

struct serve_past {
    size_t first, count;
    uint32_t chain[2][CHAINS];
    entry ring[PAST]; /* pages that were never used cost nothing */
};

/* Which table. */
enum { BY_KEY, BY_ID };

uint64_t serve_past_hash(const char hash[33])
{
    char half[17];

    memcpy(half, hash, 16);
    half[16] = '\0';
    return strtoull(half, NULL, 16);
}

uint64_t serve_past_id(const char *id)
{
    char hash[33];

    serve_hash(hash, (const char *[]){id, NULL});
    return serve_past_hash(hash);
}

serve_past *serve_past_new(void)
{
    return calloc(1, sizeof(serve_past));
}

void serve_past_free(serve_past *p)
{
    free(p);
}

static uint64_t value_of(const entry *e, int by)
{
    return by == BY_KEY ? e->ended.key : e->ended.id;
}

static void link_entry(serve_past *p, size_t at, int by)
{
    uint32_t *chain = &p->chain[by][value_of(&p->ring[at], by) % CHAINS];

    if (value_of(&p->ring[at], by) == 0)
        return;
    p->ring[at].next[by] = *chain;
    *chain = (uint32_t)at + 1;
}

static void unlink_entry(serve_past *p, size_t at, int by)
{
    uint32_t *place = &p->chain[by][value_of(&p->ring[at], by) % CHAINS];

    if (value_of(&p->ring[at], by) == 0)
        return;
    while (*place && *place != at + 1)
        place = &p->ring[*place - 1].next[by];
    if (*place)
        *place = p->ring[at].next[by];
}

static void drop_first(serve_past *p)
{
    unlink_entry(p, p->first, BY_KEY);
    unlink_entry(p, p->first, BY_ID);
    p->first = --p->count == 0 ? 0 : (p->first + 1) % PAST;
}

static void expire(serve_past *p, int64_t now_ms)
{
    while (p->count > 0 && p->ring[p->first].until_ms <= now_ms)
        drop_first(p);
}

void serve_past_add(serve_past *p, const serve_ended *ended, int64_t now_ms)
{
    size_t at;

    if (!p)
        return;
    expire(p, now_ms);
    if (p->count == PAST)
        drop_first(p);
    at = (p->first + p->count++) % PAST;
    p->ring[at] = (entry){.ended = *ended, .until_ms = now_ms + SERVE_REMEMBER_MS};
    link_entry(p, at, BY_KEY);
    link_entry(p, at, BY_ID);
}

/* The newest of them is the first in its chain. */
static const serve_ended *find(serve_past *p, uint64_t value, int by, int64_t now_ms)
{
    if (!p)
        return NULL;
    expire(p, now_ms);
    for (uint32_t at = p->chain[by][value % CHAINS]; at; at = p->ring[at - 1].next[by])
        if (value_of(&p->ring[at - 1], by) == value)
            return &p->ring[at - 1].ended;
    return NULL;
}

const serve_ended *serve_past_of_key(serve_past *p, uint64_t key, int64_t now_ms)
{
    return find(p, key, BY_KEY, now_ms);
}

const serve_ended *serve_past_of_id(serve_past *p, uint64_t id, int64_t now_ms)
{
    return find(p, id, BY_ID, now_ms);
}
