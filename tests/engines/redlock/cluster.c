#define _GNU_SOURCE
#include "cluster.h"

#include "support/clock.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_url(cluster *c)
{
    int used = snprintf(c->url, sizeof c->url, "redlock://");

    for (int i = 0; i < c->count; i++)
        used += snprintf(c->url + used, sizeof c->url - (size_t)used, "%s127.0.0.1:%d",
                         i ? "," : "", c->proxy[i] ? proxy_port(c->proxy[i]) : c->node[i].port);
}

void cluster_need(cluster *c, int count, const char *const extra[], bool vouched)
{
    memset(c, 0, sizeof *c);
    for (c->count = 0; c->count < count; c->count++)
        server_need(&c->node[c->count], extra);
    write_url(c);
    if (vouched)
        cluster_vouch(c);
}

void cluster_vouch(cluster *c)
{
    dibs_close(cluster_open(c, "?guard=off&max_lease=10"));
}

void cluster_stop(cluster *c)
{
    for (int i = 0; i < c->count; i++) {
        if (c->proxy[i])
            proxy_stop(c->proxy[i]);
        server_stop(&c->node[i]);
    }
}

void cluster_proxy(cluster *c, int i)
{
    c->proxy[i] = proxy_start(c->node[i].port);
    assert_non_null(c->proxy[i]);
    write_url(c);
}

const char *cluster_url(const cluster *c, const char *more)
{
    static _Thread_local char url[1024];

    snprintf(url, sizeof url, "%s%s", c->url, more ? more : "");
    return url;
}

dibs *cluster_open(const cluster *c, const char *more)
{
    return expect_open(cluster_url(c, more), NULL);
}

/* A vote that is out has its attempt in the record, behind the owner. */
int cluster_votes(cluster *c, const char *name)
{
    char command[600], reply[4096];
    int votes = 0;

    snprintf(command, sizeof command,
             "EVAL \"local s=redis.call('GET',KEYS[1]) if not s then return 0 end "
             "local t=redis.call('TIME') local e=struct.unpack('>d',s,37) "
             "if e>t[1]*1000000+t[2] then return 1 end return 0\" 1 dibs:{%s}",
             name);
    for (int i = 0; i < c->count; i++)
        if (c->node[i].pid && server_command(&c->node[i], command, reply, sizeof reply) == 0)
            votes += strncmp(reply, ":1", 2) == 0;
    return votes;
}

typedef struct expected {
    cluster *c;
    const char *name;
    int votes;
} expected;

static bool votes_are(void *ctx)
{
    expected *e = ctx;

    return cluster_votes(e->c, e->name) == e->votes;
}

void cluster_expect_votes(cluster *c, const char *name, int votes, int64_t ms)
{
    if (!wait_until(votes_are, &(expected){c, name, votes}, ms))
        fail_msg("%s: %d votes are out, not %d", name, cluster_votes(c, name), votes);
}

dibs_grant *cluster_take(dibs *d, const char *name, int64_t lease_ms, int64_t wait_ms)
{
    return expect_lock(d, name, &(dibs_lock_options){.lease_ms = lease_ms, .wait_ms = wait_ms});
}
