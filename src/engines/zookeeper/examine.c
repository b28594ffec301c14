/* Facts about a ZooKeeper ensemble: the session that it grants, who is in it (/zookeeper/config), the
 * rights below the folder, and what each server of the URL says to `srvr`. Rights are tried out by a multi
 * whose last part fails, so that nothing is made. The checks are in src/doctor/zookeeper.c. */
#define _GNU_SOURCE
#define THREADED /* the library then declares its calls that wait */
#include "core/error.h"
#include "core/thread.h"
#include "doctor/facts.h"
#include "engines/zookeeper/zookeeper.h"
#include "net/dial.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG       "/zookeeper/config"
#define CONFIG_ROOM  16384
#define NO_VERSION   2000000000 /* no node has been written so often */
#define SERVER_SHARE (2 * DIBS__SECOND)

/* ---- The session ----------------------------------------------------------------------------- */

static void ignore_log(const char *message)
{
    (void)message;
}

static void on_session(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    dibs__zk *z = context;

    (void)path;
    if (type != ZOO_SESSION_EVENT)
        return;
    pthread_mutex_lock(&z->mutex);
    z->connected = state == ZOO_CONNECTED_STATE;
    if (z->connected)
        z->granted = (int64_t)zoo_recv_timeout(zh) * DIBS__MS;
    pthread_cond_broadcast(&z->cond);
    pthread_mutex_unlock(&z->mutex);
}

static dibs_status open_session(dibs__zk *z, dibs__deadline until, dibs_error *err)
{
    const dibs__env *env = z->backend.env;
    bool connected;

    z->zh =
        zookeeper_init2(z->hosts, on_session, (int)(z->asked / DIBS__MS), NULL, z, 0, ignore_log);
    if (!z->zh)
        return dibs__fail(err, DIBS_UNAVAILABLE, "zookeeper: %s: cannot begin to connect",
                          z->hosts);
    if (z->auth)
        zoo_add_auth(z->zh, "digest", z->auth, (int)strlen(z->auth), NULL, NULL);
    pthread_mutex_lock(&z->mutex);
    while (!z->connected && dibs__now(env) < until)
        dibs__cond_sleep(&z->cond, &z->mutex, env,
                         dibs__sooner(until, dibs__now(env) + 200 * DIBS__MS));
    connected = z->connected;
    pthread_mutex_unlock(&z->mutex);
    if (!connected)
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "zookeeper: no server answered at %s: is it running, and does "
                          "it have a quorum?",
                          z->hosts);
    return DIBS_OK;
}

static void add_session(dibs__facts *f, const dibs__zk *z)
{
    dibs__fact_number(f, "lease_ms", z->granted / DIBS__MS);
    dibs__fact_number(f, "session_asked", z->asked / DIBS__MS);
    dibs__fact_number(f, "session_granted", z->granted / DIBS__MS);
    dibs__fact_flag(f, "session_differs", z->granted != z->asked);
    dibs__fact_flag(f, "session_exact", z->exact);
}

/* ---- The ensemble ---------------------------------------------------------------------------- */

static size_t count_lines(const char *text, const char *begins, const char *has)
{
    size_t n = 0;

    for (const char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : NULL) {
        size_t length = strcspn(at, "\n");
        if (strncmp(at, begins, strlen(begins)) == 0 && memmem(at, length, has, strlen(has)))
            n++;
    }
    return n;
}

/* A server that stands alone has no list. */
static void read_config(dibs__facts *f, const dibs__zk *z, size_t named)
{
    char *text = calloc(1, CONFIG_ROOM);
    int size = CONFIG_ROOM - 1, rc = text ? zoo_get(z->zh, CONFIG, 0, text, &size, NULL) : ZOK;
    size_t voters = text ? count_lines(text, "server.", ":participant") : 0;

    if (rc != ZOK)
        dibs__fact_unseen(f, "servers", CONFIG " cannot be read: %s", zerror(rc));
    else if (voters > 0) {
        dibs__fact_number(f, "servers", (int64_t)voters);
        dibs__fact_flag(f, "even", voters % 2 == 0);
        dibs__fact_number(f, "observers", (int64_t)count_lines(text, "server.", ":observer"));
        dibs__fact_number(f, "named", (int64_t)named);
        dibs__fact_flag(f, "unnamed", named < voters);
    }
    free(text);
}

/* ---- Rights ---------------------------------------------------------------------------------- */

static bool is_open(const struct ACL_vector *acl)
{
    for (int i = 0; i < acl->count; i++)
        if (strcmp(acl->data[i].id.scheme, "world") == 0 &&
            (acl->data[i].perms & (ZOO_PERM_WRITE | ZOO_PERM_DELETE | ZOO_PERM_CREATE)))
            return true;
    return false;
}

/* The folder, or what would have to be above it. */
static void find_parent(const dibs__zk *z, char *path, size_t size)
{
    snprintf(path, size, "%s", z->root);
    while (path[0] && zoo_exists(z->zh, path, 0, NULL) == ZNONODE)
        *strrchr(path, '/') = '\0';
}

