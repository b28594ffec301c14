/* Looking at one queue, and at all of them. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const Etcd__RangeResponse *range_at(const Etcd__TxnResponse *r, size_t i)
{
    return r && i < r->n_responses &&
                   r->responses[i]->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE
               ? r->responses[i]->response_range
               : NULL;
}

static dibs_status no_memory(dibs__entries_call *call)
{
    return dibs__fail(&call->err, DIBS_NO_MEMORY, "out of memory");
}

/* ---- Who is ahead ---------------------------------------------------------------------------- */

static void on_ahead(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__entries_call *call = op->call;
    Etcd__RangeResponse *r = dibs__etcd_op_answer(op, &etcd__range_response__descriptor);
    bool behind = r && !op->strict && (!r->header || (uint64_t)r->header->revision < op->below);

    for (size_t i = 0; r && op->strict && i < r->n_kvs; i++)
        call->there |= (uint64_t)r->kvs[i]->create_revision == op->below;
    if (r && !behind &&
        !dibs__etcd_listing_fill(&call->listing, op->e, call->name, r, op->below,
                                 call->list.values))
        call->status = no_memory(call);
    /* In a long queue there is time for a watch that begins in the past: it needs no look. */
    if (r && r->more && r->header)
        call->listing.as_of = (uint64_t)r->header->revision;
    if (r)
        etcd__range_response__free_unpacked(r, NULL);
    if (behind) {
        op->strict = true;
        dibs__etcd_op_go_on(op, dibs__etcd_send_ahead(op, op->below));
    } else {
        dibs__etcd_op_done(op);
    }
}

/* Entries ahead only vanish, so that a member which knows of our own entry may be asked alone: what
 * it has not heard of yet makes us wait longer, never shorter. Who may be first asks all members, and for its
 * own entry too. */
bool dibs__etcd_send_ahead(dibs__etcd_op *op, uint64_t below)
{
    const dibs__entries_call *call = op->call;
    bool own = op->strict && call->key;
    dibs__etcd_key folder, end;
    Etcd__RangeRequest r;

    dibs__etcd_entry_key(op->e, call->name, "", &folder);
    dibs__etcd_end_of(&folder, &end);
    dibs__etcd_range_queue(&r, NULL, &folder, &end);
    op->below = below;
    r.max_create_revision = (int64_t)below - (own ? 0 : 1);
    /* Each weighs one at least: so many exceed `enough`, whatever they are. */
    r.limit =
        call->enter.owner || call->enough >= DIBS__ETCD_NEAREST ? 0 : DIBS__ETCD_NEAREST + own;
    r.serializable = !op->strict;
    return dibs__etcd_op_send(op, DIBS__ETCD_READ, "/etcdserverpb.KV/Range", &r.base, on_ahead);
}

/* ---- Nobody, in a long queue ------------------------------------------------------------------ */

static void on_beginning(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__entries_call *call = op->call;
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);
    const Etcd__RangeResponse *own = range_at(r, 0), *head = range_at(r, 1);
    char text[24] = "";
    bool nobody, failed = !r;

    if (head && head->n_kvs > 0 && head->kvs[0]->value.len < sizeof text)
        memcpy(text, head->kvs[0]->value.data, head->kvs[0]->value.len);
    nobody = strtoull(text, NULL, 16) >= call->list.known_from;
    call->there = nobody && own && dibs__etcd_is_entry(own, (int64_t)call->place);
    call->listing.exists = true;
    if (r)
        etcd__txn_response__free_unpacked(r, NULL);
    if (nobody || failed)
        dibs__etcd_op_done(op);
    else
        dibs__etcd_op_go_on(op, dibs__etcd_send_ahead(op, call->place));
}

/* Etcd has no index by revision: who asks for the entries before a place has it look at all of them. But who
 * knows that from some place on nobody is ahead needs to hear no more than that the others are gone too. */
