/* libFuzzer on what ZooKeeper and etcd store for locks: names, keys and values that anybody may have written. */
#include "families/entries/inner.h"
#include "fuzz/fuzz.h"

#define TEXT 600

/* Escaped, it is one plain component of a path, and comes back as it was. */
static void check_name(const char *name)
{
    char escaped[3 * DIBS_NAME_MAX + 1], back[DIBS_NAME_MAX + 1];

    if (!*name || strlen(name) > DIBS_NAME_MAX)
        return;
    dibs__entries_escape(name, escaped);
    must(!strchr(escaped, '/') && strcmp(escaped, ".") != 0 && strcmp(escaped, "..") != 0,
         "a name is no component of a path");
    must(dibs__entries_unescape(escaped, back) && strcmp(back, name) == 0,
         "another name came back");
}

static void check_foreign_name(const char *text)
{
    char name[DIBS_NAME_MAX + 1];

    if (dibs__entries_unescape(text, name))
        check_name(name);
}

static void check_key(const char *key)
{
    dibs__entries_key k;

    if (!dibs__entries_key_read(key, &k))
        return;
    must(k.weight > 0 && k.weight <= DIBS__PLAIN, "a weight out of range");
    must(k.attempt_length < strlen(key), "an attempt that is not in the key");
}

/* What we write is read as ours. */
static void check_own_key(fuzz_input *in)
{
    char attempt[24], body[DIBS__ENTRIES_KEY_SIZE];
    uint64_t session = fuzz_number(in, 8);
    dibs__entries_call call = {.attempt = attempt};
    dibs__entries_key k;

    snprintf(attempt, sizeof attempt, "0123abcd-%u", (unsigned)fuzz_number(in, 2));
    call.enter.may_linger = fuzz_number(in, 1) & 1;
    call.enter.owner = fuzz_number(in, 1) & 1 ? "owner" : NULL;
    call.enter.capacity = fuzz_number(in, 1) & 1 ? DIBS__PLAIN : 7;
    call.enter.weight = 1;
    if (fuzz_number(in, 1) & 1 && call.enter.capacity == DIBS__PLAIN)
        call.enter.weight = DIBS__PLAIN;
    dibs__entries_body(&call, session, body);
    must(dibs__entries_key_read(body, &k), "our own key is not read");
    must(k.weight == call.enter.weight && k.session == session &&
             k.may_linger == call.enter.may_linger && !k.lingering &&
             (k.owner != 0) == (call.enter.owner != NULL),
         "our own key is read as another");
    must(dibs__entries_is_ours(body, attempt, session), "our own key is a stranger's");
}

static void check_value(const char *value, const char *key)
{
    dibs__asker who;
    dibs__entries_note note, again;
    char text[DIBS__ENTRIES_VALUE_SIZE];

    dibs__entries_value_read(value, key, &who);
    must(strlen(who.owner) < sizeof who.owner && strlen(who.host) < sizeof who.host, "no end");
    dibs__entries_note_read(value, &note);
    must(note.capacity <= DIBS__PLAIN, "a capacity out of range");
    must(strlen(note.broken_by) < sizeof note.broken_by, "no end");
    dibs__entries_note_write(text, &note);
    must(strlen(text) < sizeof text, "no end");
    dibs__entries_note_read(text, &again);
    must(note.capacity == again.capacity && note.upto == again.upto &&
             note.broken_at == again.broken_at && strcmp(note.broken_by, again.broken_by) == 0,
         "a note is read as another when it is written again");
}

static void check_listing(const char *key, const char *value, fuzz_input *in)
{
    dibs__entries_listing l = {0};

    for (int i = 0; i < 4; i++) {
        dibs__queue_entry facts = {.place = fuzz_number(in, 1),
                                   .lingering = fuzz_number(in, 1) & 1};
        must(dibs__entries_listing_add(&l, key, i & 1 ? value : NULL, &facts,
                                       (uint32_t)fuzz_number(in, 1) & 1),
             "no memory");
    }
    dibs__entries_listing_sort(&l);
    for (size_t i = 0; i < l.count; i++) {
        must(i == 0 || l.entry[i - 1].place <= l.entry[i].place, "not sorted");
        must(l.entry[i].weight > 0, "an entry without a weight");
        dibs__entries_blocked(&l, i);
    }
    dibs__entries_listing_fini(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    char text[TEXT], value[TEXT];

    check_own_key(&in);
    fuzz_text(&in, fuzz_number(&in, 1), text, sizeof text);
    fuzz_text(&in, fuzz_number(&in, 2), value, sizeof value);
    check_name(text);
    check_foreign_name(text);
    check_key(text);
    check_value(value, text);
    check_listing(text, value, &in);
    return 0;
}
