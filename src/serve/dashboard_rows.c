/* Rows of the page; see the header.
 *
 * Leases are sent as the time at which they end. A renewal moves it; a listing alone moves it by the milliseconds that the
 * clocks and the calls differ, which is no change. */
#include "serve/dashboard_rows.h"

#include <stdlib.h>
#include <string.h>

enum { JITTER_MS = 700, HOLDERS = 20 };

/* ---- Rows and lists -------------------------------------------------------------------------- */

static void row_free(dash_row *r)
{
    free(r->id);
    free(r->text);
    free(r->identity);
    free(r->queue);
    free(r->waiter);
    free(r->wait_ms);
}

void dash_list_free(dash_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        row_free(&l->row[i]);
    free(l->row);
    *l = (dash_list){0};
}

static dash_row *add(dash_list *l)
{
    if (l->count == l->room) {
        size_t room = l->room ? l->room * 2 : 64;
        dash_row *row = realloc(l->row, room * sizeof *row);
        if (!row)
            return NULL;
        l->row = row;
        l->room = room;
    }
    l->row[l->count] = (dash_row){0};
    return &l->row[l->count++];
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const dash_row *)a)->id, ((const dash_row *)b)->id);
}

dash_row *dash_list_find(const dash_list *l, const char *id)
{
    dash_row key = {.id = (char *)(uintptr_t)id};

    return l->count ? bsearch(&key, l->row, l->count, sizeof key, by_id) : NULL;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t size)
{
    for (const unsigned char *at = bytes; size > 0; size--)
        hash = (hash ^ *at++) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    return text ? mix(hash, text, strlen(text) + 1) : mix(hash, "\1", 1);
}

static uint64_t who(const dibs_party *p)
{
    uint64_t hash = mix_text(mix_text(UINT64_C(14695981039346656037), p->owner), p->host);

    return mix(hash, &p->pid, sizeof p->pid);
}

/* Leases may have no end. */
static int64_t end_of(const dibs_party *p, int64_t at_ms)
{
    return p->left_ms < INT64_MAX - at_ms ? at_ms + p->left_ms : INT64_MAX;
}

static bool is_near(int64_t a, int64_t b)
{
    return a > b ? a - b < JITTER_MS : b - a < JITTER_MS; /* both are positive */
}

/* ---- Locks ----------------------------------------------------------------------------------- */

static bool is_since_known(const dibs_party *p, const dash_when *when)
{
    return !when->session || p->since_ms < when->began_ms;
}

/* `since_ms` is left out: the fence says which grant it is. */
static uint64_t mark_of(const dibs_lock_info *lock, const dash_when *when, int64_t *until_ms)
{
    uint64_t numbers[] = {lock->slots,        lock->used,         lock->fence,
                          lock->holder_count, lock->waiter_count, (uint64_t)lock->broken_at_ms};
    uint64_t hash = mix(mix_text(0, lock->broken_by), numbers, sizeof numbers);

    *until_ms = INT64_MAX;
    for (size_t i = 0; i < lock->holder_count; i++) {
        const dibs_party *p = lock->holders[i];
        uint64_t more[] = {who(p),      p->fence,    is_since_known(p, when),
                           p->released, p->breaking, p->shared};

        hash = mix(hash, more, sizeof more);
        if (!when->session && end_of(p, when->at_ms) < *until_ms)
            *until_ms = end_of(p, when->at_ms);
    }
    return hash;
}