static bool send_beginning(dibs__etcd_op *op)
{
    const dibs__entries_call *call = op->call;
    dibs__etcd_key key, head;
    Etcd__RangeRequest ranges[2];
    Etcd__RequestOp ops[2], *both[2] = {&ops[0], &ops[1]};
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;

    dibs__etcd_entry_key(op->e, call->name, call->key, &key);
    dibs__etcd_head_key(op->e, call->name, &head);
    dibs__etcd_range(&ranges[0], &ops[0], &key);
    dibs__etcd_range(&ranges[1], &ops[1], &head);
    ranges[0].keys_only = true;
    txn.success = both;
    txn.n_success = 2;
    return dibs__etcd_op_send(op, DIBS__ETCD_READ, "/etcdserverpb.KV/Txn", &txn.base, on_beginning);
}

/* ---- All of a queue --------------------------------------------------------------------------- */

static void on_queue(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__entries_call *call = op->call;
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);
    const Etcd__RangeResponse *queue = range_at(r, 0), *lock = range_at(r, 1);

    if (r && (!queue || !lock ||
              !dibs__etcd_listing_fill(&call->listing, op->e, call->name, queue, UINT64_MAX,
                                       call->list.values) ||
              !dibs__etcd_listing_value(&call->listing, lock)))
        call->status = no_memory(call);
    if (r)
        etcd__txn_response__free_unpacked(r, NULL);
    dibs__etcd_op_done(op);
}

static bool send_queue(dibs__etcd_op *op)
{
    const dibs__entries_call *call = op->call;
    dibs__etcd_key folder, end, value;
    Etcd__RangeRequest queue, lock;
    Etcd__RequestOp ops[2], *both[2] = {&ops[0], &ops[1]};
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;

    dibs__etcd_entry_key(op->e, call->name, "", &folder);
    dibs__etcd_end_of(&folder, &end);
    dibs__etcd_value_key(op->e, call->name, &value);
    dibs__etcd_range_queue(&queue, &ops[0], &folder, &end);
    dibs__etcd_range(&lock, &ops[1], &value);
    txn.success = both;
    txn.n_success = 2;
    return dibs__etcd_op_send(op, DIBS__ETCD_READ, "/etcdserverpb.KV/Txn", &txn.base, on_queue);
}

dibs_status dibs__etcd_list(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);

    if (!op)
        return DIBS_NO_MEMORY;
    pthread_mutex_lock(&e->lock);
    call->session = e->lease ? (uint64_t)e->lease : UINT64_MAX; /* of nobody */
    pthread_mutex_unlock(&e->lock);
    op->strict = call->again;
    if (call->place == UINT64_MAX)
        return dibs__etcd_op_started(op, send_queue(op));
    if (call->list.known_from && dibs__etcd_is_long(e, call->name))
        return dibs__etcd_op_started(op, send_beginning(op));
    return dibs__etcd_op_started(op, dibs__etcd_send_ahead(op, call->place));
}

/* ---- All lines ------------------------------------------------------------------------------- */

/* First the names: of the locks that have entries, and if asked for of those that have a value. These are
 * read without values, a page at a time, from where locks are alone: what cells hold is never looked at. Then
 * entries and values of the locks that were found, some at once. So it costs what is shown. It is done by the
 * caller's own thread. */
#define PAGE      1000 /* keys */
#define SOME      60   /* locks; two reads each, and a transaction may have 128 */
#define SOME_KEYS 4000 /* of these locks together */

typedef struct found {
    char *name;
    size_t keys;
} found;

typedef struct walk {
    dibs__etcd *e;
    dibs__entries_call *call;
    dibs__deadline until;
    found *found;
    size_t count, room;
} walk;

/* The keys of one lock: its entries, the end of those, and its value. */
typedef struct keys {
    dibs__etcd_key folder, end, value;
    Etcd__RangeRequest queue, lock;
    Etcd__RequestOp ops[2];
} keys;

