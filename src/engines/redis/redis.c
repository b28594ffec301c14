/* The Redis engine: its table, its URL, its beginning and end.
 *
 *   redis://[[user]:password@]host[:port][/db]     rediss:// the same with TLS (ca=, cert=, key=)
 *   redis+unix://[[user]:password@]/path/to.sock[?db=N]
 *
 * and prefix= for the keys, which begin with "dibs" otherwise. */
#define _GNU_SOURCE
#include "engines/redis/redis.h"

#include "core/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define DEFAULT_PORT 6379

extern const dibs__engine_class dibs__engine_redis;

/* ---- The URL --------------------------------------------------------------------------------- */

static bool copy(char **out, const char *text)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

static dibs_status read_db(const char *text, int64_t *out, dibs_error *err)
{
    char *end;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || n > INT32_MAX)
        return dibs__fail(err, DIBS_INVALID,
                          "bad database '%.40s' in the URL: write redis://host/0", text);
    *out = n;
    return DIBS_OK;
}

static dibs_status read_credentials(const dibs__url *url, dibs__redis_place *place, dibs_error *err)
{
    const char *user = url->user && *url->user ? url->user : NULL;

    if (user && !url->password)
        return dibs__fail(err, DIBS_INVALID,
                          "a user without a password in the URL: write user:password@host");
    if (!copy(&place->user, user) || !copy(&place->password, url->password))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    return DIBS_OK;
}

static dibs_status read_socket(dibs__url *url, dibs__redis_place *place, dibs_error *err)
{
    struct sockaddr_un address;

    if (url->path[0] != '/' || (url->host_count > 0 && url->host[0].name[0]))
        return dibs__fail(err, DIBS_INVALID,
                          "redis+unix needs the path of a socket: redis+unix:///path/to.sock");
    if (strlen(url->path) >= sizeof address.sun_path)
        return dibs__fail(err, DIBS_INVALID, "the socket's path is longer than %zu bytes",
                          sizeof address.sun_path - 1);
    if (!copy(&place->socket, url->path))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    snprintf(place->text, sizeof place->text, "redis at %.200s", url->path);
    return dibs__url_take_number(url, "db", 0, INT32_MAX, &place->db, err);
}

static dibs_status read_tls(dibs__url *url, dibs__redis_place *place, dibs_error *err)
{
    const char *ca = dibs__url_take(url, "ca");
    const char *cert = dibs__url_take(url, "cert");
    const char *key = dibs__url_take(url, "key");

    return dibs__tls_context_new(ca, cert, key, &place->tls, err);
}

static dibs_status read_host(dibs__url *url, dibs__redis_place *place, dibs_error *err)
{
    const char *host;

    if (url->host_count != 1)
        return dibs__fail(err, DIBS_INVALID, "redis:// takes one host: write redis://host:port");
    host = url->host[0].name[0] ? url->host[0].name : "127.0.0.1";
    if (!copy(&place->host, host))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    place->port = url->host[0].port ? url->host[0].port : DEFAULT_PORT;
    snprintf(place->text, sizeof place->text, "redis at %.200s:%d", host, place->port);
    if (url->path[0] && strcmp(url->path, "/") != 0)
        return read_db(url->path + 1, &place->db, err);
    return DIBS_OK;
}

static dibs_status read_prefix(dibs__url *url, dibs__redis *r, dibs_error *err)
{
    const char *prefix = dibs__url_take(url, "prefix");

    prefix = prefix ? prefix : "dibs";
    if (!*prefix || strlen(prefix) > DIBS__REDIS_PREFIX_MAX || strpbrk(prefix, "{}"))
        return dibs__fail(err, DIBS_INVALID,
                          "prefix= in the URL: give 1 to %d bytes without braces",
                          DIBS__REDIS_PREFIX_MAX);
    strcpy(r->prefix, prefix);
    return DIBS_OK;
}

static dibs_status read_url(dibs__url *url, dibs__redis *r, dibs_error *err)
{
    bool socket = strcmp(url->scheme, "redis+unix") == 0;
    bool tls = strcmp(url->scheme, "rediss") == 0;
    dibs_status status = read_credentials(url, &r->place, err);

    if (status == DIBS_OK)
        status = socket ? read_socket(url, &r->place, err) : read_host(url, &r->place, err);
    if (status == DIBS_OK)
        status = read_prefix(url, r, err);
    if (status == DIBS_OK && tls)
        status = read_tls(url, &r->place, err);
    if (status == DIBS_OK)
        status = dibs__url_all_taken(url,
                                     socket ? "prefix, db"
                                     : tls  ? "prefix, ca, cert, key"
                                            : "prefix",
                                     err);
    return status;
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static void forget(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

static void redis_close(dibs__engine *e)
{
    dibs__redis *r = (dibs__redis *)e;

    dibs__pipeline_free(r->pipeline);
    dibs__seats_fini(&r->seats);
    dibs__events_free(r->events);
    dibs__scripts_fini(&r->scripts);
    dibs__tls_context_free(r->place.tls);
    free(r->place.host);
    free(r->place.socket);
    free(r->place.user);
    forget(r->place.password);
    free(r);
}

static void redis_abandon(dibs__engine *e)
{
    dibs__redis *r = (dibs__redis *)e;

    dibs__pipeline_abandon(r->pipeline);
    dibs__seats_abandon(&r->seats);
    dibs__events_abandon(r->events);
}

static dibs_status redis_open(const dibs__open_request *request, dibs__engine **out,
                              dibs_error *err)
{
    dibs__redis *r = calloc(1, sizeof *r);
    dibs_status status;

    if (!r)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    r->base =
        (dibs__engine){.class = &dibs__engine_redis, .env = request->env, .sink = request->sink};
    r->place.env = request->env;
    dibs__seats_init(&r->seats, request->env);
    status = read_url(request->url, r, err);
    if (status == DIBS_OK) {
        snprintf(r->channel, sizeof r->channel, "%s:wake:%s", r->prefix, request->handle_id);
        r->pipeline = dibs__pipeline_new(request->env, dibs__redis_connect_main, r);
        r->events = dibs__events_new();
        if (!dibs__scripts_init(&r->scripts) || !r->pipeline || !r->events)
            status = dibs__fail(err, DIBS_NO_MEMORY, "redis: out of memory or descriptors");
    }
    if (status == DIBS_OK)
        status = dibs__pipeline_open(r->pipeline, request->until, err);
    if (status != DIBS_OK)
        redis_close(&r->base);
    else
        *out = &r->base;
    return status;
}

static const char *const schemes[] = {"redis", "rediss", "redis+unix", NULL};

const dibs__engine_class dibs__engine_redis = {
    .scheme = "redis",
    .schemes = schemes,
    .can = {.across_processes = true, .first_come = true},
    .open = redis_open,
    .close = redis_close,
    .abandon = redis_abandon,
    .enter = dibs__redis_enter,
    .wait = dibs__redis_wait,
    .poke = dibs__redis_poke,
    .keep = dibs__redis_keep,
    .release = dibs__redis_release,
    .cancel = dibs__redis_cancel,
    .break_lock = dibs__redis_break,
    .inspect = dibs__redis_inspect,
    .list = dibs__redis_list,
    .event_fd = dibs__redis_event_fd,
    .events = dibs__redis_events,
};
