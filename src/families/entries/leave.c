/* Giving back and leaving the queue: one entry removed, in one exchange.
 *
 * A lock that is given back before its min_hold is over lingers: the entry stays in its place and
 * belongs to nobody. When the entry is not there any more, the queue and the lock's value tell why. */
#define _GNU_SOURCE
#include "core/error.h"
#include "families/entries/inner.h"

#include <string.h>

static dibs_status no_memory(const dibs__entries *entries, dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory", entries->backend->adapter->name);
}

/* ---- Small exchanges ------------------------------------------------------------------------- */

dibs_status dibs__entries_read(dibs__entries *entries, const char *name, dibs__deadline until,
                               dibs__entries_listing *out, dibs_error *err)
{
    dibs__entries_call *call = dibs__ask_new(entries, name, NULL);
    dibs_status status;

    if (!call)
        return no_memory(entries, err);
    call->again = true;
    status = dibs__ask_wait(entries, entries->backend->adapter->list, call, until, err);
    if (status == DIBS_OK) {
        dibs__entries_listing_fini(out);
        *out = call->listing;
        memset(&call->listing, 0, sizeof call->listing);
    }
    dibs__ask_free(call);
    return status;
}

dibs_status dibs__entries_remove(dibs__entries *entries, const char *name, const char *key,
                                 dibs__deadline until, bool *there, dibs_error *err)
{
    dibs__entries_call *call = dibs__ask_new(entries, name, key);
    dibs_status status;

    if (!call)
        return no_memory(entries, err);
    status = dibs__ask_wait(entries, entries->backend->adapter->remove, call, until, err);
    if (status == DIBS_OK && there)
        *there = call->there;
    dibs__ask_free(call);
    return status;
}

static bool owner_is_in(const dibs__entries_listing *l, const char *owner, const char *attempt)
{
    uint64_t hash = dibs__hash(owner);
    dibs__entries_key key;

    for (size_t i = 0; i < l->count; i++)
        if (dibs__entries_key_read(l->entry[i].key, &key) && !key.lingering && key.owner == hash &&
            (key.attempt_length != strlen(attempt) ||
             memcmp(key.attempt, attempt, key.attempt_length) != 0))
            return true;
    return false;
}

dibs_status dibs__entries_why(dibs__entries *entries, const char *name, const char *owner,
                              const char *attempt, uint64_t fence, dibs__deadline until,
                              dibs__verdict *out, dibs_error *err)
{
    dibs__entries_listing listing = {0};
    dibs__entries_note note;
    dibs_status status = dibs__entries_read(entries, name, until, &listing, err);

    if (status != DIBS_OK)
        return status;
    dibs__entries_note_read(listing.value, &note);
    *out = DIBS__LOST;
    if (owner_is_in(&listing, owner, attempt))
        *out = DIBS__RESUMED;
    else if (fence && fence <= note.upto)
        *out = DIBS__BROKEN;
    dibs__entries_listing_fini(&listing);
    return DIBS_OK;
}

/* ---- Release --------------------------------------------------------------------------------- */

/* What is left of its min_hold; 0: nothing. */
static int64_t left_to_hold(const dibs__entries *entries, const dibs__own_entry *s)
{
    int64_t left = s->since + s->min_hold - dibs__now(entries->base.env);

    return s->min_hold > 0 && left > 0 ? left : 0;
}

/* What the entry says of itself while it lingers: the span stands where the lease was. */
static void lingering_value(const dibs__own_entry *s, int64_t span,
                            char out[DIBS__ENTRIES_VALUE_SIZE])
{
    dibs__asker who;

    dibs__entries_value_read(s->value, s->key, &who);
    dibs__entries_value_write(out, &who, span);
}

/* Where requests keep their order, the next in the queue, if it is ours, needs no exchange after this one. */
static dibs_status remove_own(dibs__entries *entries, dibs__own_entry *s, dibs__deadline until,
                              bool *there, dibs_error *err)
{
    const dibs__entries_adapter *adapter = entries->backend->adapter;
    dibs__entries_call *call = dibs__ask_new(entries, s->name, s->key);
    dibs_status status;

    if (!call)
        return no_memory(entries, err);
    call->remove.was_first = s->state == DIBS__OWN_ENTRY_HOLDING && s->weight == s->capacity;
    call->own.fence = s->fence;
    status = dibs__ask_begin(entries, adapter->remove, call, until, err);
    if (status == DIBS_OK) {
        if (adapter->in_order && s->place)
            dibs__view_follow(entries, s->name, s->place);
        status = dibs__ask_end(entries, call, err);
    }
    *there = status == DIBS_OK && call->there;
    dibs__ask_free(call);
    return status;
}