/* A lock's name from its place in a key, unless it is not one of ours, or not asked for. */
static bool note_name(walk *w, const char *text, size_t length, size_t count)
{
    char escaped[3 * DIBS_NAME_MAX + 1], name[DIBS_NAME_MAX + 1];
    found *larger;

    if (length >= sizeof escaped)
        return true;
    memcpy(escaped, text, length);
    escaped[length] = '\0';
    if (!dibs__entries_unescape(escaped, name) ||
        strncmp(name, w->call->names.prefix, strlen(w->call->names.prefix)) != 0)
        return true;
    if (w->count > 0 && strcmp(w->found[w->count - 1].name, name) == 0) {
        w->found[w->count - 1].keys += count;
        return true;
    }
    if (w->count == w->room) {
        larger = realloc(w->found, (2 * w->room + 16) * sizeof *larger);
        if (!larger)
            return false;
        w->found = larger;
        w->room = 2 * w->room + 16;
    }
    w->found[w->count] = (found){strdup(name), count};
    return w->found[w->count].name && ++w->count;
}

static bool note_entry(walk *w, const char *text, size_t length)
{
    const char *slash = memchr(text, '/', length);

    return !slash || note_name(w, text, (size_t)(slash - text), 1);
}

static bool note_value(walk *w, const char *text, size_t length)
{
    return note_name(w, text, length, 0);
}

/* Takes the keys of a page, and puts into `from` where the next one begins; false in `*more`: nowhere. */
static bool take_page(walk *w, const Etcd__RangeResponse *r, size_t skip,
                      bool (*note)(walk *w, const char *text, size_t length),
                      ProtobufCBinaryData *from, bool *more)
{
    const Etcd__KeyValue *last = r->n_kvs > 0 ? r->kvs[r->n_kvs - 1] : NULL;

    for (size_t i = 0; i < r->n_kvs; i++)
        if (r->kvs[i]->key.len >= skip &&
            !note(w, (const char *)r->kvs[i]->key.data + skip, r->kvs[i]->key.len - skip))
            return false;
    *more = r->more && last;
    free(from->data);
    from->data = last ? malloc(last->key.len + 1) : NULL;
    if (!last || !from->data)
        return !last;
    memcpy(from->data, last->key.data, last->key.len);
    from->data[last->key.len] = '\0'; /* the least key behind it */
    from->len = last->key.len + 1;
    return true;
}

/* All keys from PREFIX`from` to before PREFIX`to`; `skip` bytes of them are no part of a name. */
static dibs_status read_names(walk *w, const char *from, const char *to, size_t skip,
                              bool (*note)(walk *w, const char *text, size_t length))
{
    char end[DIBS__ETCD_PREFIX_MAX + 8], *first = NULL;
    Etcd__RangeRequest range = ETCD__RANGE_REQUEST__INIT;
    dibs_status status = DIBS_OK;
    bool more = true;

    skip += strlen(w->e->prefix);
    snprintf(end, sizeof end, "%s%s", w->e->prefix, to);
    if (asprintf(&first, "%s%s", w->e->prefix, from) < 0)
        return no_memory(w->call);
    range.key = dibs__etcd_text(first);
    range.range_end = dibs__etcd_text(end);
    range.limit = PAGE;
    range.keys_only = true;
    while (status == DIBS_OK && more) {
        ProtobufCMessage *reply = NULL;
        status =
            dibs__etcd_ask(w->e->client, DIBS__ETCD_READ, "/etcdserverpb.KV/Range", &range.base,
                           &etcd__range_response__descriptor, &reply, w->until, &w->call->err);
        if (status == DIBS_OK &&
            !take_page(w, (Etcd__RangeResponse *)reply, skip, note, &range.key, &more))
            status = no_memory(w->call);
        if (reply)
            protobuf_c_message_free_unpacked(reply, NULL);
    }
    free(range.key.data);
    return status;
}

/* "%" begins what is not a lock, or a byte of a name, which is two digits then: the folders of cells, requests
 * and sessions lie behind those, the ones of values and ends of lines before. */
