/* Looking at locks, breaking them, and asking holders to stop.
 *
 * Who holds follows from the listing alone: the entries from the front whose weights fit. A break
 * writes into the lock's value up to which fence it asked, and in the same step marks the entries of
 * the holders, or removes them: a holder finds the mark with its next keep-alive, and one whose
 * entry is gone finds in the value that it was broken. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/report.h"
#include "families/entries/inner.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 10 /* somebody else breaks it, or sets its capacity, at the same moment */

/* ---- Reports --------------------------------------------------------------------------------- */

/* How many from the front hold. */
static size_t count_holders(const dibs__entries_listing *l, uint32_t capacity, uint32_t *used)
{
    uint64_t sum = 0;
    size_t n = 0;

    *used = 0;
    for (; n < l->count && (sum += l->entry[n].weight) <= capacity && !dibs__entries_blocked(l, n);
         n++)
        *used = (uint32_t)sum;
    return n;
}

static void fill_record(const dibs__entries_listing *l, const dibs__entries_note *note,
                        dibs__record *out)
{
    memset(out, 0, sizeof *out);
    out->capacity = note->capacity ? note->capacity : DIBS__PLAIN;
    out->holders = (uint32_t)count_holders(l, out->capacity, &out->used);
    out->waiters = (uint32_t)l->count - out->holders;
    for (size_t i = 0; i < out->holders; i++)
        if (l->entry[i].fence > out->fence)
            out->fence = l->entry[i].fence;
    if (out->holders == 0)
        out->fence = l->fence;
    if (note->broken_at) {
        out->broken_fence = note->upto + 1;
        out->broken_at = note->broken_at;
        memcpy(out->broken_by, note->broken_by, sizeof out->broken_by);
    }
}

/* The session's remaining time is its owner's secret: what is shown is the lease that it asks for. */
static void add_holder(dibs__report_builder *b, const dibs__queue_entry *e, dibs__time now)
{
    dibs__holder h = {.fence = e->fence, .released = e->lingering};

    dibs__entries_value_read(e->value, e->key, &h.who);
    h.who.weight = e->weight;
    h.since = e->since ? e->since : now.lease;
    h.expires = (e->lingering && e->since ? e->since : now.lease) + h.who.lease;
    dibs__report_holder(b, &h, now);
}

static void add_waiter(dibs__report_builder *b, const dibs__queue_entry *e, dibs__time now)
{
    dibs__waiter w = {.place = e->place};

    dibs__entries_value_read(e->value, e->key, &w.who);
    w.who.weight = e->weight;
    w.since = e->since ? e->since : now.lease;
    w.alive_until = now.lease + w.who.lease;
    dibs__report_waiter(b, &w, now);
}

static void report(dibs__entries *entries, const char *name, dibs__entries_listing *l, bool waiters,
                   dibs__report_builder *out)
{
    int64_t wall = entries->base.env->wall(entries->base.env->ctx);
    dibs__time now = {wall, wall};
    dibs__record record;
    dibs__entries_note note;

    dibs__entries_listing_sort(l);
    dibs__entries_note_read(l->value, &note);
    fill_record(l, &note, &record);
    dibs__report_lock(out, name, &record);
    for (size_t i = 0; i < l->count; i++) {
        if (i < record.holders)
            add_holder(out, &l->entry[i], now);
        else if (waiters)
            add_waiter(out, &l->entry[i], now);
    }
}

static dibs_status no_memory(const dibs__entries *entries, dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory", entries->backend->adapter->name);
}

/* The answer stays in `*out`, to be freed, when DIBS_OK comes back. */
static dibs_status list_with_values(dibs__entries *entries, const char *name, dibs__deadline until,
                                    dibs__entries_call **out, dibs_error *err)
{
    dibs__entries_call *call = dibs__ask_new(entries, name, NULL);
    dibs_status status;

    if (!call)
        return no_memory(entries, err);
    call->again = call->list.values = true;
    status = dibs__ask_wait(entries, entries->backend->adapter->list, call, until, err);
    if (status == DIBS_OK)
        *out = call;
    else
        dibs__ask_free(call);
    return status;
}

dibs_status dibs__entries_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                  dibs__report_builder *out, dibs_error *err)
{
    dibs__entries *entries = dibs__entries_of(e);
    dibs__entries_call *call = NULL;
    dibs_status status = list_with_values(entries, name, until, &call, err);

    if (status != DIBS_OK)
        return status;
    if (call->listing.exists)
        report(entries, name, &call->listing, true, out);
    dibs__ask_free(call);
    return DIBS_OK;
}