static void put_party(http_buffer *t, const dibs_party *p, const dash_when *when, bool holder)
{
    dash_comma(t);
    http_buffer_add(t, "{", 1);
    dash_member(t, "owner", p->owner);
    dash_member(t, "host", p->host);
    dash_integer(t, "pid", p->pid);
    if (is_since_known(p, when))
        dash_integer(t, "since_ms", p->since_ms);
    if (holder && !when->session)
        dash_integer(t, "until_ms", end_of(p, when->at_ms));
    if (holder)
        dash_integer(t, "fence", (int64_t)p->fence);
    if (p->weight > 1)
        dash_integer(t, "weight", p->weight);
    if (p->shared)
        http_buffer_text(t, ",\"shared\":true");
    if (p->released)
        http_buffer_text(t, ",\"released\":true");
    if (p->breaking)
        http_buffer_text(t, ",\"breaking\":true");
    http_buffer_add(t, "}", 1);
}

static char *lock_text(const dibs_lock_info *lock, const dash_when *when)
{
    http_buffer t = {0};
    char *text;

    http_buffer_add(&t, "{", 1);
    dash_member(&t, "name", lock->name);
    dash_integer(&t, "slots", lock->slots);
    dash_integer(&t, "used", lock->used);
    if (lock->fence)
        dash_integer(&t, "fence", (int64_t)lock->fence);
    else
        http_buffer_text(&t, ",\"fence\":null");
    dash_integer(&t, "holder_count", (int64_t)lock->holder_count);
    dash_integer(&t, "waiter_count", (int64_t)lock->waiter_count);
    if (lock->broken_by) {
        dash_member(&t, "broken_by", lock->broken_by);
        dash_integer(&t, "broken_at_ms", lock->broken_at_ms);
    }
    http_buffer_text(&t, ",\"holders\":[");
    for (size_t i = 0; i < lock->holder_count && i < HOLDERS; i++)
        put_party(&t, lock->holders[i], when, true);
    http_buffer_add(&t, "]", 1);
    text = http_buffer_copy(&t);
    http_buffer_free(&t);
    return text;
}

static char *identity_of(const char *scope, const char *key, const char *member)
{
    http_buffer t = {0};
    char *text;

    http_buffer_add(&t, "{", 1);
    if (scope)
        dash_member(&t, "scope", scope);
    dash_member(&t, member, key);
    http_buffer_add(&t, "}", 1);
    text = http_buffer_copy(&t);
    http_buffer_free(&t);
    return text;
}

/* A holder that was seen in the queue has waited until it got the lock. */
static void note_waits(dash_row *row, const dibs_lock_info *lock)
{
    for (size_t i = 0; i < lock->holder_count; i++)
        for (size_t k = 0; k < row->waiters; k++) {
            const dibs_party *p = lock->holders[i];
            int64_t ms = p->since_ms - row->waiter[k].since_ms;

            if (row->waiter[k].who != who(p) || ms < 0)
                continue;
            row->waiter[k] = row->waiter[--row->waiters]; /* counted once */
            if (!row->wait_ms)
                row->wait_ms = calloc(DASH_WAITS, sizeof *row->wait_ms);
            if (row->wait_ms)
                row->wait_ms[row->waits++ % DASH_WAITS] =
                    ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
            break;
        }
}

static bool fill_lock(dash_row *row, const dibs_lock_info *lock, const dash_when *when,
                      uint64_t frame)
{
    int64_t until_ms;
    uint64_t mark = mark_of(lock, when, &until_ms);

    if (row->id)
        note_waits(row, lock);
    if (row->id && lock->waiter_count == 0 && row->queue) {
        free(row->queue);
        row->queue = NULL;
        row->looked = row->waiters = 0;
        row->changed = frame;
    }
    if (row->id && row->mark == mark && is_near(until_ms, row->until_ms))
        return true;
    if (!row->id) {
        row->name = row->id = strdup(lock->name);
        row->identity = identity_of(NULL, lock->name, "name");
    }
    free(row->text);
    row->text = lock_text(lock, when);
    row->mark = mark;
    row->until_ms = until_ms;
    row->held = lock->holder_count;
    row->waiting = lock->waiter_count;
    row->changed = frame;
    return row->id && row->identity && row->text;
}

