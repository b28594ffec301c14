/* Giving back and leaving the line: one entry removed, in one exchange.
 *
 * A lock that is given back before its min_hold is over lingers: the entry stays in its place and
 * belongs to nobody. When the entry is not there any more, the line and the lock's value tell why. */
#define _GNU_SOURCE
#include "core/error.h"
#include "families/entries/inner.h"

#include <string.h>

static dibs_status no_memory(const dibs__line *line, dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory", line->side->adapter->name);
}

/* ---- Small exchanges ------------------------------------------------------------------------- */

dibs_status dibs__line_look(dibs__line *line, const char *name, dibs__deadline until,
                            dibs__line_listing *out, dibs_error *err)
{
    dibs__line_call *call = dibs__ask_new(line, name, NULL);
    dibs_status status;

    if (!call)
        return no_memory(line, err);
    call->again = true;
    status = dibs__ask_wait(line, line->side->adapter->list, call, until, err);
    if (status == DIBS_OK) {
        dibs__line_listing_fini(out);
        *out = call->listing;
        memset(&call->listing, 0, sizeof call->listing);
    }
    dibs__ask_free(call);
    return status;
}

dibs_status dibs__line_remove(dibs__line *line, const char *name, const char *key,
                              dibs__deadline until, bool *there, dibs_error *err)
{
    dibs__line_call *call = dibs__ask_new(line, name, key);
    dibs_status status;

    if (!call)
        return no_memory(line, err);
    status = dibs__ask_wait(line, line->side->adapter->remove, call, until, err);
    if (status == DIBS_OK && there)
        *there = call->there;
    dibs__ask_free(call);
    return status;
}

static bool owner_is_in(const dibs__line_listing *l, const char *owner, const char *attempt)
{
    uint64_t hash = dibs__hash(owner);
    dibs__line_key key;

    for (size_t i = 0; i < l->count; i++)
        if (dibs__line_key_read(l->entry[i].key, &key) && !key.kept && key.owner == hash &&
            (key.attempt_length != strlen(attempt) ||
             memcmp(key.attempt, attempt, key.attempt_length) != 0))
            return true;
    return false;
}

dibs_status dibs__line_why(dibs__line *line, const char *name, const char *owner,
                           const char *attempt, uint64_t fence, dibs__deadline until,
                           dibs__verdict *out, dibs_error *err)
{
    dibs__line_listing listing = {0};
    dibs__line_note note;
    dibs_status status = dibs__line_look(line, name, until, &listing, err);

    if (status != DIBS_OK)
        return status;
    dibs__line_note_read(listing.value, &note);
    *out = DIBS__LOST;
    if (owner_is_in(&listing, owner, attempt))
        *out = DIBS__RESUMED;
    else if (fence && fence <= note.upto)
        *out = DIBS__BROKEN;
    dibs__line_listing_fini(&listing);
    return DIBS_OK;
}

/* ---- Release --------------------------------------------------------------------------------- */

/* What is left of its min_hold; 0: nothing. */
static int64_t left_to_hold(const dibs__line *line, const dibs__line_seat *s)
{
    int64_t left = s->since + s->min_hold - dibs__now(line->base.env);

    return s->min_hold > 0 && left > 0 ? left : 0;
}

/* What the entry says of itself while it lingers: the span stands where the lease was. */
static void lingering_value(const dibs__line_seat *s, int64_t span, char out[DIBS__LINE_VALUE_SIZE])
{
    dibs__asker who;

    dibs__line_value_read(s->value, s->key, &who);
    dibs__line_value_write(out, &who, span);
}

