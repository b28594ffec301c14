/* One lock inside one transaction: the rows that came with it, and what is to be written.
 *
 * LOOK brings the entries that the commands' owners have, and the first few by each order that the
 * machine asks for. Whatever was not brought is not below the last of those: as long as an answer
 * stays within that bound, it is right. When it would not be (many expiries or grants at once),
 * what was collected so far is written and a wider look is taken, in the same transaction. */
#define _GNU_SOURCE
#include "families/rows/inner.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_LIMIT 2
#define WIDER       8

/* ---- What the database told ------------------------------------------------------------------ */

void dibs__sql_session_fini(dibs__sql_session *s)
{
    for (size_t i = 0; i < s->sought_count; i++)
        free(s->sought[i]);
    free(s->sought);
    free(s->owners);
    free(s->holding);
    free(s->place);
    free(s->drops);
    free(s->notice);
    free(s->shown);
    free(s->shown_queue);
}

int dibs__sql_session_owner(dibs__sql_session *s, const char *owner)
{
    dibs__sql_value *larger =
        dibs__sql_grown(s->owners, s->owner_count, &s->owner_room, sizeof *s->owners);

    if (!larger)
        return -1;
    s->owners = larger;
    s->owners[s->owner_count++] =
        (dibs__sql_value){.kind = DIBS__SQL_BYTES, .bytes = owner, .size = strlen(owner)};
    return 0;
}

static void ask_look(dibs__sql_session *s, dibs__sql_batch *b, bool queue_only, int64_t limit)
{
    s->limit = limit;
    s->queue_only = queue_only;
    s->expires_bound = INT64_MAX;
    s->fence_bound = s->place_bound = UINT64_MAX;
    s->seen_expires = s->seen_fence = s->seen_place = 0;
    dibs__sql_add(b, queue_only ? DIBS__SQL_LOOK_LINE : DIBS__SQL_LOOK);
    dibs__sql_text(b, s->name);
    dibs__sql_number(b, limit);
    dibs__sql_items(b, s->owners, s->owner_count);
}

void dibs__sql_session_ask(dibs__sql_session *s, dibs__sql_batch *b, bool make, unsigned hint)
{
    bool exclusive = (hint & DIBS__SQL_HELD) && !(hint & DIBS__SQL_CROWD);

    if (make) {
        dibs__sql_add(b, DIBS__SQL_MAKE);
        dibs__sql_text(b, s->name);
    }
    dibs__sql_add(b, DIBS__SQL_LOCK);
    dibs__sql_text(b, s->name);
    ask_look(s, b, exclusive && (s->e->driver->fast >> DIBS__SQL_LOOK_LINE & 1u), FIRST_LIMIT);
}

dibs__sql_holding *dibs__sql_holding_of(dibs__sql_session *s, uint64_t fence)
{
    for (size_t i = 0; i < s->holding_count; i++)
        if (s->holding[i].holder.fence == fence)
            return &s->holding[i];
    return NULL;
}

dibs__sql_place *dibs__sql_place_of(dibs__sql_session *s, uint64_t place)
{
    for (size_t i = 0; i < s->place_count; i++)
        if (s->place[i].waiter.place == place)
            return &s->place[i];
    return NULL;
}

dibs__sql_holding *dibs__sql_holding_new(dibs__sql_session *s)
{
    dibs__sql_holding *larger =
        dibs__sql_grown(s->holding, s->holding_count, &s->holding_room, sizeof *s->holding);

    if (!larger)
        return NULL;
    s->holding = larger;
    memset(&s->holding[s->holding_count], 0, sizeof *s->holding);
    return &s->holding[s->holding_count++];
}

dibs__sql_place *dibs__sql_place_new(dibs__sql_session *s)
{
    dibs__sql_place *larger =
        dibs__sql_grown(s->place, s->place_count, &s->place_room, sizeof *s->place);

    if (!larger)
        return NULL;
    s->place = larger;
    memset(&s->place[s->place_count], 0, sizeof *s->place);
    return &s->place[s->place_count++];
}

