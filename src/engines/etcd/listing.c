/* From what etcd answers to what the recipe reads. */
#define _GNU_SOURCE
#include "engines/etcd/etcd.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_SIZE (DIBS__ENTRIES_KEY_SIZE + DIBS__ENTRIES_VALUE_SIZE)

/* A key that `etcdctl lock` makes: the number of its lease in hex. Others are none of a lock's. */
static uint32_t foreign_weight(const char *key)
{
    size_t n = 0;

    while (isxdigit((unsigned char)key[n]))
        n++;
    return n > 0 && n <= 16 && !key[n] ? DIBS__PLAIN : 0;
}

/* The session in a key of ours: the third field. */
static int64_t session_of(const char *key)
{
    const char *dot = strchr(key, '.');

    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? (int64_t)strtoull(dot + 1, NULL, 16) : 0;
}

static void copy_value(const ProtobufCBinaryData *value, char *out, size_t size)
{
    size_t n = value->len < size - 1 ? value->len : size - 1;

    if (n > 0)
        memcpy(out, value->data, n);
    out[n] = '\0';
}

/* "BODY~SLOT\nvalue": cuts it in two and puts the place after the first. */
static char *split(char *text, int64_t place, char key[DIBS__ENTRIES_KEY_SIZE])
{
    char *end = strchr(text, '\n');

    if (!end)
        return NULL;
    *end = '\0';
    if (snprintf(key, DIBS__ENTRIES_KEY_SIZE, "%s~%llx", text, (unsigned long long)place) >=
        DIBS__ENTRIES_KEY_SIZE)
        return NULL;
    return end + 1;
}

/* `text` is what comes after the folder in the entry's key. */
static bool add(dibs__entries_listing *l, const char *text, size_t length, const Etcd__KeyValue *kv,
                bool values)
{
    char stored[VALUE_SIZE], key[DIBS__ENTRIES_KEY_SIZE] = "", *value = stored;
    bool ours = length > 0 && text[0] == '~';
    dibs__queue_entry facts = {.place = (uint64_t)kv->create_revision,
                               .fence = (uint64_t)kv->create_revision};

    copy_value(&kv->value, stored, sizeof stored);
    if (ours)
        value = split(stored, kv->create_revision, key);
    else if (length < sizeof key)
        memcpy(key, text, length);
    if (!value || !key[0])
        return true;
    /* What lingers has left its session for a lease of its own. */
    facts.lingering = ours && kv->lease != session_of(key);
    facts.marked = !facts.lingering && kv->mod_revision != kv->create_revision;
    if ((uint64_t)kv->mod_revision > l->fence)
        l->fence = (uint64_t)kv->mod_revision;
    return dibs__entries_listing_add(l, key, values ? value : NULL, &facts,
                                     ours ? 0 : foreign_weight(key));
}

bool dibs__etcd_listing_tail(dibs__entries_listing *l, const Etcd__KeyValue *tail)
{
    dibs__queue_entry facts = {.place = (uint64_t)tail->mod_revision,
                               .fence = (uint64_t)tail->mod_revision};
    char text[VALUE_SIZE], key[DIBS__ENTRIES_KEY_SIZE];

    copy_value(&tail->value, text, sizeof text - 1);
    strcat(text, "\n");
    l->from = facts.place;
    return !split(text, tail->mod_revision, key) ||
           dibs__entries_listing_add(l, key, NULL, &facts, 0);
}

bool dibs__etcd_listing_fill(dibs__entries_listing *l, const dibs__etcd *e, const char *name,
                             const Etcd__RangeResponse *r, uint64_t below, bool values)
{
    dibs__etcd_key folder;
    uint64_t oldest = UINT64_MAX;

    dibs__etcd_entry_key(e, name, "", &folder);
    for (size_t i = 0; i < r->n_kvs; i++) {
        const Etcd__KeyValue *kv = r->kvs[i];
        if ((uint64_t)kv->create_revision < oldest)
            oldest = (uint64_t)kv->create_revision;
        if ((uint64_t)kv->create_revision < below && kv->key.len >= folder.length &&
            !add(l, (const char *)kv->key.data + folder.length, kv->key.len - folder.length, kv,
                 values))
            return false;
    }
    if (r->more && r->n_kvs > 0)
        l->from = oldest;
    l->exists |= l->count > 0;
    return true;
}

bool dibs__etcd_listing_value(dibs__entries_listing *l, const Etcd__RangeResponse *r)
{
    const Etcd__KeyValue *kv = r->n_kvs > 0 ? r->kvs[0] : NULL;

    if (!kv)
        return true;
    l->exists = true;
    l->version = (uint64_t)kv->mod_revision;
    if ((uint64_t)kv->mod_revision > l->fence)
        l->fence = (uint64_t)kv->mod_revision;
    l->value = malloc(DIBS__ENTRIES_VALUE_SIZE);
    if (!l->value)
        return false;
    copy_value(&kv->value, l->value, DIBS__ENTRIES_VALUE_SIZE);
    return true;
}
