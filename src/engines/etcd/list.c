/* Looking at one line, and at all of them. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/etcd.h"

static const Etcd__RangeResponse *range_at(const Etcd__TxnResponse *r, size_t i)
{
    return r && i < r->n_responses &&
                   r->responses[i]->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE
               ? r->responses[i]->response_range
               : NULL;
}

static dibs_status no_memory(dibs__line_call *call)
{
    return dibs__fail(&call->err, DIBS_NO_MEMORY, "out of memory");
}

/* ---- Who is ahead ---------------------------------------------------------------------------- */

static void on_ahead(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__line_call *call = op->call;
    Etcd__RangeResponse *r = dibs__etcd_op_answer(op, &etcd__range_response__descriptor);
    bool behind = r && !op->strict && (!r->header || (uint64_t)r->header->revision < op->below);

    if (r && !behind &&
        !dibs__etcd_listing_fill(&call->listing, op->e, call->name, r, op->below, call->values))
        call->status = no_memory(call);
    /* In a long line there is time for a watch that begins in the past: it needs no look. */
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
 * it has not heard of yet makes us wait longer, never shorter. */
bool dibs__etcd_send_ahead(dibs__etcd_op *op, uint64_t below)
{
    const dibs__line_call *call = op->call;
    dibs__etcd_key folder, end;
    Etcd__RangeRequest r;

    dibs__etcd_entry_key(op->e, call->name, "", &folder);
    dibs__etcd_end_of(&folder, &end);
    dibs__etcd_range_line(&r, NULL, &folder, &end);
    op->below = below;
    r.max_create_revision = (int64_t)below - 1;
    /* Each weighs one at least: so many exceed `enough`, whatever they are. */
    r.limit = call->owner || call->enough >= DIBS__ETCD_NEAREST ? 0 : DIBS__ETCD_NEAREST;
    r.serializable = !op->strict;
    return dibs__etcd_op_send(op, DIBS__ETCD_READ, "/etcdserverpb.KV/Range", &r.base, on_ahead);
}

/* ---- All of a line --------------------------------------------------------------------------- */

static void on_line(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__line_call *call = op->call;
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);
    const Etcd__RangeResponse *line = range_at(r, 0), *lock = range_at(r, 1);

    if (r && (!line || !lock ||
              !dibs__etcd_listing_fill(&call->listing, op->e, call->name, line, UINT64_MAX,
                                       call->values) ||
              !dibs__etcd_listing_value(&call->listing, lock)))
        call->status = no_memory(call);
    if (r)
        etcd__txn_response__free_unpacked(r, NULL);
    dibs__etcd_op_done(op);
}

static bool send_line(dibs__etcd_op *op)
{
    const dibs__line_call *call = op->call;
    dibs__etcd_key folder, end, value;
    Etcd__RangeRequest line, lock;
    Etcd__RequestOp ops[2], *both[2] = {&ops[0], &ops[1]};
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;

    dibs__etcd_entry_key(op->e, call->name, "", &folder);
    dibs__etcd_end_of(&folder, &end);
    dibs__etcd_value_key(op->e, call->name, &value);
    dibs__etcd_range_line(&line, &ops[0], &folder, &end);
    dibs__etcd_range(&lock, &ops[1], &value);
    txn.success = both;
    txn.n_success = 2;
    return dibs__etcd_op_send(op, DIBS__ETCD_READ, "/etcdserverpb.KV/Txn", &txn.base, on_line);
}

dibs_status dibs__etcd_list(dibs__line_side *s, dibs__line_call *call)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);

    if (!op)
        return DIBS_NO_MEMORY;
    pthread_mutex_lock(&e->lock);
    call->session = e->lease ? (uint64_t)e->lease : UINT64_MAX; /* of nobody */
    pthread_mutex_unlock(&e->lock);
    op->strict = call->again;
    return dibs__etcd_op_started(
        op, call->place == UINT64_MAX ? send_line(op) : dibs__etcd_send_ahead(op, call->place));
}

/* ---- All lines ------------------------------------------------------------------------------- */

/* One lock's own value, found while its entries are read. */
typedef struct value {
    const Etcd__KeyValue *kv;
    const char *text; /* the escaped name, not terminated */
    size_t length;
    bool used;
} value;

static int compare_text(const char *a, size_t m, const char *b, size_t n)
{
    int order = memcmp(a, b, m < n ? m : n);

    return order ? order : m < n ? -1 : m > n;
}

static int by_text(const void *a, const void *b)
{
    const value *x = a, *y = b;

    return compare_text(x->text, x->length, y->text, y->length);
}

