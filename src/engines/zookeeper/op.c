/* Requests and their answers.
 *
 * An op is a call under way. Its requests are handed to the library in flushes, with our mutex held,
 * so that the op goes on only when all of a flush are out; the library's one completion thread
 * brings the answers, and with the last of a flush the op goes on. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/zookeeper/zookeeper.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- Making and freeing ---------------------------------------------------------------------- */

dibs__zk_op *dibs__zk_op_new(dibs__zk *z, dibs__entries_call *call, const char *name)
{
    size_t root = strlen(z->root);
    dibs__zk_op *op =
        calloc(1, sizeof *op + root + 3 * DIBS_NAME_MAX + DIBS__ENTRIES_KEY_SIZE + 64);

    if (!op)
        return NULL;
    op->z = z;
    op->call = call;
    op->listing = call ? &call->listing : NULL;
    memcpy(op->path, z->root, root);
    if (name) {
        op->path[root] = '/';
        dibs__entries_escape(name, op->path + root + 1);
    }
    op->lock_length = strlen(op->path);
    return op;
}

void dibs__zk_op_free(dibs__zk_op *op)
{
    for (size_t i = 0; i < op->items; i++)
        free(op->item[i].value);
    free(op->item);
    free(op->multi);
    free(op->multi_result);
    free(op);
}

bool dibs__zk_op_items(dibs__zk_op *op, size_t count)
{
    op->item = calloc(count ? count : 1, sizeof *op->item);
    if (!op->item)
        return false;
    op->items = count;
    for (size_t i = 0; i < count; i++)
        op->item[i].op = op;
    return true;
}

const char *dibs__zk_entry_path(dibs__zk_op *op, const char *key)
{
    char *at = op->path + op->lock_length;
    size_t n = strlen(key);

    *at = '/';
    if (n >= DIBS__ENTRIES_KEY_SIZE + 60) /* a stranger's: no such entry of ours */
        n = DIBS__ENTRIES_KEY_SIZE + 59;
    memcpy(at + 1, key, n);
    at[1 + n] = '\0';
    return op->path;
}

const char *dibs__zk_lock_path(dibs__zk_op *op)
{
    op->path[op->lock_length] = '\0';
    return op->lock_length ? op->path : "/";
}

/* ---- Errors ---------------------------------------------------------------------------------- */

dibs_status dibs__zk_status(int rc)
{
    switch (rc) {
    case ZOK:
        return DIBS_OK;
    case ZCONNECTIONLOSS:
    case ZOPERATIONTIMEOUT:
    case ZCLOSING:
    case ZRUNTIMEINCONSISTENCY: /* the library lost count of its own requests: all that are out end so */
    case ZDATAINCONSISTENCY:
        return DIBS_UNKNOWN;
    case ZSESSIONEXPIRED:
    case ZINVALIDSTATE:
    case ZSESSIONMOVED:
        return DIBS_UNAVAILABLE;
    case ZNOAUTH:
    case ZAUTHFAILED:
    case ZINVALIDACL:
        return DIBS_DENIED;
    case ZSYSTEMERROR:
    case ZMARSHALLINGERROR:
        return DIBS_NO_MEMORY;
    default:
        return DIBS_ENGINE_FAILED;
    }
}

static dibs_status explain(const dibs__zk *z, int rc, dibs_error *err)
{
    dibs_status status = dibs__zk_status(rc);
    const char *root = *z->root ? z->root : "/";

    switch (status) {
    case DIBS_UNKNOWN:
        return dibs__fail(err, status, "zookeeper: the connection to %s was lost", z->hosts);
    case DIBS_UNAVAILABLE:
        return dibs__fail(err, status,
                          "zookeeper: the session with %s has expired; a new one is being opened",
                          z->hosts);
    case DIBS_DENIED:
        return dibs__fail(err, status,
                          "zookeeper: %s has no permission in %s: use credentials that have it "
                          "(zookeeper://user:password@…), or change the ACL",
                          z->auth ? "this user" : "an anonymous client", root);
    case DIBS_NO_MEMORY:
        return dibs__fail(err, status, "zookeeper: out of memory");
    default:
        if (rc == ZNONODE)
            return dibs__fail(err, status,
                              "zookeeper: %s does not exist and could not be created: create it",
                              root);
        if (rc == ZUNIMPLEMENTED)
            return dibs__fail(err, status,
                              "zookeeper: the server does not support container nodes: use "
                              "ZooKeeper 3.5 or newer");
        return dibs__fail(err, status, "zookeeper: %s", zerror(rc));
    }
}

