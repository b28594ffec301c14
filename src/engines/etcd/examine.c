/* Facts about an etcd cluster: what each member of the URL says about itself (Status), who is in the
 * cluster (MemberList), and whether this user may write below the prefix: a transaction whose condition
 * does not hold is checked for rights and writes nothing. The checks are in src/doctor/etcd.c. */
#define _GNU_SOURCE
#include "core/error.h"
#include "doctor/facts.h"
#include "engines/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUOTA (INT64_C(2) * 1024 * 1024 * 1024) /* unless the server is told otherwise */
#define TRIES 10
#define MIB   (1024 * 1024)

typedef struct session {
    const dibs__open_request *request;
    dibs__etcd_client *client;
    char key[DIBS__ETCD_PREFIX_MAX + 40]; /* a scratch key, which is never written */
    dibs__deadline until;
} session;

static void *ask(const session *s, const char *method, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *type, dibs_error *err)
{
    ProtobufCMessage *out = NULL;

    dibs__etcd_ask(s->client, DIBS__ETCD_URGENT, method, request, type, &out, s->until, err);
    return out;
}

/* ---- A member -------------------------------------------------------------------------------- */

/* 3.4.31 and 3.5.13 have the fix of etcd-io/etcd#15247. */
static void add_version(dibs__facts *f, const char *version)
{
    int major = 0, minor = 0, patch = 0;
    bool fixed;

    dibs__fact_add(f, "version", "%s", version);
    if (sscanf(version, "%d.%d.%d", &major, &minor, &patch) != 3)
        return;
    dibs__fact_number(f, "version_number", major * 100 + minor);
    fixed = major > 3 || minor > 5 || (minor == 5 && patch >= 13) || (minor == 4 && patch >= 31);
    dibs__fact_flag(f, "revokes_live_leases", !fixed);
}

static void add_status(dibs__facts *f, const Etcd__StatusResponse *r)
{
    char errors[400] = "";

    add_version(f, r->version);
    for (size_t i = 0; i < r->n_errors; i++) {
        size_t n = strlen(errors);
        snprintf(errors + n, sizeof errors - n, "%s%s", n ? "; " : "", r->errors[i]);
    }
    dibs__fact_add(f, "errors", "%s", errors);
    dibs__fact_flag(f, "learner", r->islearner);
    dibs__fact_flag(f, "leader", r->leader != 0);
    dibs__fact_number(f, "size_mib", r->dbsize / MIB);
    dibs__fact_percent(f, "size", r->dbsize, QUOTA);
    if (r->header)
        dibs__fact_add(f, "cluster", "%016llx", (unsigned long long)r->header->cluster_id);
}

/* A member without a leader ends the stream of leases, and the client its connection with it, perhaps before
 * the answer to this is there: then it is asked again. */
static void look_at_member(const session *s, dibs__facts *f)
{
    Etcd__StatusRequest request = ETCD__STATUS_REQUEST__INIT;
    dibs_error why = {0};
    Etcd__StatusResponse *r = NULL;

    for (int tries = 0; tries < TRIES && !r && !strstr(why.message, "no leader"); tries++)
        r = ask(s, "/etcdserverpb.Maintenance/Status", &request.base,
                &etcd__status_response__descriptor, &why);

    if (r)
        add_status(f, r);
    else if (strstr(why.message, "no leader"))
        dibs__fact_flag(f, "leader", false);
    else
        dibs__fact_add(f, "down", "%s", why.message);
    if (r)
        etcd__status_response__free_unpacked(r, NULL);
}

/* ---- The cluster ----------------------------------------------------------------------------- */

static void count_members(const session *s, dibs__facts *f)
{
    Etcd__MemberListRequest request = ETCD__MEMBER_LIST_REQUEST__INIT;
    dibs_error why = {0};
    Etcd__MemberListResponse *r = ask(s, "/etcdserverpb.Cluster/MemberList", &request.base,
                                      &etcd__member_list_response__descriptor, &why);
    size_t voters = 0, learners = 0, unstarted = 0;

    if (!r) {
        dibs__fact_unseen(f, "members", "the list of members is refused: %.300s", why.message);
        return;
    }
    for (size_t i = 0; i < r->n_members; i++) {
        voters += !r->members[i]->islearner;
        learners += r->members[i]->islearner;
        unstarted += !r->members[i]->name[0];
    }
    etcd__member_list_response__free_unpacked(r, NULL);
    dibs__fact_number(f, "members", (int64_t)voters);
    dibs__fact_flag(f, "even", voters % 2 == 0);
    dibs__fact_number(f, "learners", (int64_t)learners);
    dibs__fact_number(f, "unstarted", (int64_t)unstarted);
    dibs__fact_number(f, "named", (int64_t)s->request->url->host_count);
    dibs__fact_flag(f, "unnamed", s->request->url->host_count < voters);
}

/* May this user write here? The key is not there, so the condition does not hold. */
static void try_rights(const session *s, dibs__facts *f)
{
    ProtobufCBinaryData key = {strlen(s->key), (uint8_t *)(uintptr_t)s->key};
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    Etcd__RequestOp op = ETCD__REQUEST_OP__INIT, *ops[] = {&op};
    Etcd__Compare there = ETCD__COMPARE__INIT, *conditions[] = {&there};
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    dibs_error why = {0};
    Etcd__TxnResponse *r;

    put.key = there.key = key;
    op.request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_PUT;
    op.request_put = &put;
    there.result = ETCD__COMPARE__COMPARE_RESULT__GREATER;
    there.target = ETCD__COMPARE__COMPARE_TARGET__VERSION;
    there.target_union_case = ETCD__COMPARE__TARGET_UNION_VERSION;
    txn.compare = conditions;
    txn.success = ops;
    txn.n_compare = txn.n_success = 1;
    r = ask(s, "/etcdserverpb.KV/Txn", &txn.base, &etcd__txn_response__descriptor, &why);
    dibs__fact_flag(f, "may_write", r || why.status != DIBS_DENIED);
    dibs__fact_add(f, "write_error", "%s", why.message);
    if (r)
        etcd__txn_response__free_unpacked(r, NULL);
}

