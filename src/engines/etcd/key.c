/* Keys, and the parts of requests. */
#define _GNU_SOURCE
#include "engines/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Keys ------------------------------------------------------------------------------------ */

static void make_key(const dibs__etcd *e, const char *mark, const char *name, const char *key,
                     dibs__etcd_key *out)
{
    char *to = out->text;

    to += sprintf(to, "%s/%s", e->prefix, mark);
    dibs__entries_escape(name, to);
    to += strlen(to);
    if (key)
        to += snprintf(to, DIBS__ENTRIES_KEY_SIZE + 1, "/%s", key);
    out->length = (size_t)(to - out->text);
}

/* "dibs.ATTEMPT.SESSION.…~SLOT…": where SESSION and SLOT begin. */
static bool is_ours(const char *key, const char **session, const char **number)
{
    *session = strncmp(key, "dibs.", 5) == 0 ? strchr(key + 5, '.') : NULL;
    *number = *session ? strchr(*session, '~') : NULL;
    return *number != NULL;
}

void dibs__etcd_entry_key(const dibs__etcd *e, const char *name, const char *key,
                          dibs__etcd_key *out)
{
    char text[64];
    const char *session, *number;

    if (!is_ours(key, &session, &number)) {
        make_key(e, "", name, key, out);
        return;
    }
    snprintf(text, sizeof text, "~%llx.%lu", strtoull(session + 1, NULL, 16),
             strtoul(number + 1, NULL, 10));
    make_key(e, "", name, text, out);
}

int64_t dibs__etcd_place_of(const char *key)
{
    const char *session, *number;

    if (!is_ours(key, &session, &number) || !(number = strchr(number + 1, '~')))
        return 0;
    return (int64_t)strtoull(number + 1, NULL, 16);
}

void dibs__etcd_compare_entry(Etcd__Compare *c, const dibs__etcd_key *entry, const char *key)
{
    int64_t place = dibs__etcd_place_of(key);

    dibs__etcd_compare(c, entry, ETCD__COMPARE__COMPARE_TARGET__CREATE, place);
    if (place == 0)
        c->result = ETCD__COMPARE__COMPARE_RESULT__GREATER;
}

bool dibs__etcd_is_entry(const Etcd__RangeResponse *r, int64_t place)
{
    return r->n_kvs > 0 && (place == 0 || r->kvs[0]->create_revision == place);
}

void dibs__etcd_value_key(const dibs__etcd *e, const char *name, dibs__etcd_key *out)
{
    make_key(e, "%/", name, NULL, out);
}

void dibs__etcd_tail_key(const dibs__etcd *e, const char *name, dibs__etcd_key *out)
{
    make_key(e, "%%/", name, NULL, out);
}

void dibs__etcd_head_key(const dibs__etcd *e, const char *name, dibs__etcd_key *out)
{
    make_key(e, "%h/", name, NULL, out);
}

/* The keys that begin with `key` end before this one. */
void dibs__etcd_end_of(const dibs__etcd_key *key, dibs__etcd_key *out)
{
    memcpy(out->text, key->text, key->length);
    out->length = key->length;
    out->text[out->length - 1]++; /* it ends with a slash, or a byte of ASCII */
}

int64_t dibs__etcd_value_lease(const dibs__etcd *e, const char *name)
{
    uint64_t hash = dibs__hash_pair(e->prefix, name) & INT64_MAX;

    return hash ? (int64_t)hash : 1;
}

ProtobufCBinaryData dibs__etcd_bytes(const dibs__etcd_key *key)
{
    return (ProtobufCBinaryData){key->length, (uint8_t *)(uintptr_t)key->text};
}

ProtobufCBinaryData dibs__etcd_text(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

/* ---- Parts ----------------------------------------------------------------------------------- */

void dibs__etcd_compare(Etcd__Compare *c, const dibs__etcd_key *key,
                        Etcd__Compare__CompareTarget target, int64_t number)
{
    etcd__compare__init(c);
    c->key = dibs__etcd_bytes(key);
    c->target = target;
    if (target == ETCD__COMPARE__COMPARE_TARGET__CREATE) {
        c->target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
        c->create_revision = number;
    } else if (target == ETCD__COMPARE__COMPARE_TARGET__MOD) {
        c->target_union_case = ETCD__COMPARE__TARGET_UNION_MOD_REVISION;
        c->mod_revision = number;
    } else {
        c->target_union_case = ETCD__COMPARE__TARGET_UNION_VERSION;
        c->version = number;
    }
}

void dibs__etcd_range(Etcd__RangeRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key)
{
    etcd__range_request__init(r);
    r->key = dibs__etcd_bytes(key);
    if (!op)
        return;
    etcd__request_op__init(op);
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_RANGE;
    op->request_range = r;
}

void dibs__etcd_range_queue(Etcd__RangeRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key,
                            const dibs__etcd_key *end)
{
    dibs__etcd_range(r, op, key);
    r->range_end = dibs__etcd_bytes(end);
    r->sort_order = ETCD__RANGE_REQUEST__SORT_ORDER__DESCEND;
    r->sort_target = ETCD__RANGE_REQUEST__SORT_TARGET__CREATE;
}

void dibs__etcd_put(Etcd__PutRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key,
                    const char *value, int64_t lease)
{
    etcd__put_request__init(r);
    etcd__request_op__init(op);
    r->key = dibs__etcd_bytes(key);
    if (value)
        r->value = dibs__etcd_text(value);
    r->ignore_value = r->ignore_lease = !value; /* only written to: everything else stays */
    r->lease = lease;
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_PUT;
    op->request_put = r;
}

void dibs__etcd_delete(Etcd__DeleteRangeRequest *r, Etcd__RequestOp *op, const dibs__etcd_key *key)
{
    etcd__delete_range_request__init(r);
    etcd__request_op__init(op);
    r->key = dibs__etcd_bytes(key);
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
    op->request_delete_range = r;
}

void dibs__etcd_nested(Etcd__TxnRequest *r, Etcd__RequestOp *op)
{
    etcd__txn_request__init(r);
    etcd__request_op__init(op);
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_TXN;
    op->request_txn = r;
}
