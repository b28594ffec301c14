/* Locks in memory; see the header. A lock keeps its holders in a list by fence and a heap by
 * expiry, its waiters in a list by place, and both in one table by owner. An entry moves between
 * the two as it is. */
#define _GNU_SOURCE
#include "engines/memory/store.h"

#include "core/heap.h"
#include "core/table.h"

#include <stdlib.h>
#include <string.h>

#define DAY ((int64_t)24 * 3600 * 1000000)

typedef struct entry {
    struct entry *next, *prev;
    dibs__node by_owner;
    dibs__due expiry; /* holders */
    bool waits;
    union {
        dibs__holder holder;
        dibs__waiter waiter;
    } is;
} entry;

typedef struct list {
    entry *first, *last;
} list;

struct dibs__memory_lock {
    dibs__node by_name;
    bool exists; /* false: nothing was ever saved under this name */
    dibs__record record;
    list holders, waiters;
    dibs__table owners;
    dibs__heap expiries;
    char name[];
};

struct dibs__memory {
    dibs__table locks;
    entry *spare; /* at least one while a command runs */
    size_t sweep; /* where the next look for idle records begins */
};

/* ---- Lists and entries ----------------------------------------------------------------------- */

/* Both lists are kept in order of a number that grows, and are added to at the end. */
static void append(list *l, entry *e)
{
    e->next = NULL;
    e->prev = l->last;
    *(l->last ? &l->last->next : &l->first) = e;
    l->last = e;
}

static void unlink_entry(list *l, entry *e)
{
    *(e->prev ? &e->prev->next : &l->first) = e->next;
    *(e->next ? &e->next->prev : &l->last) = e->prev;
}

static entry *take_spare(dibs__memory *m)
{
    entry *e = m->spare;

    m->spare = e->next;
    memset(e, 0, sizeof *e);
    return e;
}

static void make_spare(dibs__memory *m, entry *e)
{
    e->next = m->spare;
    m->spare = e;
}

static entry *find(const dibs__memory_lock *lock, const char *owner, bool waits)
{
    dibs__node *n = dibs__table_first(&lock->owners, dibs__hash(owner));

    for (; n; n = dibs__table_next(n)) {
        entry *e = DIBS__FROM(entry, by_owner, n);
        const char *name = waits ? e->is.waiter.who.owner : e->is.holder.who.owner;
        if (e->waits == waits && (waits || !e->is.holder.released) && strcmp(name, owner) == 0)
            return e;
    }
    return NULL;
}

/* ---- The store ------------------------------------------------------------------------------- */

static dibs__memory_lock *lock_of(void *ctx)
{
    return ((dibs__memory_cursor *)ctx)->lock;
}

static int load(void *ctx, dibs__record *out)
{
    *out = lock_of(ctx)->record;
    return lock_of(ctx)->exists;
}

static int save(void *ctx, const dibs__record *record)
{
    lock_of(ctx)->record = *record;
    lock_of(ctx)->exists = true;
    return 0;
}

static int give_holder(const entry *e, dibs__holder *out)
{
    if (e)
        *out = e->is.holder;
    return e != NULL;
}

static int give_waiter(const entry *e, dibs__waiter *out)
{
    if (e)
        *out = e->is.waiter;
    return e != NULL;
}

static int holder_of(void *ctx, const char *owner, dibs__holder *out)
{
    return give_holder(find(lock_of(ctx), owner, false), out);
}

static int holder_expiring(void *ctx, dibs__holder *out)
{
    dibs__due *top = dibs__heap_top(&lock_of(ctx)->expiries);

    return give_holder(top ? DIBS__FROM(entry, expiry, top) : NULL, out);
}

/* They are in the order of their fences. */
static int holder_next(void *ctx, uint64_t fence, dibs__holder *out)
{
    const entry *e = lock_of(ctx)->holders.first;

    while (e && e->is.holder.fence <= fence)
        e = e->next;
    return give_holder(e, out);
}

static entry *holder_entry(dibs__memory_lock *lock, const dibs__holder *h)
{
    dibs__node *n = dibs__table_first(&lock->owners, dibs__hash(h->who.owner));

    for (; n; n = dibs__table_next(n)) {
        entry *e = DIBS__FROM(entry, by_owner, n);
        if (!e->waits && e->is.holder.fence == h->fence)
            return e;
    }
    return NULL;
}