static int add_holder_row(dibs__sql_session *s, int64_t kind, const dibs__sql_value *cells)
{
    dibs__sql_holding *h = dibs__sql_holding_of(s, (uint64_t)cells[DIBS__SQL_WHO_COLUMNS].number);

    if (!h) {
        h = dibs__sql_holding_new(s);
        if (!h)
            return -1;
        dibs__sql_read_holder(cells, &h->holder);
        h->stored = true;
    }
    if (kind == 'e' && ++s->seen_expires == (size_t)s->limit)
        s->expires_bound = h->holder.expires;
    if (kind == 'f' && ++s->seen_fence == (size_t)s->limit)
        s->fence_bound = h->holder.fence;
    return 0;
}

static int add_waiter_row(dibs__sql_session *s, int64_t kind, const dibs__sql_value *cells)
{
    dibs__sql_place *p = dibs__sql_place_of(s, (uint64_t)cells[DIBS__SQL_WHO_COLUMNS].number);

    if (!p) {
        p = dibs__sql_place_new(s);
        if (!p)
            return -1;
        dibs__sql_read_waiter(cells, &p->waiter);
        p->stored = true;
    }
    if (kind == 'w' && ++s->seen_place == (size_t)s->limit)
        s->place_bound = p->waiter.place;
    return 0;
}

static void read_lock(dibs__sql_session *s, const dibs__sql_value *cells)
{
    const dibs__sql_value *held = cells + DIBS__SQL_RECORD_COLUMNS;

    dibs__sql_read_record(cells, &s->record, &s->first_place);
    s->loaded = s->record;
    s->loaded_first = s->first_place;
    s->held = held[DIBS__SQL_WHO_COLUMNS].kind == DIBS__SQL_NUMBER;
    if (s->held)
        dibs__sql_read_holder(held, &s->holder);
    s->held_changed = false;
    s->exists = true;
    if (s->queue_only && s->record.holders > 0 && !s->held) { /* it is shared after all */
        s->expires_bound = INT64_MIN;
        s->fence_bound = 0;
    } else {
        s->queue_only = false;
    }
}

static int show_holder(dibs__sql_session *s, const dibs__sql_value *cells)
{
    dibs__holder *larger =
        dibs__sql_grown(s->shown, s->shown_count, &s->shown_room, sizeof *s->shown);

    if (!larger)
        return -1;
    s->shown = larger;
    dibs__sql_read_holder(cells, &s->shown[s->shown_count++]);
    return 0;
}

static int show_waiter(dibs__sql_session *s, const dibs__sql_value *cells)
{
    dibs__waiter *larger = dibs__sql_grown(s->shown_queue, s->shown_queue_count,
                                           &s->shown_queue_room, sizeof *s->shown_queue);

    if (!larger)
        return -1;
    s->shown_queue = larger;
    dibs__sql_read_waiter(cells, &s->shown_queue[s->shown_queue_count++]);
    return 0;
}

int dibs__sql_session_row(dibs__sql_session *s, dibs__sql_op op, const dibs__sql_value *cells)
{
    int64_t kind = cells[0].number;

    if (op == DIBS__SQL_SHOW_HOLDERS)
        return show_holder(s, cells);
    if (op == DIBS__SQL_SHOW_WAITERS)
        return show_waiter(s, cells);
    if (op == DIBS__SQL_LOCK)
        read_lock(s, cells);
    if (op != DIBS__SQL_LOOK && op != DIBS__SQL_LOOK_LINE)
        return 0;
    if (kind == 'c' && s->now.lease == 0)
        s->now = (dibs__time){cells[12].number, cells[12].number};
    if (kind == 'c')
        return 0;
    return kind == 'w' || kind == 'o' ? add_waiter_row(s, kind, cells + 1)
                                      : add_holder_row(s, kind, cells + 1);
}

/* ---- What is to be written ------------------------------------------------------------------- */

