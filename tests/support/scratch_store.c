#include "support/scratch_store.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- What an engine is given ------------------------------------------------------------------ */

static const char *make_sqlite(scratch_store *p)
{
    char file[400];

    snprintf(p->url, sizeof p->url, "sqlite://%s",
             scratch_file(&p->folder, "dibs.db", file, sizeof file));
    return NULL;
}

static const char *make_memory(scratch_store *p)
{
    snprintf(p->url, sizeof p->url, "memory:store");
    return NULL;
}

static const char *make_redis(scratch_store *p)
{
    return server_available() && server_start(&p->redis, NULL) == 0 ? NULL : "no redis-server";
}

/* The sentinel only tells where the master is: a server that a case stops is not to be replaced. */
static const char *make_sentinel(scratch_store *p)
{
    static const char patient[] = "sentinel down-after-milliseconds store 3600000\n";
    const char *const plain[] = {"--repl-diskless-sync-delay", "0", NULL};
    char port[16];

    if (!server_available() || server_start(&p->redis, plain) < 0)
        return "no redis-server";
    snprintf(port, sizeof port, "%d", p->redis.port);
    const char *const follows[] = {"--replicaof", "127.0.0.1", port, NULL};
    return server_start(&p->replica, follows) == 0 &&
                   sentinel_start(&p->sentinel, "store", p->redis.port, 1, patient) == 0
               ? NULL
               : "no Sentinel";
}

/* Patient, for the same reason. */
static const char *make_cluster(scratch_store *p)
{
    return server_available() && cluster_start(&p->cluster, 3600000, NULL) == 0
               ? NULL
               : "no Redis Cluster";
}

static const char *make_redlock(scratch_store *p)
{
    for (int i = 0; i < p->nodes; i++)
        if (!server_available() || server_start(&p->node[i], NULL) < 0)
            return "no redis-server";
    return NULL;
}

/* Not the database that handles sleep in (engines/postgresql/wake.c). */
static const char *make_postgresql(scratch_store *p)
{
    return database_available(DATABASE_POSTGRESQL) &&
                   database_start(&p->database, DATABASE_POSTGRESQL, NULL) == 0 &&
                   database_make(&p->database, "place") == 0
               ? NULL
               : "no PostgreSQL";
}

/* A new MariaDB server has no database of a user's: it makes one when it starts. */
static bool write_init(scratch_store *p, char *path, size_t size)
{
    FILE *f = fopen(scratch_file(&p->folder, "init.sql", path, size), "w");
    bool written = f && fputs("CREATE DATABASE IF NOT EXISTS store;\n", f) >= 0;

    return f && fclose(f) == 0 && written && chmod(p->folder.path, 0755) == 0 &&
           chmod(path, 0644) == 0;
}

static const char *make_mysql(scratch_store *p)
{
    char option[512] = "--init-file=";
    size_t used = strlen(option);
    const char *const extra[] = {option, NULL};

    return write_init(p, option + used, sizeof option - used) &&
                   database_available(DATABASE_MARIADB) &&
                   database_start(&p->database, DATABASE_MARIADB, extra) == 0
               ? NULL
               : "no MariaDB";
}

static const char *make_zookeeper(scratch_store *p)
{
    return ensemble_available(ENSEMBLE_ZOOKEEPER) &&
                   ensemble_start(&p->ensemble, ENSEMBLE_ZOOKEEPER, p->nodes, NULL) == 0
               ? NULL
               : "no ZooKeeper";
}

static const char *make_etcd(scratch_store *p)
{
    return ensemble_available(ENSEMBLE_ETCD) &&
                   ensemble_start(&p->ensemble, ENSEMBLE_ETCD, p->nodes, NULL) == 0
               ? NULL
               : "no etcd";
}

/* `before` and `after`: of the URL, around the hosts. NULL: `make` has set the URL. */
static const struct {
    const char *name;
    const char *(*make)(scratch_store *p);
    const char *before, *after;
    int nodes;
} makers[] = {
    {"memory", make_memory, NULL, NULL, 1},
    {"sqlite", make_sqlite, NULL, NULL, 1},
    {"redis", make_redis, "redis://", "", 1},
    {"sentinel", make_sentinel, "redis+sentinel://", "/store?wait=1&max_lease=86400000", 1},
    {"cluster", make_cluster, "redis+cluster://", "?wait=1&max_lease=86400000", 1},
    {"redlock", make_redlock, "redlock://", "", REDLOCK_NODES},
    {"postgresql", make_postgresql, "postgresql://postgres@", "/place", 1},
    {"mysql", make_mysql, "mysql://root@", "/store", 1},
    {"zookeeper", make_zookeeper, "zookeeper://", "/store?session=", 1},
    {"etcd", make_etcd, "etcd://", "/store?session=", 1},
};
#define MAKERS (int)(sizeof makers / sizeof makers[0])