static void try_rights(dibs__facts *f, const dibs__zk *z)
{
    char path[1024], scratch[1100];
    zoo_op_t ops[2];
    zoo_op_result_t results[2] = {{0}};
    struct ACL_vector acl = {0};
    struct Stat stat;
    int rc;

    find_parent(z, path, sizeof path);
    snprintf(scratch, sizeof scratch, "%s/%%doctor", path);
    dibs__fact_add(f, "root", "%s", z->root[0] ? z->root : "/");
    if (zoo_get_acl(z->zh, path[0] ? path : "/", &acl, &stat) == ZOK) {
        dibs__fact_flag(f, "acl_open", is_open(&acl) && strcmp(path, z->root) == 0);
        deallocate_ACL_vector(&acl);
    }
    zoo_create_op_init(&ops[0], scratch, NULL, -1, z->acl, ZOO_EPHEMERAL, NULL, 0);
    zoo_check_op_init(&ops[1], "/", NO_VERSION);
    rc = zoo_multi(z->zh, 2, ops, results);
    dibs__fact_flag(f, "may_create", rc != ZNOAUTH && results[0].err != ZNOAUTH);
}

static bool prove(void *ctx)
{
    dibs__zk *z = ctx;
    zoo_op_t op;
    zoo_op_result_t result = {0};

    zoo_check_op_init(&op, "/", -1);
    return zoo_multi(z->zh, 1, &op, &result) == ZOK;
}

/* ---- Each server ----------------------------------------------------------------------------- */

/* What it answers to `srvr`; the connection is over then. */
static dibs_status ask_srvr(const dibs__env *env, const char *host, int port, dibs__deadline until,
                            char *out, size_t size, dibs_error *err)
{
    int fd = -1;
    size_t n = 0;
    dibs_status status = dibs__dial(env, host, port, -1, until, &fd, err);

    if (status != DIBS_OK)
        return status;
    if (write(fd, "srvr", 4) == 4)
        while (n + 1 < size) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            ssize_t got;
            if (poll(&p, 1, dibs__poll_ms(env, until)) <= 0)
                break;
            got = read(fd, out + n, size - 1 - n);
            if (got <= 0)
                break;
            n += (size_t)got;
        }
    out[n] = '\0';
    close(fd);
    return DIBS_OK;
}

static void add_line(dibs__facts *f, const char *fact, const char *text, const char *begins)
{
    const char *at = strstr(text, begins);

    if (at)
        dibs__fact_add(f, fact, "%.*s", (int)strcspn(at + strlen(begins), "\n,-"),
                       at + strlen(begins));
}

static void look_at_server(const dibs__env *env, const char *host, int port, dibs__facts *f)
{
    char text[4096] = "";
    dibs_error why = {0};
    int major = 0, minor = 0;

    if (ask_srvr(env, host, port, dibs__after(env, SERVER_SHARE), text, sizeof text, &why) !=
        DIBS_OK) {
        dibs__fact_add(f, "down", "%s", why.message);
        return;
    }
    dibs__fact_flag(f, "serving", !strstr(text, "not currently serving"));
    add_line(f, "version", text, "Zookeeper version: ");
    add_line(f, "mode", text, "Mode: ");
    if (!dibs__fact_find(f, "mode") && !strstr(text, "not currently serving"))
        dibs__fact_unseen(f, "mode",
                          "the server does not answer srvr: add it to 4lw.commands.whitelist");
    if (sscanf(dibs__fact_text(f, "version", ""), "%d.%d", &major, &minor) == 2)
        dibs__fact_number(f, "version_number", major * 100 + minor);
}

static void look_at_servers(const dibs__open_request *request, dibs__facts *out)
{
    int64_t alone = 0;

    for (size_t i = 0; i < request->url->host_count; i++) {
        const dibs__url_host *host = &request->url->host[i];
        int port = host->port ? host->port : DIBS__ZK_PORT;
        dibs__facts *f =
            dibs__facts_part(out, "zookeeper server", "server %s:%d", host->name, port);
        look_at_server(request->env, host->name, port, f);
        alone += strcmp(dibs__fact_text(f, "mode", ""), "standalone") == 0;
    }
    dibs__fact_number(out, "alone", alone);
}

/* ---- All of it ------------------------------------------------------------------------------- */

dibs_status dibs__zk_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err)
{
    dibs__zk *z = dibs__zk_new(request->env);
    dibs_status status;

    if (!z)
        return dibs__fail(err, DIBS_NO_MEMORY, "zookeeper: out of memory");
    status = dibs__zk_read_url(request, z, err);
    if (status == DIBS_OK)
        status = open_session(z, request->until, err);
    if (status == DIBS_OK) {
        add_session(out, z);
        read_config(out, z, request->url->host_count);
        try_rights(out, z);
        dibs__facts_measure(out, request->env, dibs__after(request->env, DIBS__SECOND), prove, z);
        look_at_servers(request, out);
    }
    if (z->zh)
        zookeeper_close(z->zh);
    dibs__zk_free(z);
    return status;
}
