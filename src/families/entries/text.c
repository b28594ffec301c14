/* What names and values of entries and locks look like.
 *
 *   key of an entry     dibs.ATTEMPT.SESSION.KIND[m][.OWNER]…   (kept.… when it only lingers)
 *                       SESSION in hex; KIND x exclusive, s shared, w5 five slots; m: has a min_hold;
 *                       OWNER 16 hex digits, a hash of an owner given by name
 *   value of an entry   1 PID LEASE_MS HOST OWNER
 *   value of a lock     dibs 1 CAPACITY UPTO AT BY      CAPACITY 0: plain, -: not fixed;
 *                       UPTO, AT, BY of the last break: the highest fence that it asked for, when, who
 *
 * An adapter may append to a key what its server needs. Strangers' entries have other keys. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/span.h"
#include "core/table.h"
#include "families/entries/inner.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096

/* ---- Listings -------------------------------------------------------------------------------- */

struct dibs__entries_text {
    struct dibs__entries_text *next;
    size_t used, size;
    char byte[];
};

static const char *keep_text(dibs__entries_listing *l, const char *text)
{
    size_t n = strlen(text) + 1;
    struct dibs__entries_text *block = l->text;
    char *to;

    if (!block || block->size - block->used < n) {
        size_t size = n > BLOCK ? n : BLOCK;
        block = malloc(sizeof *block + size);
        if (!block)
            return NULL;
        *block = (struct dibs__entries_text){.next = l->text, .size = size};
        l->text = block;
    }
    to = block->byte + block->used;
    memcpy(to, text, n);
    block->used += n;
    return to;
}

static bool make_room(dibs__entries_listing *l)
{
    size_t size = l->size ? l->size * 2 : 8;
    dibs__queue_entry *larger;

    if (l->count < l->size)
        return true;
    larger = realloc(l->entry, size * sizeof *larger);
    if (!larger)
        return false;
    l->entry = larger;
    l->size = size;
    return true;
}

bool dibs__entries_listing_add(dibs__entries_listing *l, const char *key, const char *value,
                               const dibs__queue_entry *facts, uint32_t foreign_weight)
{
    dibs__entries_key parsed = {.weight = foreign_weight};
    dibs__queue_entry *e;

    if (!dibs__entries_key_read(key, &parsed) && foreign_weight == 0)
        return true;
    if (!make_room(l))
        return false;
    e = &l->entry[l->count];
    *e = *facts;
    e->key = keep_text(l, key);
    e->value = value ? keep_text(l, value) : NULL;
    e->weight = parsed.weight;
    e->lingering = facts->lingering || parsed.lingering;
    e->owner = e->lingering ? 0 : parsed.owner;
    if (!e->key || (value && !e->value))
        return false;
    l->count++;
    return true;
}