static int maker_of(const scratch_store *p)
{
    int i = 0;

    while (i < MAKERS && strcmp(makers[i].name, p->name) != 0)
        i++;
    return i;
}

/* ---- URLs ------------------------------------------------------------------------------------- */

int scratch_store_ports(const scratch_store *p, int ports[REDLOCK_NODES])
{
    int n = 0;

    if (p->sentinel.pid)
        ports[n++] = p->sentinel.port;
    else if (p->redis.pid)
        ports[n++] = p->redis.port;
    for (int i = 0; i < REDLOCK_NODES; i++)
        if (p->node[i].pid)
            ports[n++] = p->node[i].port;
    for (int i = 0; i < CLUSTER_MASTERS; i++)
        if (p->cluster.node[i].pid)
            ports[n++] = p->cluster.node[i].port;
    if (p->database.pid)
        ports[n++] = p->database.port;
    for (int i = 0; i < ENSEMBLE_MAX; i++)
        if (p->ensemble.node[i].pid)
            ports[n++] = p->ensemble.node[i].port;
    return n;
}

void scratch_store_url(const scratch_store *p, const int ports[], char *out, size_t size)
{
    int mine[REDLOCK_NODES], count = scratch_store_ports(p, mine), m = maker_of(p);
    size_t used;

    if (count == 0) {
        snprintf(out, size, "%s", p->url);
        return;
    }
    used = (size_t)snprintf(out, size, "%s", makers[m].before);
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(out + used, size - used, "%s127.0.0.1:%d", i ? "," : "", ports[i]);
    used += (size_t)snprintf(out + used, size - used, "%s", makers[m].after);
    if (used > 0 && out[used - 1] == '=')
        snprintf(out + used, size - used, "%dms", p->session_ms);
}

/* New Redlock nodes vote, and a new guarded server grants, only after somebody has vouched for them. */
static const char *vouch(const scratch_store *p)
{
    char vouched[sizeof p->url + 32];
    dibs *d = NULL;
    dibs_status status;

    snprintf(vouched, sizeof vouched, "%s%s", p->url,
             p->node[0].pid ? "?guard=off&max_lease=10" : "&guard=vouch");
    status = dibs_open(vouched, NULL, &d, NULL);
    dibs_close(d);
    return status == DIBS_OK ? NULL : "the nodes do not answer";
}

/* ---- The store -------------------------------------------------------------------------------- */

static const char *find_engine(scratch_store *p, const char *name)
{
    size_t length = strcspn(name, "3");
    const dibs_engine_info *e;

    snprintf(p->name, sizeof p->name, "%.*s", (int)length, name);
    strcpy(p->engine,
           strcmp(p->name, "sentinel") == 0 || strcmp(p->name, "cluster") == 0 ? "redis" : p->name);
    for (size_t i = 0; (e = dibs_engine_at(i)) && strcmp(e->scheme, p->engine) != 0;)
        i++;
    if (!e)
        return "no such engine";
    p->can = *e;
    if (p->can.missing)
        return "this build is without that engine";
    if (maker_of(p) == MAKERS)
        return "it has no store here";
    p->nodes = name[length] ? 3 : makers[maker_of(p)].nodes;
    return NULL;
}

const char *scratch_store_make(scratch_store *p, const char *name, int session_ms)
{
    int ports[REDLOCK_NODES];
    const char *why;

    memset(p, 0, sizeof *p);
    p->session_ms = session_ms;
    why = find_engine(p, name);
    if (why)
        return why;
    if (scratch_make(&p->folder) < 0)
        return "no scratch folder";
    why = makers[maker_of(p)].make(p);
    if (why)
        return why;
    if (scratch_store_ports(p, ports) > 0)
        scratch_store_url(p, ports, p->url, sizeof p->url);
    return p->node[0].pid || p->sentinel.pid || p->cluster.node[0].pid ? vouch(p) : NULL;
}

bool scratch_store_for_main(scratch_store *p, const char *name, int session_ms, int *code)
{
    const char *why = scratch_store_make(p, name, session_ms);

    *code = why && server_required();
    if (*code)
        printf("1..1\n# %s: %s, and it is required here\nnot ok 1 - %s\n", name, why, name);
    else if (why)
        printf("1..0 # SKIP %s: %s\n", name, why);
    return !why;
}

void scratch_store_remove(scratch_store *p)
{
    server_stop(&p->redis);
    server_stop(&p->replica);
    server_stop(&p->sentinel);
    cluster_stop(&p->cluster);
    for (int i = 0; i < REDLOCK_NODES; i++)
        server_stop(&p->node[i]);
    database_stop(&p->database);
    ensemble_stop(&p->ensemble);
    scratch_remove(&p->folder);
}