dibs_status dibs__entries_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err)
{
    dibs__entries *entries = dibs__entries_of(e);
    dibs__entries_call *call = dibs__ask_new(entries, NULL, NULL);
    dibs__entries_lock *lock;
    dibs_status status;

    if (!call)
        return no_memory(entries, err);
    call->names.idle = idle;
    call->names.prefix = dibs__ask_copy(call, prefix);
    status = call->names.prefix
                 ? dibs__ask_wait(entries, entries->backend->adapter->names, call, until, err)
                 : no_memory(entries, err);
    if (status == DIBS_UNKNOWN && atomic_load(&call->names.reads) > 0)
        status =
            dibs__fail(err, DIBS_UNAVAILABLE,
                       "%s: reading %zu locks, idle ones included, timed out: give a prefix, or "
                       "wait until the server has removed idle locks",
                       entries->backend->adapter->name, atomic_load(&call->names.reads));
    if (status == DIBS_OK) {
        size_t count = dibs__ask_locks(call, &lock);
        for (size_t i = 0; i < count; i++)
            if (lock[i].listing.exists && (idle || lock[i].listing.count > 0))
                report(entries, lock[i].name, &lock[i].listing, false, out);
    }
    dibs__ask_free(call);
    return status;
}

/* ---- Breaking -------------------------------------------------------------------------------- */

typedef struct breaking {
    dibs__entries *entries;
    const char *name, *by;
    bool at_once;
    dibs__deadline until;
    dibs__reply *out;
    dibs_error *err;
    size_t asked; /* holders that are left to let go */
} breaking;

/* The new value of the lock. An idle one forgets its capacity, so that it can be made anew. */
static void write_note(const breaking *b, const dibs__entries_listing *l, size_t holders,
                       char out[DIBS__ENTRIES_VALUE_SIZE])
{
    const dibs__env *env = b->entries->base.env;
    dibs__entries_note note;

    dibs__entries_note_read(l->value, &note);
    if (l->count == 0 && l->value)
        note.capacity = 0;
    note.upto = 0;
    for (size_t i = 0; i < holders; i++)
        if (!l->entry[i].lingering && l->entry[i].fence > note.upto)
            note.upto = l->entry[i].fence;
    note.broken_at = env->wall(env->ctx);
    strncpy(note.broken_by, b->by, sizeof note.broken_by - 1);
    note.broken_by[sizeof note.broken_by - 1] = '\0';
    dibs__entries_note_write(out, &note);
}

/* The keys of those that hold, and what they store; both belong to the call. Those given back already
 * belong to nobody and need not be asked. */
static bool pick(dibs__entries_call *call, const dibs__entries_listing *l, size_t holders)
{
    const char **keys = calloc(2 * holders + 1, sizeof *keys);

    call->write.keys = keys;
    call->write.key_values = keys + holders;
    for (size_t i = 0; keys && i < holders; i++) {
        const char *value = l->entry[i].value;
        if (l->entry[i].lingering)
            continue;
        keys[call->write.count] = dibs__ask_copy(call, l->entry[i].key);
        keys[holders + call->write.count] = dibs__ask_copy(call, value ? value : "");
        if (!keys[call->write.count] || !keys[holders + call->write.count])
            return false;
        call->write.count++;
    }
    return keys != NULL;
}

/* DIBS_OK with *done = false: somebody was faster. */
static dibs_status write_break(breaking *b, const dibs__entries_listing *l, size_t holders,
                               bool *done)
{
    dibs__entries *entries = b->entries;
    dibs__entries_call *call = dibs__ask_new(entries, b->name, NULL);
    char value[DIBS__ENTRIES_VALUE_SIZE];
    dibs_status status;

    if (!call)
        return no_memory(entries, b->err);
    write_note(b, l, holders, value);
    call->write.value = dibs__ask_copy(call, value);
    call->write.version = l->version;
    call->write.at_once = b->at_once;
    if (call->write.value && pick(call, l, holders))
        status = dibs__ask_wait(entries, entries->backend->adapter->write, call, b->until, b->err);
    else
        status = no_memory(entries, b->err);
    *done = status == DIBS_OK && call->there;
    b->asked = b->at_once ? 0 : call->write.count;
    b->out->fence = status == DIBS_OK ? call->fence : 0;
    dibs__ask_free(call);
    return status;
}

