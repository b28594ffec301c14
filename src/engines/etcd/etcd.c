/* The etcd engine: its table, its URL, its beginning and end.
 *
 *   etcd://[user:password@]host[:port][,host[:port]…][/prefix][?session=10s]
 *   etcds:// the same with TLS (ca=, cert=, key=)
 *
 * Everything but talking to etcd is the queue's (families/entries). */
#define _GNU_SOURCE
#include "engines/etcd/etcd.h"

#include "core/error.h"
#include "core/thread.h"
#include "engines/capabilities.h"
#include "families/entries/cell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SESSION (10 * DIBS__SECOND)

extern const dibs__engine_class dibs__engine_etcd;

/* ---- The URL --------------------------------------------------------------------------------- */

static bool copy(char **out, const char *text)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

static dibs_status no_memory(dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "etcd: out of memory or descriptors");
}

static dibs_status read_hosts(const dibs__url *url, dibs__etcd_address *address, dibs_error *err)
{
    size_t count = url->host_count ? url->host_count : 1;

    if (!url->authority && url->path[0])
        return dibs__fail(err, DIBS_INVALID, "etcd: write etcd://host:port/prefix");
    for (size_t i = 0; i < count; i++) {
        bool given = i < url->host_count && url->host[i].name[0];
        if (url->host_count > 1 && !given)
            return dibs__fail(err, DIBS_INVALID,
                              "an empty host in the URL: write etcd://host1:port,host2:port");
        if (!copy(&address->host[i].name, given ? url->host[i].name : "127.0.0.1"))
            return no_memory(err);
        address->host[i].port =
            i < url->host_count && url->host[i].port ? url->host[i].port : DIBS__ETCD_PORT;
        address->count = i + 1;
    }
    return DIBS_OK;
}

static dibs_status read_credentials(const dibs__url *url, dibs__etcd_address *address,
                                    dibs_error *err)
{
    bool user = url->user && *url->user;

    if (user != (url->password && *url->password))
        return dibs__fail(err, DIBS_INVALID,
                          "the URL needs user and password, or neither: write user:password@host");
    if (user && (!copy(&address->user, url->user) || !copy(&address->password, url->password)))
        return no_memory(err);
    return DIBS_OK;
}

/* The path, without the slash that it begins with: "/" alone and none are the default. */
static dibs_status read_prefix(const dibs__url *url, dibs__etcd *e, dibs__etcd_address *address,
                               dibs_error *err)
{
    const char *path = url->path[0] == '/' ? url->path + 1 : url->path;
    size_t n = strlen(path);

    if (n == 0)
        path = "dibs";
    n = strlen(path);
    if (n > DIBS__ETCD_PREFIX_MAX || path[n - 1] == '/')
        return dibs__fail(err, DIBS_INVALID,
                          "the prefix in the URL's path: give 1 to %d bytes that do not end with "
                          "a slash",
                          DIBS__ETCD_PREFIX_MAX);
    memcpy(e->prefix, path, n + 1);
    if (asprintf(&address->probe, "%s/", path) < 0) {
        address->probe = NULL;
        return no_memory(err);
    }
    return DIBS_OK;
}

static dibs_status read_session(const dibs__open_request *request, dibs__etcd *e, dibs_error *err)
{
    dibs_status status = dibs__entries_take_session(request, &e->ttl, err);

    if (status == DIBS_OK && (e->ttl < DIBS__SECOND || e->ttl % DIBS__SECOND != 0))
        return dibs__fail(err, DIBS_INVALID,
                          "etcd counts a session in whole seconds: give 1 s or more, like "
                          "?session=10s (or --lease 10s)");
    return status;
}

static dibs_status read_tls(dibs__url *url, dibs__etcd_address *address, dibs_error *err)
{
    const char *ca = dibs__url_take(url, "ca");
    const char *cert = dibs__url_take(url, "cert");
    const char *key = dibs__url_take(url, "key");
    dibs_status status = dibs__tls_context_new(ca, cert, key, &address->tls, err);

    if (status == DIBS_OK && !dibs__tls_context_speak(address->tls, "h2"))
        return no_memory(err);
    return status;
}