static int holder_put(void *ctx, const dibs__holder *h)
{
    dibs__memory_cursor *c = ctx;
    entry *e = holder_entry(c->lock, h);

    if (!e) {
        e = take_spare(c->memory);
        append(&c->lock->holders, e);
        dibs__table_add(&c->lock->owners, &e->by_owner, dibs__hash(h->who.owner));
    }
    e->is.holder = *h;
    dibs__heap_put(&c->lock->expiries, &e->expiry, h->expires);
    return 0;
}

static int holder_drop(void *ctx, const dibs__holder *h)
{
    dibs__memory_cursor *c = ctx;
    entry *e = holder_entry(c->lock, h);

    dibs__heap_remove(&c->lock->expiries, &e->expiry);
    dibs__table_remove(&c->lock->owners, &e->by_owner);
    unlink_entry(&c->lock->holders, e);
    make_spare(c->memory, e);
    return 0;
}

static int waiter_of(void *ctx, const char *owner, dibs__waiter *out)
{
    return give_waiter(find(lock_of(ctx), owner, true), out);
}

static int waiter_head(void *ctx, dibs__waiter *out)
{
    return give_waiter(lock_of(ctx)->waiters.first, out);
}

static int waiter_put(void *ctx, const dibs__waiter *w)
{
    dibs__memory_cursor *c = ctx;
    entry *e = find(c->lock, w->who.owner, true);

    if (!e) {
        e = take_spare(c->memory);
        e->waits = true;
        append(&c->lock->waiters, e);
        dibs__table_add(&c->lock->owners, &e->by_owner, dibs__hash(w->who.owner));
    }
    e->is.waiter = *w;
    return 0;
}

static int waiter_drop(void *ctx, const dibs__waiter *w)
{
    dibs__memory_cursor *c = ctx;
    entry *e = find(c->lock, w->who.owner, true);

    dibs__table_remove(&c->lock->owners, &e->by_owner);
    unlink_entry(&c->lock->waiters, e);
    make_spare(c->memory, e);
    return 0;
}

static void granted(void *ctx, const dibs__holder *holder, uint64_t floor)
{
    dibs__memory_cursor *c = ctx;

    if (c->granted)
        c->granted(c->data, holder, floor);
}

static void breaking(void *ctx, const dibs__holder *holder)
{
    dibs__memory_cursor *c = ctx;

    if (c->breaking)
        c->breaking(c->data, holder);
}

const dibs__store dibs__memory_store = {
    load,      save,        holder_of,  holder_expiring, holder_next, holder_put, holder_drop,
    waiter_of, waiter_head, waiter_put, waiter_drop,     granted,     breaking,
};

/* ---- Locks by name --------------------------------------------------------------------------- */

static dibs__memory_lock *lock_named(const dibs__memory *m, const char *name)
{
    dibs__node *n = dibs__table_first(&m->locks, dibs__hash(name));

    for (; n; n = dibs__table_next(n)) {
        dibs__memory_lock *lock = DIBS__FROM(dibs__memory_lock, by_name, n);
        if (strcmp(lock->name, name) == 0)
            return lock;
    }
    return NULL;
}

static void free_lock(dibs__memory_lock *lock)
{
    list lists[] = {lock->holders, lock->waiters};

    for (int i = 0; i < 2; i++) {
        for (entry *e = lists[i].first, *next; e; e = next) {
            next = e->next;
            free(e);
        }
    }
    dibs__table_fini(&lock->owners);
    dibs__heap_fini(&lock->expiries);
    free(lock);
}

static bool idle(const dibs__memory_lock *lock)
{
    return !lock->holders.first && !lock->waiters.first;
}

/* One slot of the table at a time: nothing stays for ever, and no command pays for it. */
static void sweep(dibs__memory *m, int64_t wall)
{
    if (m->locks.size == 0)
        return;
    for (dibs__node *n = m->locks.slot[m->sweep++ & (m->locks.size - 1)], *next; n; n = next) {
        dibs__memory_lock *lock = DIBS__FROM(dibs__memory_lock, by_name, n);
        next = n->next;
        if (idle(lock) && wall - DAY > (int64_t)lock->record.fence) {
            dibs__table_remove(&m->locks, n);
            free_lock(lock);
        }
    }
}

