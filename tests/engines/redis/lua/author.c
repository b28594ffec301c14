/* Commands on a lock by chance: see lock.h. */
#define _GNU_SOURCE
#include "lock.h"

#include "support/env.h"

#include <stdio.h>
#include <string.h>

uint64_t author_chance(lock_author *a, uint64_t below)
{
    return sim_random(&a->seed) % below;
}

/* Every owner asks through two handles. What is not fresh may be asked for again, or comes late: an attempt
 * that its handle has given up. */
static void choose_attempt(lock_author *a, int owner, bool fresh, char *out, size_t size)
{
    int handle = author_chance(a, 10) == 0, n;

    if (fresh)
        a->attempt[owner][handle]++;
    n = a->attempt[owner][handle];
    if (!fresh && n > 0 && author_chance(a, 6) == 0)
        n -= author_chance(a, 4) == 0 && n > 1 ? 2 : 1;
    snprintf(out, size, "h%d%d-%x", owner % 2, handle, n);
}

static void choose_asker(lock_author *a, command *c)
{
    dibs__asker *who = &c->who;
    int owner = (int)author_chance(a, OWNERS);

    snprintf(who->owner, sizeof who->owner, "owner\n%d", owner);
    choose_attempt(a, owner, c->kind == COMMAND_ACQUIRE && author_chance(a, 3) > 0, who->attempt,
                   sizeof who->attempt);
    snprintf(who->host, sizeof who->host, "host %d", owner);
    who->pid = 1000 + owner;
    strcpy(who->wake, "P");
    who->lease = (int64_t)(1 + author_chance(a, 40)) * 50000;
    who->min_hold = author_chance(a, 6) == 0 ? (int64_t)author_chance(a, 10) * 50000 : 0;
    if (c->capacity == DIBS__PLAIN)
        who->weight = author_chance(a, 3) == 0 ? 1 : DIBS__PLAIN;
    else
        who->weight = 1 + (uint32_t)author_chance(a, c->capacity);
}

static uint64_t choose_fence(lock_author *a, const tiny *lock, const char *owner)
{
    for (size_t i = 0; i < lock->holders && author_chance(a, 8) > 0; i++)
        if (strcmp(lock->holder[i].who.owner, owner) == 0)
            return lock->holder[i].fence;
    return author_chance(a, 2) ? 0 : lock->record.fence - author_chance(a, 3);
}

void author_next(lock_author *a, const tiny *lock, command *c)
{
    static const command_kind kinds[] = {
        COMMAND_ACQUIRE, COMMAND_ACQUIRE, COMMAND_ACQUIRE, COMMAND_ACQUIRE,
        COMMAND_KEEP,    COMMAND_KEEP,    COMMAND_RELEASE, COMMAND_RELEASE,
        COMMAND_RELEASE, COMMAND_CANCEL,  COMMAND_SETTLE,
    };

    memset(c, 0, sizeof *c);
    c->kind = kinds[author_chance(a, sizeof kinds / sizeof kinds[0])];
    if (a->breaks && author_chance(a, 40) == 0)
        c->kind = COMMAND_BREAK;
    a->now += (int64_t)author_chance(a, author_chance(a, 8) == 0 ? 1500000 : 30000) -
              (author_chance(a, 50) == 0 ? 200000 : 0);
    c->now = (dibs__time){a->now, a->now};
    c->capacity = author_chance(a, 30) == 0 ? 1 + (uint32_t)author_chance(a, 5) : a->capacity;
    choose_asker(a, c);
    c->window = author_chance(a, 4) == 0 ? 0 : (int64_t)(1 + author_chance(a, 30)) * 50000;
    c->fence = choose_fence(a, lock, c->who.owner);
    c->at_once = author_chance(a, 2);
}
