/* zookeeper://[user:password@]host[:port][,host[:port]…][/folder][?session=10s&acl=open] */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include "core/error.h"
#include "core/thread.h"
#include "engines/capabilities.h"
#include "families/entries/cell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SESSION (10 * DIBS__SECOND)
#define DEFAULT_ROOT    "/dibs"

/* ---- The URL --------------------------------------------------------------------------------- */

static dibs_status out_of_memory(dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "zookeeper: out of memory");
}

static dibs_status read_hosts(const dibs__url *url, dibs__zk *z, dibs_error *err)
{
    size_t size = 1, n = 0;

    if (url->host_count == 0 || !url->host[0].name[0])
        return dibs__fail(err, DIBS_INVALID, "zookeeper: no host: write zookeeper://host:port");
    for (size_t i = 0; i < url->host_count; i++)
        size += strlen(url->host[i].name) + 16;
    z->hosts = malloc(size);
    if (!z->hosts)
        return out_of_memory(err);
    for (size_t i = 0; i < url->host_count; i++) {
        bool six = strchr(url->host[i].name, ':') != NULL;
        n += (size_t)snprintf(z->hosts + n, size - n, "%s%s%s%s:%d", i ? "," : "", six ? "[" : "",
                              url->host[i].name, six ? "]" : "",
                              url->host[i].port ? url->host[i].port : DIBS__ZK_PORT);
    }
    return DIBS_OK;
}

static bool is_path(const char *path)
{
    for (const char *at = path; *at;) {
        size_t n = strcspn(at + 1, "/");
        if (*at != '/' || n == 0 || (n == 1 && at[1] == '.') || strncmp(at, "/../", n + 2) == 0)
            return false;
        at += n + 1;
    }
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    return true;
}

static dibs_status read_root(const dibs__url *url, dibs__zk *z, dibs_error *err)
{
    size_t n;

    z->root = strdup(*url->path ? url->path : DEFAULT_ROOT);
    if (!z->root)
        return out_of_memory(err);
    n = strlen(z->root);
    while (n > 0 && z->root[n - 1] == '/')
        z->root[--n] = '\0';
    if (!is_path(z->root))
        return dibs__fail(err, DIBS_INVALID,
                          "zookeeper: invalid path '%.200s': write /folder/folder", z->root);
    return DIBS_OK;
}

static dibs_status read_auth(dibs__url *url, dibs__zk *z, dibs_error *err)
{
    const char *acl = dibs__url_take(url, "acl");

    if (url->user && (!*url->user || !url->password))
        return dibs__fail(err, DIBS_INVALID,
                          "zookeeper: give both user and password: zookeeper://user:password@host");
    if (acl && strcmp(acl, "open") != 0 && strcmp(acl, "creator") != 0)
        return dibs__fail(err, DIBS_INVALID,
                          "zookeeper: acl=%.40s: give acl=open (everybody may use the locks) or "
                          "acl=creator (this user alone)",
                          acl);
    if (acl && strcmp(acl, "creator") == 0 && !url->user)
        return dibs__fail(err, DIBS_INVALID,
                          "zookeeper: acl=creator needs user:password@ in the URL");
    z->acl = url->user && (!acl || strcmp(acl, "creator") == 0) ? &ZOO_CREATOR_ALL_ACL
                                                                : &ZOO_OPEN_ACL_UNSAFE;
    if (url->user && asprintf(&z->auth, "%s:%s", url->user, url->password) < 0) {
        z->auth = NULL;
        return out_of_memory(err);
    }
    return DIBS_OK;
}

dibs_status dibs__zk_read_url(const dibs__open_request *request, dibs__zk *z, dibs_error *err)
{
    dibs__url *url = request->url;
    dibs_status status;

    if (strcmp(url->scheme, "zookeepers") == 0)
        return dibs__fail(
            err, DIBS_UNSUPPORTED,
            "zookeeper: this build's libzookeeper has no TLS: use zookeeper:// through a "
            "tunnel or on a network that you trust");
    status = read_hosts(url, z, err);
    if (status == DIBS_OK)
        status = read_root(url, z, err);
    if (status == DIBS_OK)
        status = read_auth(url, z, err);
    if (status == DIBS_OK)
        status = dibs__entries_take_session(request, &z->asked, err);
    if (status == DIBS_OK)
        status = dibs__url_all_taken(url, "session, acl", err);
    z->exact = z->asked != 0;
    if (z->asked == 0)
        z->asked = DEFAULT_SESSION;
    return status;
}