static void add_drops(dibs__sql_session *s, dibs__sql_batch *b, dibs__sql_op op, size_t from,
                      size_t count)
{
    if (count == 0)
        return;
    dibs__sql_add(b, op);
    dibs__sql_text(b, s->name);
    dibs__sql_items(b, s->drops + from, count);
}

/* Room for all fences and places that can go. */
static bool reserve_drops(dibs__sql_session *s)
{
    size_t want = s->holding_count + s->place_count;
    dibs__sql_value *larger;

    if (want <= s->drop_room)
        return true;
    larger = realloc(s->drops, want * sizeof *larger);
    if (!larger)
        return false;
    s->drops = larger;
    s->drop_room = want;
    return true;
}

/* What goes comes first: another entry of the same owner may follow. Returns where the next drops
 * go. */
static size_t write_holdings(dibs__sql_session *s, dibs__sql_batch *b)
{
    size_t count = 0;

    for (size_t i = 0; i < s->holding_count; i++)
        if (s->holding[i].dropped && s->holding[i].stored)
            s->drops[count++] = (dibs__sql_value){.kind = DIBS__SQL_NUMBER,
                                                  .number = (int64_t)s->holding[i].holder.fence};
    add_drops(s, b, DIBS__SQL_HOLDER_DROP, 0, count);
    for (size_t i = 0; i < s->holding_count; i++) {
        const dibs__sql_holding *h = &s->holding[i];
        if (h->dropped || (h->stored && !h->changed))
            continue;
        dibs__sql_add(b, h->stored ? DIBS__SQL_HOLDER_SET : DIBS__SQL_HOLDER_ADD);
        dibs__sql_text(b, s->name);
        if (h->stored) {
            dibs__sql_number(b, (int64_t)h->holder.fence);
            dibs__sql_number(b, h->holder.expires);
            dibs__sql_number(b, h->holder.released);
        } else {
            dibs__sql_add_holder(b, &h->holder);
        }
    }
    return count;
}

static void set_waiter(dibs__sql_session *s, dibs__sql_batch *b, const dibs__waiter *w)
{
    dibs__sql_add(b, DIBS__SQL_WAITER_SET);
    dibs__sql_text(b, s->name);
    dibs__sql_number(b, (int64_t)w->place);
    dibs__sql_text(b, w->who.attempt);
    dibs__sql_text(b, w->who.host);
    dibs__sql_number(b, w->who.pid);
    dibs__sql_text(b, w->who.wake);
    dibs__sql_number(b, w->who.lease);
    dibs__sql_number(b, w->who.min_hold);
    dibs__sql_number(b, w->window);
    dibs__sql_number(b, w->alive_until);
}

static void write_places(dibs__sql_session *s, dibs__sql_batch *b, size_t at)
{
    size_t first = at;

    for (size_t i = 0; i < s->place_count; i++)
        if (s->place[i].dropped && s->place[i].stored)
            s->drops[at++] = (dibs__sql_value){.kind = DIBS__SQL_NUMBER,
                                               .number = (int64_t)s->place[i].waiter.place};
    add_drops(s, b, DIBS__SQL_WAITER_DROP, first, at - first);
    for (size_t i = 0; i < s->place_count; i++) {
        const dibs__sql_place *p = &s->place[i];
        if (p->dropped || (p->stored && !p->changed))
            continue;
        if (p->stored) {
            set_waiter(s, b, &p->waiter);
            continue;
        }
        dibs__sql_add(b, DIBS__SQL_WAITER_ADD);
        dibs__sql_text(b, s->name);
        dibs__sql_add_waiter(b, &p->waiter);
    }
}

static void write_entries(dibs__sql_session *s, dibs__sql_batch *b)
{
    if (!reserve_drops(s)) {
        b->failed = true;
        return;
    }
    write_places(s, b, write_holdings(s, b));
}