void dibs__entries_listing_fini(dibs__entries_listing *l)
{
    for (struct dibs__entries_text *b = l->text, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(l->entry);
    free(l->value);
    memset(l, 0, sizeof *l);
}

bool dibs__entries_blocked(const dibs__entries_listing *l, size_t i)
{
    for (size_t k = 0; l->entry[i].owner && k < i; k++)
        if (l->entry[k].owner == l->entry[i].owner)
            return true;
    return false;
}

static int by_place(const void *a, const void *b)
{
    const dibs__queue_entry *x = a, *y = b;

    return x->place < y->place ? -1 : x->place > y->place;
}

void dibs__entries_listing_sort(dibs__entries_listing *l)
{
    for (size_t i = 1; i < l->count; i++) {
        if (l->entry[i - 1].place > l->entry[i].place) {
            qsort(l->entry, l->count, sizeof *l->entry, by_place);
            return;
        }
    }
}

/* ---- Keys ------------------------------------------------------------------------------------ */

void dibs__entries_body(const dibs__entries_call *call, uint64_t session,
                        char out[DIBS__ENTRIES_KEY_SIZE])
{
    char kind[16], owner[24] = "";

    if (call->enter.capacity != DIBS__PLAIN)
        snprintf(kind, sizeof kind, "w%" PRIu32, call->enter.weight);
    else
        snprintf(kind, sizeof kind, "%c", call->enter.weight == DIBS__PLAIN ? 'x' : 's');
    if (call->enter.owner)
        snprintf(owner, sizeof owner, ".%016" PRIx64, dibs__hash(call->enter.owner));
    snprintf(out, DIBS__ENTRIES_KEY_SIZE, "dibs.%s.%" PRIx64 ".%s%s%s", call->attempt, session,
             kind, call->enter.may_linger ? "m" : "", owner);
}

/* dibs. .SESSION .KINDm, .OWNER, and what adapters append: "__rlock__" and a sequence number, "~SLOT~PLACE". */
size_t dibs__entries_key_room(const char *attempt, bool plain, bool named)
{
    size_t kind = plain ? strlen(".xm") : strlen(".w4294967295m");
    size_t tail = strlen("~4294967295~0123456789abcdef");

    return strlen("dibs.") + strlen(attempt) + 17 + kind + (named ? 17 : 0) + tail + 1;
}

/* Past one field and its dot; NULL: there is none. */
static const char *next_field(const char *text)
{
    const char *dot = text ? strchr(text, '.') : NULL;

    return dot ? dot + 1 : NULL;
}

/* Slots, in digits; 0: none that a lock can have. */
static uint32_t read_slots(const char *text, char **end)
{
    unsigned long long n = isdigit((unsigned char)*text) ? strtoull(text, end, 10) : 0;

    if (!isdigit((unsigned char)*text))
        *end = (char *)(uintptr_t)text;
    return n <= DIBS__PLAIN ? (uint32_t)n : 0;
}

static bool read_kind(const char *kind, dibs__entries_key *out)
{
    char *end;

    switch (*kind) {
    case 'x':
        out->weight = DIBS__PLAIN;
        break;
    case 's':
        out->weight = 1;
        break;
    case 'w':
        out->weight = read_slots(kind + 1, &end);
        kind = end - 1;
        break;
    default:
        return false;
    }
    out->may_linger = kind[1] == 'm';
    if (kind[1 + out->may_linger] == '.')
        out->owner = strtoull(kind + 2 + out->may_linger, NULL, 16);
    return out->weight > 0;
}

bool dibs__entries_key_read(const char *key, dibs__entries_key *out)
{
    dibs__entries_key k = {.lingering = strncmp(key, "kept.", 5) == 0};
    const char *session, *kind;

    if (!k.lingering && strncmp(key, "dibs.", 5) != 0)
        return false;
    k.attempt = key + 5;
    session = next_field(k.attempt);
    kind = next_field(session);
    if (!kind || !read_kind(kind, &k))
        return false;
    k.attempt_length = (size_t)(session - k.attempt) - 1;
    k.session = strtoull(session, NULL, 16);
    *out = k;
    return true;
}

bool dibs__entries_is_ours(const char *key, const char *attempt, uint64_t session)
{
    dibs__entries_key k;

    return dibs__entries_key_read(key, &k) && !k.lingering && k.session == session &&
           k.attempt_length == strlen(attempt) && memcmp(k.attempt, attempt, k.attempt_length) == 0;
}

/* ---- Values ---------------------------------------------------------------------------------- */

void dibs__entries_value_write(char out[DIBS__ENTRIES_VALUE_SIZE], const dibs__asker *who,
                               int64_t lease)
{
    snprintf(out, DIBS__ENTRIES_VALUE_SIZE, "1 %lld %lld %s %s", (long long)who->pid,
             (long long)(lease / DIBS__MS), who->host, who->owner);
}

static void copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

void dibs__entries_value_read(const char *value, const char *key, dibs__asker *out)
{
    long long pid = 0, lease = 0;
    int at = 0;

    memset(out, 0, sizeof *out);
    if (value && sscanf(value, "1 %lld %lld %64s %n", &pid, &lease, out->host, &at) == 3 && at &&
        lease >= 0 && lease <= INT64_MAX / DIBS__MS) {
        out->pid = pid;
        out->lease = lease * DIBS__MS;
        copy_text(out->owner, sizeof out->owner, value + at);
        return;
    }
    copy_text(out->host, sizeof out->host, "?"); /* a stranger's */
    copy_text(out->owner, sizeof out->owner, value && *value ? value : key);
}

void dibs__entries_note_write(char out[DIBS__ENTRIES_VALUE_SIZE], const dibs__entries_note *note)
{
    char capacity[16] = "-";

    if (note->capacity)
        snprintf(capacity, sizeof capacity, "%" PRIu32,
                 note->capacity == DIBS__PLAIN ? 0 : note->capacity);
    snprintf(out, DIBS__ENTRIES_VALUE_SIZE, "dibs 1 %s %" PRIu64 " %" PRId64 " %s", capacity,
             note->upto, note->broken_at, note->broken_by);
}

void dibs__entries_note_read(const char *value, dibs__entries_note *out)
{
    char capacity[16], *end;
    int at = 0;

    *out = (dibs__entries_note){.capacity = DIBS__PLAIN};
    if (!value || sscanf(value, "dibs 1 %15s %" SCNu64 " %" SCNd64 "%n", capacity, &out->upto,
                         &out->broken_at, &at) != 3)
        return;
    if (strcmp(capacity, "-") == 0)
        out->capacity = 0;
    else if (strcmp(capacity, "0") != 0)
        out->capacity = read_slots(capacity, &end);
    if (out->capacity == 0 && strcmp(capacity, "-") != 0)
        out->capacity = DIBS__PLAIN;
    if (value[at] == ' ')
        copy_text(out->broken_by, sizeof out->broken_by, value + at + 1);
}

uint32_t dibs__entries_capacity(const char *lock_value)
{
    dibs__entries_note note;

    dibs__entries_note_read(lock_value, &note);
    return note.capacity;
}

/* ---- Names ----------------------------------------------------------------------------------- */

static bool is_plain(unsigned char c)
{
    return c > 0x20 && c < 0x7f && c != '/' && c != '%';
}

/* Everything but printable ASCII is escaped: servers that know only Unicode would else take two
 * names for one. */
void dibs__entries_escape(const char *name, char *out)
{
    bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;

    for (const char *c = name; *c; c++) {
        if (is_plain((unsigned char)*c) && !dots)
            *out++ = *c;
        else
            out += sprintf(out, "%%%02X", (unsigned char)*c);
    }
    *out = '\0';
}

bool dibs__entries_unescape(const char *text, char out[DIBS_NAME_MAX + 1])
{
    return dibs__entries_unescape_long(text, out, DIBS_NAME_MAX);
}

bool dibs__entries_unescape_long(const char *text, char *out, size_t most)
{
    size_t n = 0;

    for (; *text; text++) {
        unsigned int c = (unsigned char)*text;
        if (n == most)
            return false;
        if (c == '%') {
            if (!isxdigit((unsigned char)text[1]) || !isxdigit((unsigned char)text[2]) ||
                sscanf(text + 1, "%2x", &c) != 1 || c == 0)
                return false;
            text += 2;
        }
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return n > 0;
}

/* ---- Parameters ------------------------------------------------------------------------------ */

dibs_status dibs__entries_take_session(const dibs__open_request *request, int64_t *out,
                                       dibs_error *err)
{
    const char *value = dibs__url_take(request->url, "session");
    int64_t ms;

    if (value && request->lease == 0) {
        ms = dibs__span_parse(value);
        if (ms <= 0 || ms > 24 * 3600 * 1000)
            return dibs__fail(err, DIBS_INVALID,
                              "parameter session=%.40s in the URL: give a duration up to 24h, like "
                              "10s or 4000ms",
                              value);
        *out = ms * DIBS__MS;
    }
    if (request->lease)
        *out = request->lease;
    return DIBS_OK;
}