/* What is being gathered. */
typedef struct walk {
    dibs__etcd_op *op;
    const Etcd__RangeResponse *line;
    size_t skip; /* bytes of a key before what is told apart here */
    value *values;
    size_t count;
} walk;

/* "%/NAME" after the prefix is the value of a lock. */
static bool is_value(const char *text, size_t length)
{
    return length > 2 && memcmp(text, "%/", 2) == 0;
}

static bool read_values(walk *w)
{
    w->values = calloc(w->line->n_kvs + 1, sizeof *w->values);
    if (!w->values)
        return false;
    for (size_t i = 0; i < w->line->n_kvs; i++) {
        const Etcd__KeyValue *kv = w->line->kvs[i];
        const char *text = (const char *)kv->key.data + w->skip;
        size_t length = kv->key.len - w->skip;
        if (is_value(text, length))
            w->values[w->count++] = (value){kv, text + 2, length - 2, false};
    }
    qsort(w->values, w->count, sizeof *w->values, by_text);
    return true;
}

static value *value_of(walk *w, const char *text, size_t length)
{
    value wanted = {NULL, text, length, false};

    return bsearch(&wanted, w->values, w->count, sizeof *w->values, by_text);
}

/* A lock's name from its place in a key; false: not one of ours, or not asked for. */
static bool read_name(const walk *w, const char *text, size_t length, char name[DIBS_NAME_MAX + 1])
{
    const char *prefix = w->op->call->prefix ? w->op->call->prefix : "";
    char escaped[3 * DIBS_NAME_MAX + 1];

    if (length >= sizeof escaped)
        return false;
    memcpy(escaped, text, length);
    escaped[length] = '\0';
    return dibs__line_unescape(escaped, name) && strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The next lock of the report, with its own value. `*out` is NULL when it is not wanted. */
static bool add_lock(walk *w, const char *text, size_t length, dibs__line_listing **out)
{
    value *v = value_of(w, text, length);
    char name[DIBS_NAME_MAX + 1];

    *out = NULL;
    if (v)
        v->used = true;
    if (!read_name(w, text, length, name))
        return true;
    *out = dibs__line_add_lock(w->op->call, name);
    if (!*out)
        return false;
    (*out)->exists = true;
    return !v || dibs__etcd_listing_value_of(*out, v->kv);
}

/* Entries come sorted by key, so that those of a name are together. */
static bool report_entries(walk *w)
{
    dibs__line_listing *l = NULL;
    size_t length = 0;
    const char *name = NULL;

    for (size_t i = 0; i < w->line->n_kvs; i++) {
        const Etcd__KeyValue *kv = w->line->kvs[i];
        const char *text = (const char *)kv->key.data + w->skip;
        size_t n = kv->key.len - w->skip;
        const char *slash = is_value(text, n) ? NULL : memchr(text, '/', n);
        if (!slash)
            continue;
        if (!name || compare_text(text, (size_t)(slash - text), name, length) != 0) {
            name = text;
            length = (size_t)(slash - text);
            if (!add_lock(w, name, length, &l))
                return false;
        }
        if (l && !dibs__etcd_listing_add(l, slash + 1, n - length - 1, kv, true))
            return false;
    }
    return true;
}

static bool report_idle(walk *w)
{
    dibs__line_listing *l;

    for (size_t i = 0; i < w->count; i++)
        if (!w->values[i].used && !add_lock(w, w->values[i].text, w->values[i].length, &l))
            return false;
    return true;
}

static void on_names(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__line_call *call = op->call;
    Etcd__RangeResponse *r = dibs__etcd_op_answer(op, &etcd__range_response__descriptor);
    walk w = {.op = op, .line = r, .skip = strlen(op->e->prefix) + 1};

    if (r && (!read_values(&w) || !report_entries(&w) || (call->idle && !report_idle(&w))))
        call->status = no_memory(call);
    free(w.values);
    if (r)
        etcd__range_response__free_unpacked(r, NULL);
    dibs__etcd_op_done(op);
}

dibs_status dibs__etcd_names(dibs__line_side *s, dibs__line_call *call)
{
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);
    dibs__etcd_key folder, end;
    Etcd__RangeRequest range;

    if (!op)
        return DIBS_NO_MEMORY;
    folder.length = strlen(op->e->prefix) + 1;
    memcpy(folder.text, op->e->prefix, folder.length - 1);
    folder.text[folder.length - 1] = '/';
    dibs__etcd_end_of(&folder, &end);
    dibs__etcd_range(&range, NULL, &folder);
    range.range_end = dibs__etcd_bytes(&end);
    return dibs__etcd_op_started(
        op,
        dibs__etcd_op_send(op, DIBS__ETCD_READ, "/etcdserverpb.KV/Range", &range.base, on_names));
}