static dibs_status give_back(dibs__entries *entries, dibs__own_entry *s, dibs__deadline until,
                             bool *there, dibs_error *err)
{
    int64_t span = left_to_hold(entries, s);
    char value[DIBS__ENTRIES_VALUE_SIZE];
    dibs__entries_call *call;
    dibs_status status;

    if (span == 0)
        return remove_own(entries, s, until, there, err);
    call = dibs__ask_new(entries, s->name, s->key);
    if (!call)
        return no_memory(entries, err);
    lingering_value(s, span, value);
    call->linger.value = dibs__ask_copy(call, value);
    call->linger.span = span;
    status = call->linger.value
                 ? dibs__ask_wait(entries, entries->backend->adapter->linger, call, until, err)
                 : no_memory(entries, err);
    *there = call->there;
    dibs__ask_free(call);
    return status;
}

/* The own entry, if there is one that an exchange makes sense for. */
static dibs__own_entry *use_own_entry(dibs__entries *entries, const char *attempt)
{
    dibs__own_entry *s;

    pthread_mutex_lock(&entries->mutex);
    s = dibs__own_entry_find(entries, attempt);
    if (s && s->dead) {
        dibs__own_entry_drop(entries, s);
        s = NULL;
    }
    if (s) {
        dibs__view_leave(entries, s);
        dibs__own_entry_use(s);
    }
    pthread_mutex_unlock(&entries->mutex);
    return s;
}

static void leave_own_entry(dibs__entries *entries, dibs__own_entry *s, bool settled)
{
    pthread_mutex_lock(&entries->mutex);
    if (settled)
        dibs__own_entry_drop(entries, s);
    dibs__own_entry_unuse(entries, s);
    pthread_mutex_unlock(&entries->mutex);
}

dibs_status dibs__entries_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                  dibs__reply *out, dibs_error *err)
{
    dibs__entries *entries = dibs__entries_of(e);
    dibs__own_entry *s = use_own_entry(entries, claim->attempt);
    bool there = false, ours;
    dibs_status status = DIBS_OK;

    memset(out, 0, sizeof *out);
    out->verdict = DIBS__RELEASED;
    if (s) {
        ours = s->state != DIBS__OWN_ENTRY_LEAVING;
        status = give_back(entries, s, until, &there, err);
        leave_own_entry(entries, s, status == DIBS_OK);
        there = there && ours;
    }
    if (status != DIBS_OK || there)
        return status;
    return dibs__entries_why(entries, claim->name, claim->owner, claim->attempt, claim->fence,
                             until, &out->verdict, err);
}

/* ---- Cancel ---------------------------------------------------------------------------------- */

/* An `enter` without an answer may have made an entry. */
static dibs_status find_key(dibs__entries *entries, dibs__own_entry *s, dibs__deadline until,
                            dibs_error *err)
{
    dibs__entries_call *call;
    dibs_status status;

    if (s->key[0] || !s->maybe_made)
        return DIBS_OK;
    call = dibs__ask_new(entries, s->name, NULL);
    if (!call)
        return no_memory(entries, err);
    call->again = true;
    status = dibs__ask_wait(entries, entries->backend->adapter->list, call, until, err);
    pthread_mutex_lock(&entries->mutex);
    for (size_t i = 0; status == DIBS_OK && i < call->listing.count; i++)
        if (dibs__entries_is_ours(call->listing.entry[i].key, s->attempt, call->session))
            dibs__own_entry_set_key(s, call->listing.entry[i].key);
    pthread_mutex_unlock(&entries->mutex);
    dibs__ask_free(call);
    return status;
}

dibs_status dibs__entries_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                 dibs_error *err)
{
    dibs__entries *entries = dibs__entries_of(e);
    dibs__own_entry *s = use_own_entry(entries, claim->attempt);
    dibs_status status;

    if (!s)
        return DIBS_OK;
    status = find_key(entries, s, until, err);
    if (status == DIBS_OK && !s->key[0] && s->maybe_made) {
        pthread_mutex_lock(
            &entries->mutex); /* it may come yet: looked for again, in the background */
        dibs__own_entry_leave(entries, s);
        pthread_mutex_unlock(&entries->mutex);
    }
    if (status == DIBS_OK && s->key[0])
        status = dibs__entries_remove(entries, s->name, s->key, until, NULL, err);
    leave_own_entry(entries, s, status == DIBS_OK && (s->key[0] || !s->maybe_made));
    return status;
}