static dibs_status read_all_names(walk *w)
{
    static const char *const parts[][2] = {{"/", "/%"}, {"/%0", "/%G"}, {"/&", "0"}};
    dibs_status status = DIBS_OK;

    for (size_t i = 0; i < 3 && status == DIBS_OK; i++)
        status = read_names(w, parts[i][0], parts[i][1], 1, note_entry);
    if (status == DIBS_OK && w->call->names.idle)
        status = read_names(w, "/%/", "/%0", 3, note_value);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const found *)a)->name, ((const found *)b)->name);
}

/* Each only once. */
static void sort_names(walk *w)
{
    size_t lingering = 0;

    if (w->count > 1)
        qsort(w->found, w->count, sizeof *w->found, by_name);
    for (size_t i = 0; i < w->count; i++) {
        if (lingering > 0 && strcmp(w->found[lingering - 1].name, w->found[i].name) == 0) {
            w->found[lingering - 1].keys += w->found[i].keys;
            free(w->found[i].name);
        } else {
            w->found[lingering++] = w->found[i];
        }
    }
    w->count = lingering;
}

static void ask_for(const walk *w, const char *name, keys *k, Etcd__RequestOp *ops[2])
{
    dibs__etcd_entry_key(w->e, name, "", &k->folder);
    dibs__etcd_end_of(&k->folder, &k->end);
    dibs__etcd_value_key(w->e, name, &k->value);
    dibs__etcd_range_queue(&k->queue, &k->ops[0], &k->folder, &k->end);
    dibs__etcd_range(&k->lock, &k->ops[1], &k->value);
    ops[0] = &k->ops[0];
    ops[1] = &k->ops[1];
}

static bool take_lock(walk *w, const char *name, const Etcd__RangeResponse *queue,
                      const Etcd__RangeResponse *lock)
{
    dibs__entries_listing *l = queue && lock ? dibs__entries_add_lock(w->call, name) : NULL;

    return l && dibs__etcd_listing_fill(l, w->e, name, queue, UINT64_MAX, true) &&
           dibs__etcd_listing_value(l, lock);
}

static dibs_status read_some(walk *w, const found *f, size_t count)
{
    keys *k = malloc(count * sizeof *k);
    Etcd__RequestOp *ops[2 * SOME];
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    dibs_status status;

    if (!k)
        return no_memory(w->call);
    for (size_t i = 0; i < count; i++)
        ask_for(w, f[i].name, &k[i], &ops[2 * i]);
    txn.success = ops;
    txn.n_success = 2 * count;
    status = dibs__etcd_ask(w->e->client, DIBS__ETCD_READ, "/etcdserverpb.KV/Txn", &txn.base,
                            &etcd__txn_response__descriptor, &reply, w->until, &w->call->err);
    for (size_t i = 0; i < count && status == DIBS_OK; i++)
        if (!take_lock(w, f[i].name, range_at((Etcd__TxnResponse *)reply, 2 * i),
                       range_at((Etcd__TxnResponse *)reply, 2 * i + 1)))
            status = no_memory(w->call);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    free(k);
    return status;
}

dibs_status dibs__etcd_names(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__deadline last = dibs__after(e->env, e->request_span);
    walk w = {.e = e, .call = call, .until = dibs__sooner(call->until, last)};
    dibs_status status = read_all_names(&w);

    sort_names(&w);
    for (size_t i = 0, n; status == DIBS_OK && i < w.count; i += n) {
        size_t sum = w.found[i].keys;
        for (n = 1; n < SOME && i + n < w.count && sum + w.found[i + n].keys <= SOME_KEYS; n++)
            sum += w.found[i + n].keys;
        status = read_some(&w, w.found + i, n);
    }
    for (size_t i = 0; i < w.count; i++)
        free(w.found[i].name);
    free(w.found);
    call->status = status;
    dibs__entries_done(call);
    return DIBS_OK;
}
