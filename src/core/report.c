/* Reports grow while an engine adds to them; pointers between the parts are set once, at the end.
 *
 * All text goes into one buffer and all parties into one array, both of which move as they grow:
 * until `finish` the parts know each other by offset. */
#include "core/report.h"

#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_TEXT SIZE_MAX

typedef struct party_row {
    dibs_party party;
    size_t owner, host; /* offsets in text */
} party_row;

typedef struct lock_row {
    dibs_lock_info info;
    size_t name, broken_by;
    size_t holders, waiters; /* first index in parties */
    size_t waiters_listed;
    size_t notes; /* first index in note */
    uint64_t broken_fence;
} lock_row;

struct dibs__report_builder {
    char *text;
    size_t text_count, text_size;
    party_row *party;
    size_t party_count, party_size;
    lock_row *lock;
    size_t lock_count, lock_size;
    size_t *note; /* offsets in text */
    size_t note_count, note_size;
    bool failed;
};

struct dibs_lock_report {
    dibs_lock_info *lock;
    size_t count;
    dibs_party *party;
    const dibs_party **to_party; /* each of them */
    const char **note;
    char *text;
};

/* Room for `more` after `count` elements; the new pointer, or NULL after noting the failure. */
static void *grown(dibs__report_builder *b, void *array, size_t count, size_t *size, size_t more,
                   size_t each)
{
    size_t want = *size ? *size : 16;
    void *larger;

    if (b->failed)
        return NULL;
    if (count + more <= *size)
        return array;
    while (want < count + more)
        want *= 2;
    larger = realloc(array, want * each);
    if (!larger) {
        b->failed = true;
        return NULL;
    }
    *size = want;
    return larger;
}

static size_t add_text(dibs__report_builder *b, const char *text)
{
    size_t n = strlen(text) + 1, at = b->text_count;
    char *room = grown(b, b->text, b->text_count, &b->text_size, n, 1);

    if (!room)
        return NO_TEXT;
    b->text = room;
    memcpy(b->text + at, text, n);
    b->text_count += n;
    return at;
}

dibs__report_builder *dibs__report_new(void)
{
    return calloc(1, sizeof(dibs__report_builder));
}

bool dibs__report_is_empty(const dibs__report_builder *b)
{
    return b->lock_count == 0 && !b->failed;
}

/* Slots as people count them: a plain lock is held by one, or by so many that share. */
static uint32_t used_slots(const dibs__record *r)
{
    return r->capacity == DIBS__PLAIN && r->used == DIBS__PLAIN ? 1 : r->used;
}

void dibs__report_lock(dibs__report_builder *b, const char *name, const dibs__record *record)
{
    lock_row *row, *room = grown(b, b->lock, b->lock_count, &b->lock_size, 1, sizeof *b->lock);

    if (!room)
        return;
    b->lock = room;
    row = &b->lock[b->lock_count++];
    memset(row, 0, sizeof *row);
    row->name = add_text(b, name);
    row->broken_by = record->broken_fence ? add_text(b, record->broken_by) : NO_TEXT;
    row->holders = row->waiters = b->party_count;
    row->notes = b->note_count;
    row->info.slots = record->capacity == DIBS__PLAIN ? 0 : record->capacity;
    row->info.used = used_slots(record);
    row->info.fence = record->fence;
    row->broken_fence = record->broken_fence;
    row->info.waiter_count = record->waiters;
    row->info.broken_at_ms = record->broken_fence ? record->broken_at / 1000 : 0;
}

static party_row *add_party(dibs__report_builder *b, const dibs__asker *who, int64_t since,
                            int64_t until, dibs__time now)
{
    party_row *row, *room = grown(b, b->party, b->party_count, &b->party_size, 1, sizeof *b->party);

    if (!room)
        return NULL;
    b->party = room;
    row = &b->party[b->party_count++];
    memset(row, 0, sizeof *row);
    row->owner = add_text(b, who->owner);
    row->host = add_text(b, who->host);
    row->party.pid = who->pid;
    row->party.weight = who->weight;
    row->party.since_ms = (now.wall - (now.lease - since)) / 1000;
    row->party.left_ms = until > now.lease ? (until - now.lease) / 1000 : 0;
    return row;
}

/* On a plain lock weight 1 means shared, and all means exclusive; people see 1 either way. */
static void plain_weight(dibs_party *p, bool plain)
{
    p->shared = plain && p->weight < DIBS__PLAIN;
    if (plain)
        p->weight = 1;
}