static dibs__memory_lock *new_lock(dibs__memory *m, const char *name)
{
    dibs__memory_lock *lock;

    if (!dibs__table_reserve(&m->locks))
        return NULL;
    lock = calloc(1, sizeof *lock + strlen(name) + 1);
    if (!lock)
        return NULL;
    memcpy(lock->name, name, strlen(name) + 1);
    dibs__table_add(&m->locks, &lock->by_name, dibs__hash(name));
    return lock;
}

bool dibs__memory_begin(dibs__memory_cursor *cursor, dibs__memory *memory, const char *name,
                        int64_t wall)
{
    memset(cursor, 0, sizeof *cursor);
    sweep(memory, wall);
    cursor->memory = memory;
    cursor->lock = lock_named(memory, name);
    if (!cursor->lock)
        cursor->lock = new_lock(memory, name);
    if (!cursor->lock)
        return false;
    if (!memory->spare)
        memory->spare = calloc(1, sizeof *memory->spare);
    /* Every waiter may become a holder in one command. */
    if (memory->spare && dibs__table_reserve(&cursor->lock->owners) &&
        dibs__heap_reserve(&cursor->lock->expiries, cursor->lock->record.waiters + 1))
        return true;
    dibs__memory_end(cursor);
    return false;
}

void dibs__memory_end(dibs__memory_cursor *cursor)
{
    dibs__memory_lock *lock = cursor->lock;

    if (!lock->exists && idle(lock)) {
        dibs__table_remove(&cursor->memory->locks, &lock->by_name);
        free_lock(lock);
    }
    cursor->lock = NULL;
}

dibs__memory *dibs__memory_new(void)
{
    return calloc(1, sizeof(dibs__memory));
}

void dibs__memory_free(dibs__memory *memory)
{
    if (!memory)
        return;
    for (size_t i = 0; i < memory->locks.size; i++) {
        for (dibs__node *n = memory->locks.slot[i], *next; n; n = next) {
            next = n->next;
            free_lock(DIBS__FROM(dibs__memory_lock, by_name, n));
        }
    }
    for (entry *e = memory->spare, *next; e; e = next) {
        next = e->next;
        free(e);
    }
    dibs__table_fini(&memory->locks);
    free(memory);
}

/* ---- Looking --------------------------------------------------------------------------------- */

/* Whoever's lease is over does not hold, whether or not somebody has noticed. */
static dibs__record without_expired(const dibs__memory_lock *lock, dibs__time now)
{
    dibs__record record = lock->record;

    for (entry *e = lock->holders.first; e; e = e->next) {
        if (e->is.holder.expires > now.lease)
            continue;
        record.holders--;
        record.used -= e->is.holder.who.weight;
    }
    return record;
}

static void report(const dibs__memory_lock *lock, const dibs__record *record, bool waiters,
                   dibs__time now, dibs__report_builder *out)
{
    dibs__report_lock(out, lock->name, record);
    for (entry *e = lock->holders.first; e; e = e->next)
        if (e->is.holder.expires > now.lease)
            dibs__report_holder(out, &e->is.holder, now);
    for (entry *e = waiters ? lock->waiters.first : NULL; e; e = e->next)
        dibs__report_waiter(out, &e->is.waiter, now);
}

void dibs__memory_report(dibs__memory *memory, const char *name, dibs__time now,
                         dibs__report_builder *out)
{
    const dibs__memory_lock *lock = lock_named(memory, name);

    if (lock && lock->exists)
        report(lock, &lock->record, true, now, out);
}

void dibs__memory_report_all(dibs__memory *memory, const char *prefix, bool with_idle,
                             dibs__time now, dibs__report_builder *out)
{
    for (size_t i = 0; i < memory->locks.size; i++) {
        for (dibs__node *n = memory->locks.slot[i]; n; n = n->next) {
            const dibs__memory_lock *lock = DIBS__FROM(dibs__memory_lock, by_name, n);
            dibs__record record = without_expired(lock, now);
            if (lock->exists && (with_idle || record.holders + record.waiters > 0) &&
                strncmp(lock->name, prefix, strlen(prefix)) == 0)
                report(lock, &record, false, now, out);
        }
    }
}