/* Whether the engine's order is ours is not taken for granted. */
static void sort(dash_list *l)
{
    for (size_t i = 1; i < l->count; i++)
        if (by_id(&l->row[i - 1], &l->row[i]) > 0) {
            qsort(l->row, l->count, sizeof *l->row, by_id);
            return;
        }
}

/* What was neither moved nor replaced is gone. The list is empty afterwards. */
static bool leave_gone(dash_list *old, dash_list *gone)
{
    bool good = true;

    for (size_t i = 0; i < old->count; i++) {
        dash_row *row = &old->row[i], *to = row->fate == DASH_GONE ? add(gone) : NULL;

        good = good && (to || row->fate != DASH_GONE);
        if (to)
            *to = *row;
        else if (row->fate != DASH_MOVED)
            row_free(row);
    }
    free(old->row);
    *old = (dash_list){0};
    return good;
}

bool dash_locks_take(dash_list *now, dash_list *gone, const dibs_lock_report *report,
                     const dash_when *when, uint64_t frame)
{
    dash_list fresh = {0};
    size_t count = dibs_lock_report_count(report);
    bool good = true;

    fresh.cut = count > DASH_LOCKS;
    for (size_t i = 0; good && i < count && i < DASH_LOCKS; i++) {
        const dibs_lock_info *lock = dibs_lock_report_at(report, i);
        dash_row *row = add(&fresh), *old = dash_list_find(now, lock->name);

        good = row != NULL;
        if (good && old && old->fate == DASH_GONE) {
            *row = *old;
            old->fate =
                DASH_MOVED; /* what it points to is the new row's; it still has its place in the order */
        }
        good = good && fill_lock(row, lock, when, frame);
    }
    good = leave_gone(now, gone) && good;
    sort(&fresh);
    *now = fresh;
    if (!good)
        dash_list_free(now);
    return good;
}

/* Since when somebody waits; if the engine does not know, since the first look that saw it. */
static int64_t waits_since(const dash_row *row, const dibs_party *p, const dash_when *when)
{
    for (size_t i = 0; i < row->waiters && !is_since_known(p, when); i++)
        if (row->waiter[i].who == who(p))
            return row->waiter[i].since_ms;
    return p->since_ms;
}

static void note_queue(dash_row *row, const dibs_lock_info *lock, size_t count,
                       const dash_when *when)
{
    dash_waiter *waiter = calloc(count ? count : 1, sizeof *waiter);

    for (size_t i = 0; waiter && i < count; i++)
        waiter[i] = (dash_waiter){.who = who(lock->waiters[i]),
                                  .since_ms = waits_since(row, lock->waiters[i], when)};
    free(row->waiter);
    row->waiter = waiter;
    row->waiters = waiter ? count : 0;
}