static dibs_status give_back(dibs__line *line, dibs__line_seat *s, dibs__deadline until,
                             bool *there, dibs_error *err)
{
    int64_t span = left_to_hold(line, s);
    char value[DIBS__LINE_VALUE_SIZE];
    dibs__line_call *call;
    dibs_status status;

    if (span == 0)
        return dibs__line_remove(line, s->name, s->key, until, there, err);
    call = dibs__ask_new(line, s->name, s->key);
    if (!call)
        return no_memory(line, err);
    lingering_value(s, span, value);
    call->value = dibs__ask_copy(call, value);
    call->span = span;
    status = call->value ? dibs__ask_wait(line, line->side->adapter->linger, call, until, err)
                         : no_memory(line, err);
    *there = call->there;
    dibs__ask_free(call);
    return status;
}

/* The seat, if there is one that an exchange makes sense for. */
static dibs__line_seat *use_seat(dibs__line *line, const char *attempt)
{
    dibs__line_seat *s;

    pthread_mutex_lock(&line->mutex);
    s = dibs__line_seat_find(line, attempt);
    if (s && s->dead) {
        dibs__line_seat_drop(line, s);
        s = NULL;
    }
    if (s) {
        dibs__view_leave(line, s);
        dibs__line_seat_use(s);
    }
    pthread_mutex_unlock(&line->mutex);
    return s;
}

static void leave_seat(dibs__line *line, dibs__line_seat *s, bool settled)
{
    pthread_mutex_lock(&line->mutex);
    if (settled)
        dibs__line_seat_drop(line, s);
    dibs__line_seat_unuse(line, s);
    pthread_mutex_unlock(&line->mutex);
}

dibs_status dibs__line_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                               dibs__reply *out, dibs_error *err)
{
    dibs__line *line = dibs__line_of(e);
    dibs__line_seat *s = use_seat(line, claim->attempt);
    bool there = false, ours;
    dibs_status status = DIBS_OK;

    memset(out, 0, sizeof *out);
    out->verdict = DIBS__RELEASED;
    if (s) {
        ours = s->state != DIBS__LINE_SEAT_LEAVING;
        status = give_back(line, s, until, &there, err);
        leave_seat(line, s, status == DIBS_OK);
        there = there && ours;
    }
    if (status != DIBS_OK || there)
        return status;
    return dibs__line_why(line, claim->name, claim->owner, claim->attempt, claim->fence, until,
                          &out->verdict, err);
}

/* ---- Cancel ---------------------------------------------------------------------------------- */

/* An `enter` without an answer may have made an entry. */
static dibs_status find_key(dibs__line *line, dibs__line_seat *s, dibs__deadline until,
                            dibs_error *err)
{
    dibs__line_call *call;
    dibs_status status;

    if (s->key[0] || !s->maybe_made)
        return DIBS_OK;
    call = dibs__ask_new(line, s->name, NULL);
    if (!call)
        return no_memory(line, err);
    call->again = true;
    status = dibs__ask_wait(line, line->side->adapter->list, call, until, err);
    pthread_mutex_lock(&line->mutex);
    for (size_t i = 0; status == DIBS_OK && i < call->listing.count; i++)
        if (dibs__line_is_ours(call->listing.entry[i].key, s->attempt, call->session))
            strncpy(s->key, call->listing.entry[i].key, sizeof s->key - 1);
    pthread_mutex_unlock(&line->mutex);
    dibs__ask_free(call);
    return status;
}

dibs_status dibs__line_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                              dibs_error *err)
{
    dibs__line *line = dibs__line_of(e);
    dibs__line_seat *s = use_seat(line, claim->attempt);
    dibs_status status;

    if (!s)
        return DIBS_OK;
    status = find_key(line, s, until, err);
    if (status == DIBS_OK && !s->key[0] && s->maybe_made) {
        pthread_mutex_lock(&line->mutex); /* it may come yet: looked for again, in the background */
        dibs__line_seat_leave(line, s);
        pthread_mutex_unlock(&line->mutex);
    }
    if (status == DIBS_OK && s->key[0])
        status = dibs__line_remove(line, s->name, s->key, until, NULL, err);
    leave_seat(line, s, status == DIBS_OK && (s->key[0] || !s->maybe_made));
    return status;
}