static Etcd__RangeResponse *read_scratch(const session *s, int64_t revision, dibs_error *err)
{
    Etcd__RangeRequest range = ETCD__RANGE_REQUEST__INIT;

    range.key = (ProtobufCBinaryData){strlen(s->key), (uint8_t *)(uintptr_t)s->key};
    range.revision = revision;
    return ask(s, "/etcdserverpb.KV/Range", &range.base, &etcd__range_response__descriptor, err);
}

/* The first revision can be read until somebody compacts. */
static void look_at_history(const session *s, dibs__facts *f)
{
    dibs_error why = {0};
    Etcd__RangeResponse *now = read_scratch(s, 0, NULL), *first = read_scratch(s, 1, &why);

    if (now && now->header)
        dibs__fact_number(f, "revision", now->header->revision);
    if (first || strstr(why.message, "compacted"))
        dibs__fact_flag(f, "compacted", !first);
    if (now)
        etcd__range_response__free_unpacked(now, NULL);
    if (first)
        etcd__range_response__free_unpacked(first, NULL);
}

static bool read_once(void *ctx)
{
    Etcd__RangeResponse *r = read_scratch(ctx, 0, NULL);

    if (r)
        etcd__range_response__free_unpacked(r, NULL);
    return r != NULL;
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* A client of the i-th server of the URL alone. */
static dibs_status connect_to(session *s, size_t i, dibs__etcd *e, dibs_error *err)
{
    static const dibs__etcd_events none;
    dibs__etcd_address address = {0};
    dibs_status status = dibs__etcd_read_url(s->request, e, &address, err);

    if (status != DIBS_OK) {
        dibs__etcd_address_fini(&address);
        return status;
    }
    for (size_t k = 0; k < address.count; k++)
        if (k != i)
            free(address.host[k].name);
    address.host[0] = address.host[i];
    address.count = 1;
    s->client = dibs__etcd_client_new(s->request->env, s->request->sink, &address, &none);
    if (!s->client)
        return dibs__fail(err, DIBS_NO_MEMORY, "etcd: out of memory or descriptors");
    snprintf(s->key, sizeof s->key, "%s/%%doctor", e->prefix);
    return dibs__etcd_client_open(s->client, s->until, err);
}

/* All members of the URL must be of the cluster of the first that answered. */
static void compare_cluster(dibs__facts *out, const dibs__facts *f)
{
    const char *cluster = dibs__fact_text(f, "cluster", NULL);

    if (cluster && !dibs__fact_find(out, "cluster"))
        dibs__fact_add(out, "cluster", "%s", cluster);
    else if (cluster && strcmp(cluster, dibs__fact_text(out, "cluster", "")) != 0)
        dibs__fact_add(out, "stranger", "%s", f->label);
}

/* One member after the other; the first that serves tells about the cluster. */
static void look_at_all(session *s, dibs__etcd *e, dibs__facts *out, size_t *up, dibs_error *err)
{
    size_t count = s->request->url->host_count ? s->request->url->host_count : 1;
    const dibs__env *env = s->request->env;
    int64_t share = (s->request->until - dibs__now(env)) / (int64_t)count;

    for (size_t i = 0; i < count; i++) {
        const dibs__url_host *host = &s->request->url->host[i];
        dibs__facts *f = dibs__facts_part(out, "etcd member", "member %s:%d",
                                          host->name && *host->name ? host->name : "127.0.0.1",
                                          host->port ? host->port : DIBS__ETCD_PORT);
        dibs_error why = {0};
        s->until = dibs__after(env, share);
        s->client = NULL;
        if (connect_to(s, i, e, &why) != DIBS_OK)
            dibs__fact_add(f, "down", "%s", why.message);
        s->until = dibs__after(env, DIBS__EXAMINE_SPAN);
        if (!dibs__fact_find(f, "down"))
            look_at_member(s, f);
        compare_cluster(out, f);
        if (dibs__fact_find(f, "down"))
            dibs__fail(err, why.status ? why.status : DIBS_UNAVAILABLE, "%s",
                       dibs__fact_text(f, "down", ""));
        if (!dibs__fact_find(f, "down") && (*up)++ == 0) {
            count_members(s, out);
            try_rights(s, out);
            look_at_history(s, out);
            dibs__facts_measure(out, env, s->until, read_once, s);
        }
        dibs__etcd_client_free(s->client);
    }
}

dibs_status dibs__etcd_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err)
{
    dibs__etcd *e = calloc(1, sizeof *e);
    dibs__etcd_address address = {0};
    session s = {.request = request, .until = request->until};
    dibs_error why = {0};
    size_t up = 0;
    dibs_status status;

    if (!e)
        return dibs__fail(err, DIBS_NO_MEMORY, "etcd: out of memory");
    status = dibs__etcd_read_url(request, e, &address, err);
    if (status == DIBS_OK) {
        dibs__fact_number(out, "lease_ms", e->ttl / DIBS__MS);
        dibs__fact_add(out, "prefix", "%s", e->prefix);
        dibs__fact_flag(out, "authenticated", address.user != NULL);
        look_at_all(&s, e, out, &up, &why);
        if (up == 0)
            status = dibs__fail(err, why.status ? why.status : DIBS_UNAVAILABLE,
                                "etcd: no server of the URL answers: %s", why.message);
    }
    dibs__etcd_address_fini(&address);
    free(e);
    return status;
}