/* ---- The tables ------------------------------------------------------------------------------ */

static int64_t session_span(const dibs__entries_backend *s)
{
    return ((const dibs__zk *)s)->session_span;
}

static const struct dibs__entries_cells cells = {
    .read = dibs__zk_cells_read,
    .write = dibs__zk_cells_write,
    .join_queue = dibs__zk_cells_join_queue,
    .leave_queue = dibs__zk_cells_leave_queue,
    .walk = dibs__zk_cells_walk,
    .clock = dibs__zk_cells_clock,
    .watch = dibs__zk_cells_watch,
};

static const dibs__entries_adapter adapter = {
    .name = "zookeeper",
    .in_order = true,
    .enter = dibs__zk_enter,
    .list = dibs__zk_list,
    .watch = dibs__zk_watch,
    .remove = dibs__zk_remove,
    .linger = dibs__zk_linger,
    .check = dibs__zk_check,
    .write = dibs__zk_write,
    .names = dibs__zk_names,
    .cells = &cells,
    .alive_until = dibs__zk_alive_until,
    .usable = dibs__zk_usable,
    .session_span = session_span,
    .close = dibs__zk_close,
    .abandon = dibs__zk_abandon,
};

void dibs__zk_free(dibs__zk *z)
{
    if (z->auth)
        explicit_bzero(z->auth, strlen(z->auth));
    free(z->auth);
    free(z->hosts);
    free(z->root);
    for (int i = 0; i < 2; i++)
        dibs__zk_names_free(&z->names[i]);
    dibs__zk_known_free(z);
    dibs__zk_watches_clear(z);
    dibs__table_fini(&z->watches);
    pthread_mutex_destroy(&z->mutex);
    pthread_cond_destroy(&z->cond);
    free(z);
}

dibs__zk *dibs__zk_new(const dibs__env *env)
{
    dibs__zk *z = calloc(1, sizeof *z);

    if (!z)
        return NULL;
    z->backend.adapter = &adapter;
    z->backend.env = env;
    pthread_mutex_init(&z->mutex, NULL);
    dibs__cond_init(&z->cond);
    return z;
}

static dibs_status zookeeper_open(const dibs__open_request *request, dibs__engine **out,
                                  dibs_error *err)
{
    dibs__zk *z = dibs__zk_new(request->env);
    dibs_status status;

    if (!z)
        return out_of_memory(err);
    status = dibs__zk_read_url(request, z, err);
    if (status != DIBS_OK) {
        dibs__zk_free(z);
        return status;
    }
    status = dibs__entries_new(request, &z->backend, out, err);
    if (status != DIBS_OK)
        return status;
    status = dibs__zk_connect(z, request->until, err);
    if (status == DIBS_OK)
        dibs__entries_opened(*out);
    else
        dibs__entries_close(*out);
    return status;
}

extern const dibs__engine_class dibs__engine_zookeeper;
const dibs__engine_class dibs__engine_zookeeper = {
    .scheme = "zookeeper",
    .schemes = (const char *const[]){"zookeeper", "zookeepers", NULL},
    .can = DIBS__ZOOKEEPER_CAN,
    .open = zookeeper_open,
    .close = dibs__entries_close,
    .abandon = dibs__entries_abandon,
    .enter = dibs__entries_enter,
    .keep = dibs__entries_keep,
    .release = dibs__entries_release,
    .cancel = dibs__entries_cancel,
    .break_lock = dibs__entries_break,
    .inspect = dibs__entries_inspect,
    .list = dibs__entries_list,
    .cell = dibs__entries_cell,
    .watch = dibs__entries_watch,
    .unwatch = dibs__entries_unwatch,
    .cell_list = dibs__entries_cell_list,
    .cell_reap = dibs__entries_cell_reap,
    .event_fd = dibs__entries_event_fd,
    .events = dibs__entries_events,
    .examine = dibs__zk_examine,
};
