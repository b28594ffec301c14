/* See the header. redis-cli makes the cluster; slots are moved with the same commands as redis-cli uses. */
#define _GNU_SOURCE
#include "support/cluster.h"

#include "support/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READY_MS 60000
#define KEYS     64 /* moved at a time */

/* ---- Asking ---------------------------------------------------------------------------------- */

int cluster_ask(cluster *c, int node, const char *command, char *reply, size_t size)
{
    char line[1024], *at;

    if (!c->node[node].pid)
        return -1;
    if (!c->password)
        return server_command(&c->node[node], command, reply, size);
    snprintf(line, sizeof line, "AUTH %s\r\n%s", c->password, command);
    if (server_command(&c->node[node], line, reply, size) < 0)
        return -1;
    at = strstr(reply, "+OK\r\n");
    if (at)
        memmove(reply, at + 5, strlen(at + 5) + 1);
    return 0;
}

static bool says(cluster *c, int node, const char *command, const char *what)
{
    char reply[4096] = "";

    return cluster_ask(c, node, command, reply, sizeof reply) == 0 && strstr(reply, what);
}

bool cluster_is_master(cluster *c, int node)
{
    return says(c, node, "ROLE", "master");
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool start_node(cluster *c, int i, int timeout_ms)
{
    char timeout[16], bus[16], port[16];
    server_tls_args tls;
    const char *extra[48] = {"--cluster-enabled",
                             "yes",
                             "--cluster-node-timeout",
                             timeout,
                             "--repl-diskless-sync-delay",
                             "0",
                             "--cluster-port",
                             bus,
                             "--cluster-replica-no-failover",
                             "no",
                             "--cluster-allow-replica-migration",
                             "no",
                             "--repl-timeout",
                             "5"};
    int n = 14;

    snprintf(timeout, sizeof timeout, "%d", timeout_ms);
    snprintf(bus, sizeof bus, "%d", free_port());
    if (c->password) {
        extra[n++] = "--requirepass";
        extra[n++] = c->password;
        extra[n++] = "--masterauth";
        extra[n++] = c->password;
    }
    if (c->tls) {
        snprintf(port, sizeof port, "%d", free_port());
        n = server_add_tls(&tls, c->tls, port, extra, n);
        extra[n++] = "--tls-cluster";
        extra[n++] = "yes";
    }
    if (server_start(&c->node[i], extra) < 0)
        return false;
    if (c->tls)
        c->node[i].port = atoi(port);
    return true;
}

static bool create(const cluster *c)
{
    char command[1024];
    int n = snprintf(
        command, sizeof command, "redis-cli --no-auth-warning %s %s %s%s%s --cluster create",
        c->password ? "-a" : "", c->password ? c->password : "", c->tls ? "--tls --cacert " : "",
        c->tls ? c->tls : "", c->tls ? "/ca.crt" : "");

    for (int i = 0; i < CLUSTER_NODES; i++)
        n += snprintf(command + n, sizeof command - (size_t)n, " 127.0.0.1:%d", c->node[i].port);
    snprintf(command + n, sizeof command - (size_t)n,
             " --cluster-replicas 1 --cluster-yes >/dev/null 2>&1");
    return system(command) == 0;
}

static bool is_ready(void *ctx)
{
    cluster *c = ctx;

    for (int i = 0; i < CLUSTER_NODES; i++)
        if (!says(c, i, "CLUSTER INFO", "cluster_state:ok"))
            return false;
    for (int i = 0; i < CLUSTER_MASTERS; i++)
        if (!says(c, i, "INFO replication", "state=online"))
            return false;
    return true;
}

static int start(cluster *c, int timeout_ms)
{
    for (int i = 0; i < CLUSTER_NODES; i++)
        if (!start_node(c, i, timeout_ms))
            return -1;
    if (create(c) && wait_until(is_ready, c, READY_MS))
        return 0;
    fprintf(stderr, "# the Redis Cluster was not made\n");
    return -1;
}

int cluster_start(cluster *c, int timeout_ms, const char *password)
{
    *c = (cluster){.password = password};
    return start(c, timeout_ms);
}

int cluster_start_tls(cluster *c, int timeout_ms, const char *folder)
{
    *c = (cluster){.tls = folder};
    return start(c, timeout_ms);
}

void cluster_stop(cluster *c)
{
    for (int i = 0; i < CLUSTER_NODES; i++)
        server_stop(&c->node[i]);
}

const char *cluster_url(const cluster *c, const char *more)
{
    static _Thread_local char url[512];
    int n = snprintf(url, sizeof url, "redis+cluster://");

    if (c->password)
        n += snprintf(url + n, sizeof url - (size_t)n, ":%s@", c->password);
    for (int i = 0; i < CLUSTER_MASTERS; i++)
        n += snprintf(url + n, sizeof url - (size_t)n, "%s127.0.0.1:%d", i ? "," : "",
                      c->node[i].port);
    snprintf(url + n, sizeof url - (size_t)n, "%s", more);
    return url;
}

/* ---- Who is who ------------------------------------------------------------------------------ */

static int node_at(const cluster *c, int port)
{
    for (int i = 0; i < CLUSTER_NODES; i++)
        if (c->node[i].port == port)
            return i;
    return -1;
}

/* " 5 7-9": is the slot among them? */
static bool has_slot(const char *ranges, int slot)
{
    for (; ranges && *ranges; ranges = strchr(ranges + 1, ' ')) {
        int from, to, n = sscanf(ranges, " %d-%d", &from, &to);
        if (n >= 1 && slot >= from && slot <= (n == 2 ? to : from))
            return true;
    }
    return false;
}

/* In CLUSTER NODES: "id host:port@bus flags ... connected 5 7-9"; of itself a node says "myself,master". */
int cluster_master_by(cluster *c, int node, int slot)
{
    char reply[4096], *save = NULL, flags[64];
    int port;

    if (cluster_ask(c, node, "CLUSTER NODES", reply, sizeof reply) < 0)
        return -1;
    for (char *line = strtok_r(reply, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        int at = 0;
        if (sscanf(line, "%*s %*[^:]:%d@%*s %63s %*s %*s %*s %*s connected%n", &port, flags, &at) ==
                2 &&
            at && strstr(flags, "master") && !strstr(flags, "fail") && has_slot(line + at, slot))
            return node_at(c, port);
    }
    return -1;
}

int cluster_master_of(cluster *c, int slot)
{
    int master = -1;

    for (int i = 0; i < CLUSTER_NODES && master < 0; i++)
        master = cluster_master_by(c, i, slot);
    return master;
}

int cluster_replica_of(cluster *c, int master)
{
    char port[32];

    snprintf(port, sizeof port, "master_port:%d", c->node[master].port);
    for (int i = 0; i < CLUSTER_NODES; i++)
        if (i != master && says(c, i, "INFO replication", port) &&
            says(c, i, "INFO replication", "master_link_status:up"))
            return i;
    return -1;
}

static unsigned checksum(const char *text)
{
    unsigned crc = 0;

    for (; *text; text++) {
        crc ^= (unsigned)(unsigned char)*text << 8;
        for (int i = 0; i < 8; i++)
            crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
    }
    return crc;
}

int cluster_slot(const char *name)
{
    char tag[8];

    snprintf(tag, sizeof tag, "%03x", checksum(name) & 0x3ff);
    return (int)(checksum(tag) & 0x3fff);
}

/* ---- Moving a slot --------------------------------------------------------------------------- */

static bool set_slot(cluster *c, int at, int slot, const char *state, const char *id)
{
    char command[256], reply[256];

    snprintf(command, sizeof command, "CLUSTER SETSLOT %d %s %s", slot, state, id);
    return cluster_ask(c, at, command, reply, sizeof reply) == 0 && strstr(reply, "+OK");
}

static bool read_id(cluster *c, int node, char id[64])
{
    char reply[256];

    return cluster_ask(c, node, "CLUSTER MYID", reply, sizeof reply) == 0 &&
           sscanf(reply, "$40\r\n%40s", id) == 1;
}

/* Up to KEYS keys of the slot. How many there were; -1: an error. */
static int move_keys(cluster *c, int slot, int from, int to)
{
    char command[8192], reply[8192], key[1024], *at;
    int n = snprintf(command, sizeof command, "MIGRATE 127.0.0.1 %d \"\" 0 5000%s%s KEYS",
                     c->node[to].port, c->password ? " AUTH " : "", c->password ? c->password : "");
    int count = 0;

    snprintf(key, sizeof key, "CLUSTER GETKEYSINSLOT %d %d", slot, KEYS);
    if (cluster_ask(c, from, key, reply, sizeof reply) < 0 || reply[0] != '*')
        return -1;
    for (at = strchr(reply, '$'); at; at = strchr(at, '$')) {
        if (sscanf(at, "$%*d\r\n%1023s", key) != 1)
            break;
        n += snprintf(command + n, sizeof command - (size_t)n, " %s", key);
        at += 1;
        count++;
    }
    if (count > 0 && (cluster_ask(c, from, command, reply, sizeof reply) < 0 || reply[0] == '-'))
        return -1;
    return count;
}

int cluster_move_slot(cluster *c, int slot, int from, int to)
{
    char giver[64], taker[64];
    int count;

    if (!read_id(c, from, giver) || !read_id(c, to, taker) ||
        !set_slot(c, to, slot, "IMPORTING", giver) || !set_slot(c, from, slot, "MIGRATING", taker))
        return -1;
    while ((count = move_keys(c, slot, from, to)) > 0)
        ;
    if (count < 0 || !set_slot(c, to, slot, "NODE", taker) ||
        !set_slot(c, from, slot, "NODE", taker))
        return -1;
    for (int i = 0; i < CLUSTER_NODES; i++)
        if (i != from && i != to && c->node[i].pid && cluster_is_master(c, i))
            set_slot(c, i, slot, "NODE", taker);
    return 0;
}