dibs_status dibs__zk_fail(const dibs__zk *z, int rc, dibs_error *err)
{
    dibs_status status = explain(z, rc, err);

    dibs__error_code(err, "%d", rc);
    return status;
}

/* ---- Finishing ------------------------------------------------------------------------------- */

static void answer(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;

    if (op->done) {
        op->done(op);
        return;
    }
    dibs__zk_op_free(op);
    dibs__entries_done(call);
}

void dibs__zk_finish(dibs__zk_op *op, int rc)
{
    if (op->call)
        op->call->status = dibs__zk_fail(op->z, rc, &op->call->err);
    op->rc = rc;
    answer(op);
}

void dibs__zk_finish_ok(dibs__zk_op *op)
{
    if (op->call)
        op->call->status = DIBS_OK;
    op->rc = ZOK;
    answer(op);
}

void dibs__zk_finish_no_memory(dibs__zk_op *op)
{
    dibs__zk_finish(op, ZSYSTEMERROR);
}

/* ---- Flushes --------------------------------------------------------------------------------- */

/* What was sent is the answer's to fill in, which may come before we are here. */
void dibs__zk_sent(dibs__zk_op *op, int rc, int *where)
{
    if (rc == ZOK)
        op->left++;
    else
        *where = rc;
}

/* Its caller has given it up, and may have asked again. */
static bool is_given_up(const dibs__zk_op *op)
{
    return op->call && dibs__now(op->z->backend.env) >= op->call->until;
}

/* The time is looked at with the mutex: a caller that asks again after its time has its requests behind
 * those of the first call, or the first sends no more. So what it finds is all that there will be. */
dibs_status dibs__zk_flush_begin(dibs__zk_op *op, void (*next)(dibs__zk_op *op))
{
    dibs__zk *z = op->z;

    op->next = next;
    op->left = 0;
    op->sent = dibs__now(z->backend.env);
    pthread_mutex_lock(&z->mutex);
    if (z->zh && z->state == DIBS__ZK_OPEN && !is_given_up(op)) {
        op->session = z->session;
        return DIBS_OK;
    }
    pthread_mutex_unlock(&z->mutex);
    if (is_given_up(op))
        return dibs__fail(&op->call->err, DIBS_UNAVAILABLE,
                          "zookeeper: timed out before the request was sent");
    return dibs__zk_fail(z, ZSESSIONEXPIRED, op->call ? &op->call->err : NULL);
}

dibs_status dibs__zk_flush_end(dibs__zk_op *op)
{
    bool out = op->left > 0;
    dibs__zk *z = op->z;

    if (out) {
        op->next_open = z->open;
        op->at_open = &z->open;
        if (op->next_open)
            op->next_open->at_open = &op->next_open;
        z->open = op;
    }
    pthread_mutex_unlock(&z->mutex);
    if (out)
        return DIBS_OK;
    return dibs__fail(op->call ? &op->call->err : NULL, DIBS_UNAVAILABLE,
                      "zookeeper: could not send to %s", op->z->hosts);
}