dibs_status dibs__etcd_read_url(const dibs__open_request *request, dibs__etcd *e,
                                dibs__etcd_address *address, dibs_error *err)
{
    dibs__url *url = request->url;
    bool tls = strcmp(url->scheme, "etcds") == 0;
    dibs_status status = read_hosts(url, address, err);

    e->ttl = DEFAULT_SESSION;
    if (status == DIBS_OK)
        status = read_credentials(url, address, err);
    if (status == DIBS_OK)
        status = read_prefix(url, e, address, err);
    if (status == DIBS_OK)
        status = read_session(request, e, err);
    if (status == DIBS_OK && tls)
        status = read_tls(url, address, err);
    if (status == DIBS_OK)
        status = dibs__url_all_taken(url, tls ? "session, ca, cert, key" : "session", err);
    return status;
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static void free_side(dibs__etcd *e)
{
    dibs__etcd_client_free(e->client);
    if (e->client)
        dibs__etcd_on_lease_renewed(e, false); /* nobody waits for that any more */
    dibs__etcd_watched_fini(e);
    dibs__etcd_lingering_fini(e);
    dibs__etcd_slots_fini(e);
    dibs__table_fini(&e->awaited);
    pthread_cond_destroy(&e->stands);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static void etcd_close(dibs__entries_backend *s)
{
    dibs__etcd *e = (dibs__etcd *)s;

    if (e->client)
        dibs__etcd_session_end(e);
    free_side(e);
}

static void etcd_abandon(dibs__entries_backend *s)
{
    dibs__etcd_client_abandon(((dibs__etcd *)s)->client);
}

static dibs__deadline etcd_alive_until(dibs__entries_backend *s)
{
    return dibs__etcd_lease_until(((dibs__etcd *)s)->client);
}

static int64_t etcd_usable(const dibs__entries_backend *s)
{
    return ((const dibs__etcd *)s)->ttl * 3 / 5;
}

static int64_t etcd_session_span(const dibs__entries_backend *s)
{
    return ((const dibs__etcd *)s)->ttl;
}

static const struct dibs__entries_cells cells = {
    .read = dibs__etcd_cells_read,
    .write = dibs__etcd_cells_write,
    .join_queue = dibs__etcd_cells_join_queue,
    .leave_queue = dibs__etcd_cells_leave_queue,
    .walk = dibs__etcd_cells_walk,
    .watch = dibs__etcd_cells_watch,
    .unwatch = dibs__etcd_cells_unwatch,
};

static const dibs__entries_adapter adapter = {
    .name = "etcd",
    .enter = dibs__etcd_enter,
    .list = dibs__etcd_list,
    .watch = dibs__etcd_watch_entry,
    .remove = dibs__etcd_remove,
    .linger = dibs__etcd_linger,
    .check = dibs__etcd_check,
    .write = dibs__etcd_write,
    .names = dibs__etcd_names,
    .cells = &cells,
    .alive_until = etcd_alive_until,
    .usable = etcd_usable,
    .session_span = etcd_session_span,
    .close = etcd_close,
    .abandon = etcd_abandon,
};

static dibs_status connect_side(dibs__etcd *e, const dibs__open_request *request,
                                dibs__etcd_address *address, dibs_error *err)
{
    dibs__etcd_events events = {.watched = dibs__etcd_on_watched,
                                .lease_over = dibs__etcd_on_lease_over,
                                .lease_renewed = dibs__etcd_on_lease_renewed,
                                .alarm = dibs__etcd_on_alarm,
                                .ctx = e};
    dibs_status status;

    e->client = dibs__etcd_client_new(request->env, request->sink, address, &events);
    if (!e->client)
        return no_memory(err);
    status = dibs__etcd_client_open(e->client, request->until, err);
    if (status == DIBS_OK)
        status = dibs__etcd_session_open(e, request->until, err);
    return status;
}

static dibs__etcd *new_side(const dibs__open_request *request)
{
    dibs__etcd *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->backend.adapter = &adapter;
    e->backend.env = e->env = request->env;
    e->request_span = request->request_span;
    pthread_mutex_init(&e->lock, NULL);
    dibs__cond_init(&e->stands);
    return e;
}

static dibs_status etcd_open(const dibs__open_request *request, dibs__engine **out, dibs_error *err)
{
    dibs__etcd *e = new_side(request);
    dibs__etcd_address address = {0};
    dibs__engine *engine = NULL;
    dibs_status status;

    if (!e)
        return no_memory(err);
    status = dibs__etcd_read_url(request, e, &address, err);
    if (status != DIBS_OK) {
        dibs__etcd_address_fini(&address);
        free_side(e);
        return status;
    }
    status = dibs__entries_new(request, &e->backend, &engine, err);
    if (status != DIBS_OK) {
        dibs__etcd_address_fini(&address);
        return status;
    }
    status = connect_side(e, request, &address, err);
    if (status != DIBS_OK) {
        dibs__entries_close(engine);
        return status;
    }
    dibs__entries_opened(engine);
    *out = engine;
    return DIBS_OK;
}

static const char *const schemes[] = {"etcd", "etcds", NULL};

const dibs__engine_class dibs__engine_etcd = {
    .scheme = "etcd",
    .schemes = schemes,
    .can = DIBS__ETCD_CAN,
    .open = etcd_open,
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
    .examine = dibs__etcd_examine,
};