void dash_row_look(dash_row *row, const dibs_lock_info *lock, const dash_when *when, uint64_t frame)
{
    http_buffer t = {0};
    size_t count = lock->waiters ? lock->waiter_count : 0;
    char *queue;

    row->looked = frame;
    count = count < DASH_QUEUE ? count : DASH_QUEUE;
    http_buffer_add(&t, "[", 1);
    for (size_t i = 0; i < count; i++)
        put_party(&t, lock->waiters[i], when, false);
    http_buffer_add(&t, "]", 1);
    queue = http_buffer_copy(&t);
    http_buffer_free(&t);
    if (!queue)
        return;
    if (!row->queue || strcmp(row->queue, queue) != 0)
        row->changed = frame;
    free(row->queue);
    row->queue = queue;
    note_queue(row, lock, count, when);
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static char *key_text(const dibs_once_info *key, int64_t at_ms)
{
    http_buffer t = {0};
    char *text;

    http_buffer_add(&t, "{", 1);
    dash_member(&t, "scope", key->scope);
    dash_member(&t, "key", key->key);
    dash_member(&t, "state", dibs_once_state_name(key->state));
    dash_integer(&t, "version", (int64_t)key->version);
    dash_integer(&t, "runs", key->runs);
    if (key->damage)
        dash_member(&t, "damage", key->damage);
    if (key->runner) {
        http_buffer_text(&t, ",\"runner\":");
        put_party(&t, key->runner, &(dash_when){.at_ms = at_ms}, true);
    }
    text = http_buffer_copy(&t);
    http_buffer_free(&t);
    return text;
}

/* Scope and key are any bytes but NUL; \1 sorts a scope before one that continues it. */
static bool name_key(dash_row *row, const dibs_once_info *key)
{
    size_t scope = strlen(key->scope), size = strlen(key->key);

    row->id = malloc(scope + size + 2);
    if (!row->id)
        return false;
    memcpy(row->id, key->scope, scope);
    row->id[scope] = '\1';
    memcpy(row->id + scope + 1, key->key, size + 1);
    row->name = row->id + scope + 1;
    row->identity = identity_of(key->scope, key->key, "key");
    return row->identity != NULL;
}

bool dash_keys_add(dash_list *fresh, const dibs_once_report *page, int64_t at_ms)
{
    for (size_t i = 0; i < dibs_once_report_count(page); i++) {
        const dibs_once_info *key = dibs_once_report_at(page, i);
        dash_row *row = fresh->count < DASH_KEYS ? add(fresh) : NULL;

        if (!row) {
            fresh->cut = true;
            return fresh->count == DASH_KEYS;
        }
        row->state = key->state;
        row->until_ms = key->runner ? end_of(key->runner, at_ms) : 0;
        row->mark = mix(key->version, &key->state, sizeof key->state);
        row->text = key_text(key, at_ms);
        if (!row->text || !name_key(row, key))
            return false;
    }
    return true;
}

bool dash_keys_take(dash_list *now, dash_list *gone, dash_list *fresh, uint64_t frame)
{
    bool good;

    sort(fresh);
    for (size_t i = 0; i < fresh->count; i++) {
        dash_row *row = &fresh->row[i], *old = dash_list_find(now, row->id);
        bool same = old && old->mark == row->mark && is_near(row->until_ms, old->until_ms);

        row->changed = same ? old->changed : frame;
        if (same)
            row->until_ms = old->until_ms; /* so that a slow drift adds up to a change */
        if (old)
            old->fate = DASH_REPLACED;
    }
    good = leave_gone(now, gone);
    *now = *fresh;
    *fresh = (dash_list){0};
    return good;
}

/* ---- Out ------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static uint32_t wait_p99(const dash_row *row)
{
    uint32_t sorted[DASH_WAITS];
    size_t count = row->waits < DASH_WAITS ? row->waits : DASH_WAITS;

    memcpy(sorted, row->wait_ms, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_size);
    return sorted[(count * 99 + 99) / 100 - 1];
}

void dash_row_write(const dash_row *row, http_buffer *out)
{
    http_buffer_text(out, row->text);
    if (row->queue) {
        http_buffer_text(out, ",\"waiters\":");
        http_buffer_text(out, row->queue);
    }
    if (row->waits) {
        dash_integer(out, "wait_p99_ms", wait_p99(row));
        dash_integer(out, "wait_count", (int64_t)row->waits);
    }
    http_buffer_add(out, "}", 1);
}

void dash_count(const dash_list *locks, const dash_list *keys, serve_census *out)
{
    for (size_t i = 0; i < locks->count; i++) {
        out->held += locks->row[i].held > 0;
        out->waiters += locks->row[i].waiting;
        out->contended += locks->row[i].waiting > 0;
    }
    for (size_t i = 0; i < keys->count; i++) {
        out->running += keys->row[i].state == DIBS_ONCE_RUNNING;
        out->crashed += keys->row[i].state == DIBS_ONCE_CRASHED;
        out->damaged += keys->row[i].state == DIBS_ONCE_DAMAGED;
    }
}