void dibs__report_holder(dibs__report_builder *b, const dibs__holder *holder, dibs__time now)
{
    party_row *row = add_party(b, &holder->who, holder->since, holder->expires, now);
    lock_row *lock;

    if (!row)
        return;
    lock = &b->lock[b->lock_count - 1];
    plain_weight(&row->party, lock->info.slots == 0);
    row->party.fence = holder->fence;
    row->party.released = holder->released;
    row->party.breaking = holder->fence < lock->broken_fence;
    lock->info.holder_count++;
    lock->waiters = b->party_count;
}

void dibs__report_waiter(dibs__report_builder *b, const dibs__waiter *waiter, dibs__time now)
{
    party_row *row = add_party(b, &waiter->who, waiter->since, waiter->alive_until, now);

    if (!row)
        return;
    plain_weight(&row->party, b->lock[b->lock_count - 1].info.slots == 0);
    b->lock[b->lock_count - 1].waiters_listed++;
}

void dibs__report_note(dibs__report_builder *b, const char *format, ...)
{
    char line[512];
    va_list args;
    size_t *room = grown(b, b->note, b->note_count, &b->note_size, 1, sizeof *b->note);

    if (!room || b->lock_count == 0)
        return;
    b->note = room;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    b->note[b->note_count++] = add_text(b, line);
    b->lock[b->lock_count - 1].info.note_count++;
}

void dibs__report_drop(dibs__report_builder *b)
{
    if (!b)
        return;
    free(b->note);
    free(b->text);
    free(b->party);
    free(b->lock);
    free(b);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dibs_lock_info *)a)->name, ((const dibs_lock_info *)b)->name);
}

static void point(const dibs__report_builder *b, dibs_lock_report *r)
{
    for (size_t i = 0; i < b->party_count; i++) {
        r->to_party[i] = &r->party[i];
        r->party[i] = b->party[i].party;
        r->party[i].owner = b->text + b->party[i].owner;
        r->party[i].host = b->text + b->party[i].host;
    }
    for (size_t i = 0; i < b->note_count; i++)
        r->note[i] = b->text + b->note[i];
    for (size_t i = 0; i < b->lock_count; i++) {
        const lock_row *row = &b->lock[i];
        r->lock[i] = row->info;
        r->lock[i].name = b->text + row->name;
        r->lock[i].broken_by = row->broken_by == NO_TEXT ? NULL : b->text + row->broken_by;
        r->lock[i].holders = row->info.holder_count ? r->to_party + row->holders : NULL;
        if (row->waiters_listed) { /* what the record counts may differ: a stranger wrote it */
            r->lock[i].waiters = r->to_party + row->waiters;
            r->lock[i].waiter_count = row->waiters_listed;
        }
        r->lock[i].notes = row->info.note_count ? r->note + row->notes : NULL;
    }
    r->count = b->lock_count;
    qsort(r->lock, r->count, sizeof *r->lock, by_name);
}

static void add_base(dibs_lock_report *r, size_t parties, uint64_t base)
{
    for (size_t i = 0; i < parties; i++)
        if (r->party[i].fence)
            r->party[i].fence += base;
    for (size_t i = 0; i < r->count; i++)
        if (r->lock[i].fence)
            r->lock[i].fence += base;
}

dibs_status dibs__report_finish(dibs__report_builder *b, uint64_t base, dibs_lock_report **out,
                                dibs_error *err)
{
    dibs_lock_report *r = b->failed ? NULL : calloc(1, sizeof *r);

    if (r) {
        r->lock = calloc(b->lock_count + 1, sizeof *r->lock);
        r->party = calloc(b->party_count + 1, sizeof *r->party);
        r->to_party = calloc(b->party_count + 1, sizeof *r->to_party);
        r->note = calloc(b->note_count + 1, sizeof *r->note);
    }
    if (!r || !r->lock || !r->party || !r->to_party || !r->note) {
        dibs_lock_report_free(r);
        dibs__report_drop(b);
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory for the report");
    }
    point(b, r);
    add_base(r, b->party_count, base);
    r->text = b->text;
    b->text = NULL;
    dibs__report_drop(b);
    *out = r;
    return DIBS_OK;
}

void dibs__report_cut(dibs_lock_report *r, const char *after, size_t limit)
{
    size_t first = 0;

    while (after && first < r->count && strcmp(r->lock[first].name, after) <= 0)
        first++;
    r->count -= first;
    memmove(r->lock, r->lock + first, r->count * sizeof *r->lock);
    if (limit && r->count > limit)
        r->count = limit;
}

size_t dibs_lock_report_count(const dibs_lock_report *r)
{
    return r->count;
}

const dibs_lock_info *dibs_lock_report_at(const dibs_lock_report *r, size_t i)
{
    return i < r->count ? &r->lock[i] : NULL;
}

void dibs_lock_report_free(dibs_lock_report *r)
{
    if (!r)
        return;
    free(r->lock);
    free(r->to_party);
    free(r->party);
    free(r->note);
    free(r->text);
    free(r);
}