void dibs__zk_follow(dibs__zk_op *op, void (*fill)(dibs__zk_op *op), void (*next)(dibs__zk_op *op))
{
    if (dibs__zk_flush_begin(op, next) != DIBS_OK) {
        dibs__zk_finish(op, is_given_up(op) ? ZOPERATIONTIMEOUT : ZSESSIONEXPIRED);
        return;
    }
    fill(op);
    if (dibs__zk_flush_end(op) != DIBS_OK)
        dibs__zk_finish(op, ZCONNECTIONLOSS);
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* By the server. Codes above ZAPIERROR are the library's own, and mean that a request could not be sent or that its answer
 * was not read. One of them comes from servers as well. */
static bool was_answered(int rc)
{
    if (rc > ZAPIERROR)
        return rc == ZOK || rc == ZUNIMPLEMENTED;
    return rc != ZCLOSING && rc != ZSESSIONEXPIRED && rc != ZSESSIONMOVED && rc != ZAUTHFAILED;
}

void dibs__zk_answered(dibs__zk_op *op, int rc, bool quorum)
{
    dibs__zk *z = op->z;
    bool last;

    pthread_mutex_lock(&z->mutex);
    if (was_answered(rc) && op->session == z->session)
        dibs__zk_proof_answered(z, op->sent, quorum);
    last = --op->left == 0;
    if (last)
        dibs__zk_op_closed(op);
    pthread_mutex_unlock(&z->mutex);
    if (last)
        op->next(op);
}

void dibs__zk_op_closed(dibs__zk_op *op)
{
    *op->at_open = op->next_open;
    if (op->next_open)
        op->next_open->at_open = op->at_open;
    if (!op->z->open)
        pthread_cond_broadcast(&op->z->cond);
}

/* The library (3.8) forgets requests that are out when it is closed. */
void dibs__zk_ops_lost(dibs__zk *z)
{
    dibs__zk_op *op;

    for (;;) {
        pthread_mutex_lock(&z->mutex);
        op = z->open;
        if (op)
            dibs__zk_op_closed(op);
        pthread_mutex_unlock(&z->mutex);
        if (!op)
            return;
        op->left = 0;
        op->rc = op->lock_rc = op->list_rc = op->sync_rc = ZCLOSING;
        for (size_t i = 0; i < op->items; i++)
            op->item[i].rc = ZCLOSING;
        op->next(op);
    }
}

void dibs__zk_on_sync(int rc, const char *value, const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;

    (void)value;
    op->sync_rc = rc;
    dibs__zk_answered(op, rc, false);
}

static char *copy_bytes(const char *value, int size)
{
    return strndup(value && size > 0 ? value : "", value && size > 0 ? (size_t)size : 0);
}

void dibs__zk_on_lock(int rc, const char *value, int size, const struct Stat *stat,
                      const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;
    dibs__entries_listing *l = op->listing;

    op->lock_rc = rc;
    if (rc == ZOK) {
        l->exists = true;
        l->version = (uint64_t)(uint32_t)stat->version;
        l->fence = (uint64_t)(stat->pzxid > stat->mzxid ? stat->pzxid : stat->mzxid);
        free(l->value);
        l->value = size > 0 ? copy_bytes(value, size) : NULL;
        if (size > 0 && !l->value)
            op->lock_rc = ZSYSTEMERROR;
        op->lock.czxid = stat->czxid;
        op->lock.version = stat->version;
    }
    dibs__zk_answered(op, rc, false);
}

void dibs__zk_on_children(int rc, const struct String_vector *names, const struct Stat *stat,
                          const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;

    op->list_rc = rc;
    if (rc == ZOK)
        op->listing->as_of = (uint64_t)(uint32_t)stat->cversion;
    for (int i = 0; rc == ZOK && i < names->count; i++) {
        dibs__queue_entry facts = {.place = dibs__zk_place(names->data[i])};
        if (facts.place != DIBS__ZK_NOWHERE &&
            !dibs__entries_listing_add(op->listing, names->data[i], NULL, &facts,
                                       dibs__zk_foreign_weight(names->data[i])))
            op->list_rc = ZSYSTEMERROR;
    }
    dibs__zk_answered(op, rc, false);
}

void dibs__zk_on_void(int rc, const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;

    op->rc = rc;
    dibs__zk_answered(op, rc, true);
}

void dibs__zk_on_item_stat(int rc, const struct Stat *stat, const void *data)
{
    dibs__zk_item *item = (dibs__zk_item *)(uintptr_t)data;

    item->rc = rc;
    if (rc == ZOK)
        item->stat = *stat;
    dibs__zk_answered(item->op, rc, false);
}

void dibs__zk_on_item_data(int rc, const char *value, int size, const struct Stat *stat,
                           const void *data)
{
    dibs__zk_item *item = (dibs__zk_item *)(uintptr_t)data;

    item->rc = rc;
    if (rc == ZOK) {
        item->stat = *stat;
        item->value = copy_bytes(value, size);
        if (!item->value)
            item->rc = ZSYSTEMERROR;
    }
    dibs__zk_answered(item->op, rc, false);
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* Sequence numbers below LATE are places. The server (3.8) counts up to 2^31 - 1, turns negative while
 * requests are under way together, and goes back to 2^31 - 1 when they are done: numbers that high say
 * nothing. Long before that, entries are ordered by their czxid, behind all that have a number. One that
 * lingers was made anew when it was given back, and what it stands for held: it comes before those. */
#define LATE           ((uint64_t)1 << 30)
#define LATE_LINGERING ((uint64_t)1 << 61)
#define LATE_ENTRY     ((uint64_t)1 << 62)

/* What a key has before its sequence number, by the recipes of kazoo, Curator and ours. */
typedef struct kind {
    const char *end;
    uint32_t weight; /* of a stranger's */
} kind;

static const kind kinds[] = {{"__lock__", DIBS__PLAIN}, {"__rlock__", 1}, {"lock-", DIBS__PLAIN},
                             {"__WRIT__", DIBS__PLAIN}, {"__READ__", 1},  {"__slot__", 0}};

/* The kind of a key whose sequence number has so many bytes; NULL: that is no sequence number. */
static const kind *kind_before(const char *key, size_t length, size_t sequence)
{
    for (size_t i = 0; length >= sequence && i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t n = strlen(kinds[i].end), head = length - sequence;
        if (head >= n && memcmp(key + head - n, kinds[i].end, n) == 0)
            return &kinds[i];
    }
    return NULL;
}

/* The server writes "%010d": ten digits, a sign and nine, or a sign and ten. What comes before tells
 * a sign from the dash of Curator's "lock-". */
static const kind *read_key(const char *key, int64_t *sequence)
{
    size_t length = strlen(key), digits = 0;
    const kind *k = NULL;

    while (digits < length && isdigit((unsigned char)key[length - 1 - digits]))
        digits++;
    if (digits == 10)
        k = kind_before(key, length, 10);
    if (!k && (digits == 9 || digits == 10) && length > digits && key[length - 1 - digits] == '-')
        k = kind_before(key, length, ++digits);
    if (k)
        *sequence = strtoll(key + length - digits, NULL, 10);
    return k;
}

uint64_t dibs__zk_place(const char *key)
{
    int64_t sequence;

    if (!read_key(key, &sequence))
        return DIBS__ZK_NOWHERE;
    return sequence >= 0 && sequence < (int64_t)LATE ? (uint64_t)sequence : DIBS__ZK_BY_ZXID;
}

uint64_t dibs__zk_place_by(const char *key, const struct Stat *stat)
{
    uint64_t place = dibs__zk_place(key), zxid = (uint64_t)stat->czxid;

    if (place != DIBS__ZK_BY_ZXID)
        return place;
    return (strncmp(key, "kept.", 5) == 0 ? LATE_LINGERING : LATE_ENTRY) + zxid;
}

bool dibs__zk_is_late(uint64_t place)
{
    return place >= LATE;
}

uint32_t dibs__zk_foreign_weight(const char *key)
{
    int64_t sequence;
    const kind *k = read_key(key, &sequence);

    return k ? k->weight : 0;
}