/* Where the queue begins now, as far as we know. */
static void raise_first_place(dibs__sql_session *s)
{
    uint64_t lowest = UINT64_MAX;

    for (size_t i = 0; i < s->place_count; i++)
        if (!s->place[i].dropped && s->place[i].waiter.place < lowest)
            lowest = s->place[i].waiter.place;
    if (s->record.waiters == 0)
        s->first_place = s->record.place + 1;
    else if (lowest <= s->place_bound && lowest != UINT64_MAX)
        s->first_place = lowest;
}

static bool same_record(const dibs__record *a, const dibs__record *b)
{
    return a->capacity == b->capacity && a->used == b->used && a->holders == b->holders &&
           a->waiters == b->waiters && a->fence == b->fence && a->place == b->place &&
           a->broken_fence == b->broken_fence && a->broken_at == b->broken_at &&
           strcmp(a->broken_by, b->broken_by) == 0;
}

void dibs__sql_session_write(dibs__sql_session *s, dibs__sql_batch *b)
{
    if (!s->exists)
        return;
    write_entries(s, b);
    raise_first_place(s);
    if (s->held_changed || !same_record(&s->record, &s->loaded)) {
        dibs__sql_add(b, DIBS__SQL_SAVE);
        dibs__sql_text(b, s->name);
        dibs__sql_add_record(b, &s->record, s->first_place);
        if (s->held)
            dibs__sql_add_holder(b, &s->holder);
        else
            dibs__sql_add_nobody(b);
    }
    if (s->record.broken_fence != s->loaded.broken_fence)
        s->durable = true;
    for (size_t i = 0; i < s->notice_count; i++) {
        if (dibs__sql_is_ours(s->e, s->notice[i].wake))
            continue;
        dibs__sql_add(b, DIBS__SQL_NOTIFY);
        dibs__sql_text(b, s->notice[i].wake);
        dibs__sql_text(b, s->notice[i].text);
    }
}

/* ---- A wider look ---------------------------------------------------------------------------- */

static int wider_row(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    dibs__sql_session *s = ctx;
    const dibs__sql_batch *b = &s->conn_slot->batch;

    (void)count;
    return dibs__sql_session_row(s, b->command[command].op, cells);
}

/* Writes what was collected and reads the entries anew. */
static int look_again(dibs__sql_session *s, int64_t limit)
{
    dibs__sql_batch *b = &s->conn_slot->batch;

    dibs__sql_batch_reset(b, DIBS__SQL_MORE);
    write_entries(s, b);
    ask_look(s, b, false, limit);
    b->row = wider_row;
    b->ctx = s;
    /* The entries' text is in the batch's arguments until it is sent: the rows of the answer come
     * after that, and begin the list anew. */
    dibs__sql_holding *old_holding = s->holding;
    dibs__sql_place *old_place = s->place;
    s->holding = NULL;
    s->place = NULL;
    s->holding_count = s->holding_room = s->place_count = s->place_room = 0;
    s->status = dibs__conn_slot_exchange(s->e, s->conn_slot, s->until, s->err);
    free(old_holding);
    free(old_place);
    return s->status == DIBS_OK ? 0 : -1;
}

int dibs__sql_session_wider(dibs__sql_session *s)
{
    return look_again(s, s->limit * WIDER);
}

static bool note_sought(dibs__sql_session *s, const char *owner)
{
    char **larger = dibs__sql_grown(s->sought, s->sought_count, &s->sought_room, sizeof *s->sought);
    char *copy;

    if (!larger)
        return false;
    s->sought = larger;
    copy = strdup(owner);
    if (!copy)
        return false;
    s->sought[s->sought_count++] = copy;
    return dibs__sql_session_owner(s, copy) == 0;
}

int dibs__sql_session_seek(dibs__sql_session *s, const char *owner)
{
    if (!note_sought(s, owner)) {
        s->status = dibs__fail(s->err, DIBS_NO_MEMORY, "%s: out of memory", s->e->driver->name);
        return -1;
    }
    return look_again(s, s->limit);
}