static dibs_status remove_lingering(breaking *b, const dibs__entries_listing *l, size_t holders)
{
    dibs_status status = DIBS_OK;

    for (size_t i = 0; i < holders && status == DIBS_OK; i++)
        if (l->entry[i].lingering)
            status =
                dibs__entries_remove(b->entries, b->name, l->entry[i].key, b->until, NULL, b->err);
    return status;
}

static dibs_status break_listed(breaking *b, dibs__entries_listing *l, bool *done)
{
    uint32_t capacity = dibs__entries_capacity(l->value), used;
    size_t holders;
    dibs_status status;

    dibs__entries_listing_sort(l);
    holders = count_holders(l, capacity ? capacity : DIBS__PLAIN, &used);
    status = write_break(b, l, holders, done);
    return status == DIBS_OK && *done ? remove_lingering(b, l, holders) : status;
}

dibs_status dibs__entries_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    breaking b = {dibs__entries_of(e), name, by, at_once, until, out, err, 0};
    dibs_status status = DIBS_OK;
    bool done = false;

    memset(out, 0, sizeof *out);
    for (int i = 0; i < TRIES && status == DIBS_OK && !done; i++) {
        dibs__entries_call *call = NULL;
        status = list_with_values(b.entries, name, until, &call, err);
        if (status != DIBS_OK)
            return status;
        if (!call->listing.exists) {
            out->verdict = DIBS__LOST;
            done = true;
        } else {
            status = break_listed(&b, &call->listing, &done);
            out->verdict = b.asked ? DIBS__BUSY : DIBS__RELEASED;
        }
        dibs__ask_free(call);
    }
    if (status == DIBS_OK && !done)
        status = dibs__fail(err, DIBS_UNAVAILABLE, "'%.200s' changes too fast to be broken: retry",
                            name);
    return status;
}

/* ---- Asking back ----------------------------------------------------------------------------- */

/* The same step as a break, with the lock's value as it is. Marked once is enough. */
static dibs_status mark(dibs__entries *entries, const char *name, const dibs__entries_listing *l,
                        bool (*is_one)(void *data, const dibs__queue_entry *e), void *data,
                        dibs__deadline until, bool *done, dibs_error *err)
{
    dibs__entries_call *call = dibs__ask_new(entries, name, NULL);
    const char **keys = calloc(2 * l->count + 1, sizeof *keys);
    bool complete = call && keys;
    dibs_status status;

    for (size_t i = 0; complete && i < l->count; i++) {
        const dibs__queue_entry *e = &l->entry[i];
        if (e->marked || !is_one(data, e))
            continue;
        keys[call->write.count] = dibs__ask_copy(call, e->key);
        keys[l->count + call->write.count] = dibs__ask_copy(call, e->value ? e->value : "");
        complete = keys[call->write.count] && keys[l->count + call->write.count];
        call->write.count++;
    }
    if (!complete || call->write.count == 0) {
        *done = complete;
        free(keys);
        if (call)
            dibs__ask_drop(call);
        return complete ? DIBS_OK : no_memory(entries, err);
    }
    call->write.keys = keys;
    call->write.key_values = keys + l->count;
    call->write.value =
        l->value ? dibs__ask_copy(call, l->value) : NULL; /* not every lock has one */
    call->write.version = l->version;
    status = !l->value == !call->write.value
                 ? dibs__ask_wait(entries, entries->backend->adapter->write, call, until, err)
                 : no_memory(entries, err);
    *done = status == DIBS_OK && call->there;
    dibs__ask_free(call);
    return status;
}

dibs_status dibs__entries_ask_back(dibs__entries *entries, const char *name,
                                   bool (*is_one)(void *data, const dibs__queue_entry *e),
                                   void *data, dibs__deadline until, dibs_error *err)
{
    bool done = false;

    for (int i = 0; i < TRIES && !done; i++) {
        dibs__entries_call *call = NULL;
        dibs_status status = list_with_values(entries, name, until, &call, err);
        if (status != DIBS_OK)
            return status;
        status = mark(entries, name, &call->listing, is_one, data, until, &done, err);
        dibs__ask_free(call);
        if (status != DIBS_OK)
            return status;
    }
    return done ? DIBS_OK
                : dibs__fail(err, DIBS_UNAVAILABLE, "'%.200s' changes too fast: retry", name);
}
