/* See the header. Entries of the list are never taken out of it while the handle lives, so that one may be dialled without
 * the lock. */
#define _GNU_SOURCE
#include "engines/redis/sentinel.h"

#include "core/error.h"
#include "engines/redis/address.h"
#include "engines/redis/error.h"
#include "engines/redis/handshake.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SENTINEL_PORT 26379
#define SERVICE_SIZE  256
#define ASK_SPAN      (500 * DIBS__MS) /* one that is silent does not eat all of the time */
#define RETRY_SPAN    (100 * DIBS__MS) /* the keeper has other things to do */
#define RETRY_FIRST   (100 * DIBS__MS)
#define RETRY_LAST    (5 * DIBS__SECOND)

typedef struct address {
    char host[256];
    int port;
} address;

struct dibs__sentinels {
    const dibs__env *env;
    char service[SERVICE_SIZE];
    char *user, *password;
    dibs__tls_context *tls; /* NULL: plain */
    pthread_mutex_t lock;
    dibs__redis_address *list[DIBS__HOSTS_MAX];
    size_t count, good; /* `good` answered last */
    address master;     /* that was last heard of */
    atomic_uint changes;
    /* Of the keeper alone. */
    int epoll_fd, timer_fd;
    dibs__conn *subscription;
    int64_t pause;
};

/* ---- The list -------------------------------------------------------------------------------- */

static bool is_listed(const dibs__sentinels *s, const char *host, int port)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i]->port == port && strcmp(s->list[i]->host, host) == 0)
            return true;
    return false;
}

static bool copy(char **out, const char *text)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

/* With the lock, or while nobody else knows it. False: out of memory. */
static bool add(dibs__sentinels *s, const char *host, int port)
{
    dibs__redis_address *p;

    if (s->count == DIBS__HOSTS_MAX || is_listed(s, host, port))
        return true;
    p = calloc(1, sizeof *p);
    if (!p)
        return false;
    p->env = s->env;
    p->port = port;
    p->tls = s->tls;
    snprintf(p->text, sizeof p->text, "sentinel at %.200s:%d", host, port);
    if (!copy(&p->host, host) || !copy(&p->user, s->user) || !copy(&p->password, s->password)) {
        dibs__address_fini(p);
        free(p);
        return false;
    }
    s->list[s->count++] = p;
    return true;
}

/* ---- The URL --------------------------------------------------------------------------------- */

static dibs_status read_service(dibs__url *url, dibs__sentinels *s, dibs__redis_address *place,
                                dibs_error *err)
{
    const char *name = url->path[0] == '/' ? url->path + 1 : "";
    const char *slash = strchrnul(name, '/');

    if (slash == name || (size_t)(slash - name) >= sizeof s->service)
        return dibs__fail(err, DIBS_INVALID,
                          "redis+sentinel needs the name of the service: "
                          "redis+sentinel://s1,s2,s3/SERVICE");
    memcpy(s->service, name, (size_t)(slash - name));
    snprintf(place->text, sizeof place->text, "redis service %.200s", s->service);
    return slash[0] && slash[1] ? dibs__address_db(slash + 1, &place->db, err) : DIBS_OK;
}

static const char *take_or(dibs__url *url, const char *key, const char *other)
{
    const char *value = dibs__url_take(url, key);

    return value ? value : dibs__url_take(url, other);
}

static dibs_status read_tls(dibs__url *url, dibs__sentinels *s, dibs__redis_address *place,
                            dibs_error *err)
{
    bool servers, sentinels;
    dibs_status status = dibs__address_flag(url, "tls", &servers, err);

    if (status == DIBS_OK)
        status = dibs__address_flag(url, "sentinel_tls", &sentinels, err);
    if (status == DIBS_OK && sentinels)
        status = dibs__tls_context_new(take_or(url, "sentinel_ca", "ca"),
                                       take_or(url, "sentinel_cert", "cert"),
                                       take_or(url, "sentinel_key", "key"), &s->tls, err);
    if (status == DIBS_OK && servers)
        status = dibs__address_tls(url, &place->tls, err);
    return status;
}

static dibs_status read_login(dibs__url *url, dibs__sentinels *s, dibs_error *err)
{
    const char *user = dibs__url_take(url, "sentinel_user");
    const char *password = dibs__url_take(url, "sentinel_password");

    if (user && !password)
        return dibs__fail(err, DIBS_INVALID, "sentinel_user= in the URL needs sentinel_password=");
    return copy(&s->user, user) && copy(&s->password, password)
               ? DIBS_OK
               : dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
}

static dibs_status read_hosts(const dibs__url *url, dibs__sentinels *s, dibs_error *err)
{
    for (size_t i = 0; i < url->host_count; i++) {
        if (!url->host[i].name[0])
            return dibs__fail(err, DIBS_INVALID,
                              "redis+sentinel: a host is missing in the list of sentinels");
        if (!add(s, url->host[i].name, url->host[i].port ? url->host[i].port : SENTINEL_PORT))
            return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    }
    return s->count > 0
               ? DIBS_OK
               : dibs__fail(err, DIBS_INVALID,
                            "redis+sentinel needs sentinels: redis+sentinel://s1,s2,s3/SERVICE");
}

static void call_later(dibs__sentinels *s, int64_t span)
{
    struct itimerspec t = {.it_value = {span / DIBS__SECOND, span % DIBS__SECOND * 1000 + 1}};

    timerfd_settime(s->timer_fd, 0, &t, NULL);
}

static bool watch(dibs__sentinels *s, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

dibs_status dibs__sentinels_read_url(dibs__url *url, dibs__redis_address *place, dibs_error *err)
{
    dibs__sentinels *s = calloc(1, sizeof *s);
    dibs_status status;

    if (!s)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    place->sentinels = s;
    s->env = place->env;
    pthread_mutex_init(&s->lock, NULL);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->timer_fd < 0 || !watch(s, s->timer_fd))
        return dibs__fail(err, DIBS_NO_MEMORY, "redis: out of descriptors");
    call_later(s, 0);
    status = read_service(url, s, place, err);
    if (status == DIBS_OK)
        status = read_login(url, s, err);
    if (status == DIBS_OK)
        status = read_tls(url, s, place, err);
    return status == DIBS_OK ? read_hosts(url, s, err) : status;
}

void dibs__sentinels_free(dibs__sentinels *s)
{
    if (!s)
        return;
    dibs__conn_close(s->subscription);
    for (size_t i = 0; i < s->count; i++) {
        dibs__address_fini(s->list[i]);
        free(s->list[i]);
    }
    dibs__tls_context_free(s->tls);
    if (s->timer_fd >= 0)
        close(s->timer_fd);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->password)
        explicit_bzero(s->password, strlen(s->password));
    free(s->password);
    free(s->user);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void dibs__sentinels_abandon(dibs__sentinels *s)
{
    if (!s)
        return;
    if (s->subscription)
        close(s->subscription->fd);
    close(s->timer_fd);
    close(s->epoll_fd);
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static void write_ask(dibs__bytes *out, const char *what, const char *service)
{
    dibs__resp_begin(out, 3);
    dibs__resp_text(out, "SENTINEL");
    dibs__resp_text(out, what);
    dibs__resp_text(out, service);
}

static const char *text_of(const redisReply *reply, size_t i)
{
    return reply->type == REDIS_REPLY_ARRAY && i < reply->elements &&
                   reply->element[i]->type == REDIS_REPLY_STRING
               ? reply->element[i]->str
               : NULL;
}

static bool read_address(const char *host, const char *port, address *out)
{
    int number = port ? atoi(port) : 0;

    if (!host || !*host || strlen(host) >= sizeof out->host || number < 1 || number > 65535)
        return false;
    strcpy(out->host, host);
    out->port = number;
    return true;
}

/* Each is a list of names and values. What cannot be read, or does not fit, is left out. */
static void learn(dibs__sentinels *s, const redisReply *others)
{
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; others->type == REDIS_REPLY_ARRAY && i < others->elements; i++) {
        const redisReply *one = others->element[i];
        const char *host = NULL, *port = NULL, *name;
        address at;
        for (size_t k = 0; (name = text_of(one, k)); k += 2) {
            host = strcmp(name, "ip") == 0 ? text_of(one, k + 1) : host;
            port = strcmp(name, "port") == 0 ? text_of(one, k + 1) : port;
        }
        if (read_address(host, port, &at))
            add(s, at.host, at.port);
    }
    pthread_mutex_unlock(&s->lock);
}

static dibs_status read_master(const dibs__sentinels *s, const redisReply *reply, address *out,
                               dibs_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return dibs__redis_refusal(reply, err);
    if (reply->type != REDIS_REPLY_ARRAY)
        return dibs__fail(
            err, DIBS_INVALID,
            "it watches no service '%.100s': see sentinel monitor in its configuration",
            s->service);
    return read_address(text_of(reply, 0), text_of(reply, 1), out)
               ? DIBS_OK
               : dibs__fail(err, DIBS_ENGINE_FAILED, "unexpected reply from the sentinel");
}

static dibs_status ask_one(dibs__sentinels *s, const dibs__redis_address *place,
                           dibs__deadline until, address *out, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *replies[2] = {NULL};
    dibs__conn *c = NULL;
    dibs_status status = dibs__redis_connect(place, until, &c, err);

    if (status != DIBS_OK)
        return status;
    write_ask(&bytes, "GET-MASTER-ADDR-BY-NAME", s->service);
    write_ask(&bytes, "SENTINELS", s->service);
    status = dibs__conn_ask(c, &bytes, replies, 2, until, err);
    if (status == DIBS_OK)
        status = read_master(s, replies[0], out, err);
    if (status == DIBS_OK)
        learn(s, replies[1]);
    else
        dibs__wrap(err, "%s", place->text);
    for (int i = 0; i < 2; i++)
        if (replies[i])
            freeReplyObject(replies[i]);
    dibs__bytes_fini(&bytes);
    dibs__conn_close(c);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* The i-th to ask, the one that answered last first; NULL: there are no more. */
static const dibs__redis_address *place_at(dibs__sentinels *s, size_t i, size_t *index)
{
    const dibs__redis_address *place = NULL;

    pthread_mutex_lock(&s->lock);
    *index = s->count ? (s->good + i) % s->count : 0;
    if (i < s->count)
        place = s->list[*index];
    pthread_mutex_unlock(&s->lock);
    return place;
}

/* One that does not answer, or does not know the service, leaves it to the next. */
static dibs_status find_master(dibs__sentinels *s, dibs__deadline until, int64_t span, address *out,
                               dibs_error *err)
{
    const dibs__redis_address *place;
    dibs_status status = DIBS_UNAVAILABLE;
    size_t index;

    dibs__fail(err, status, "no sentinel was asked in time");
    for (size_t i = 0; (place = place_at(s, i, &index)) && dibs__now(s->env) < until; i++) {
        status = ask_one(s, place, dibs__sooner(until, dibs__after(s->env, span)), out, err);
        if (status != DIBS_OK)
            continue;
        pthread_mutex_lock(&s->lock);
        s->good = index;
        pthread_mutex_unlock(&s->lock);
        return DIBS_OK;
    }
    return status;
}

/* ---- The master ------------------------------------------------------------------------------ */

/* Who may not ask is told by what the first command comes to. */
static dibs_status check_role(dibs__conn *c, dibs__deadline until, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    const char *role;
    dibs_status status;

    dibs__resp_begin(&bytes, 1);
    dibs__resp_text(&bytes, "ROLE");
    status = dibs__conn_ask(c, &bytes, &reply, 1, until, err);
    role = status == DIBS_OK ? text_of(reply, 0) : NULL;
    if (role && strcmp(role, "master") != 0)
        status = dibs__fail(err, DIBS_UNAVAILABLE,
                            "it is no master (any more): the failover is not over, try again");
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

dibs_status dibs__sentinels_connect(dibs__sentinels *s, const dibs__redis_address *place,
                                    dibs__deadline until, dibs__conn **out, dibs_error *err)
{
    dibs__redis_address server = *place;
    dibs__conn *c = NULL;
    address master;
    dibs_status status = find_master(s, until, ASK_SPAN, &master, err);

    if (status != DIBS_OK)
        return status;
    server.sentinels = NULL;
    server.host = master.host;
    server.port = master.port;
    snprintf(server.text, sizeof server.text, "redis at %.200s:%d", master.host, master.port);
    status = dibs__redis_connect(&server, until, &c, err);
    if (status == DIBS_OK && (status = check_role(c, until, err)) != DIBS_OK)
        dibs__wrap(err, "%s", server.text);
    if (status != DIBS_OK) {
        dibs__conn_close(c);
        return status;
    }
    pthread_mutex_lock(&s->lock);
    s->master = master;
    pthread_mutex_unlock(&s->lock);
    *out = c;
    return DIBS_OK;
}

/* ---- Hearing of failovers -------------------------------------------------------------------- */

int dibs__sentinels_fd(const dibs__sentinels *s)
{
    return s->epoll_fd;
}

unsigned dibs__sentinels_changes(const dibs__sentinels *s)
{
    return atomic_load(&s->changes);
}

/* Whether it is another one than was last known. */
static bool note_master(dibs__sentinels *s, const address *now)
{
    bool other;

    pthread_mutex_lock(&s->lock);
    other =
        s->master.port && (s->master.port != now->port || strcmp(s->master.host, now->host) != 0);
    s->master = *now;
    pthread_mutex_unlock(&s->lock);
    if (other)
        atomic_fetch_add(&s->changes, 1);
    return other;
}

/* "SERVICE old-host old-port new-host new-port" on +switch-master. */
static bool is_switch(dibs__sentinels *s, const redisReply *reply)
{
    const char *text = text_of(reply, 2);
    char service[SERVICE_SIZE], host[256], port[16];
    address now;

    return text && sscanf(text, "%255s %*s %*s %255s %15s", service, host, port) == 3 &&
           strcmp(service, s->service) == 0 && read_address(host, port, &now) &&
           note_master(s, &now);
}

static dibs_status subscribe(dibs__sentinels *s, const dibs__redis_address *place, dibs_error *err)
{
    dibs__deadline until = dibs__after(s->env, RETRY_SPAN);
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs__conn *c = NULL;
    dibs_status status = dibs__redis_connect(place, until, &c, err);

    if (status != DIBS_OK)
        return status;
    dibs__resp_begin(&bytes, 2);
    dibs__resp_text(&bytes, "SUBSCRIBE");
    dibs__resp_text(&bytes, "+switch-master");
    status = dibs__conn_ask(c, &bytes, &reply, 1, until, err);
    if (status == DIBS_OK && (reply->type != REDIS_REPLY_ARRAY || !watch(s, c->fd)))
        status = dibs__redis_refusal(reply, err);
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    if (status == DIBS_OK)
        s->subscription = c;
    else
        dibs__conn_close(c);
    return status;
}

/* The next in the list each time; what was missed meanwhile is asked for. True: there is another master. */
static bool listen_again(dibs__sentinels *s)
{
    size_t index;
    const dibs__redis_address *place = place_at(s, 0, &index);
    address now;

    if (subscribe(s, place, NULL) == DIBS_OK) {
        s->pause = 0;
        call_later(s, 0); /* something may have come with the confirmation already */
        return find_master(s, dibs__after(s->env, 2 * RETRY_SPAN), RETRY_SPAN, &now, NULL) ==
                   DIBS_OK &&
               note_master(s, &now);
    }
    pthread_mutex_lock(&s->lock);
    s->good = (index + 1) % s->count;
    pthread_mutex_unlock(&s->lock);
    s->pause = s->pause ? 2 * s->pause : RETRY_FIRST;
    s->pause = s->pause < RETRY_LAST ? s->pause : RETRY_LAST;
    call_later(s, s->pause);
    return false;
}

static void deafen(dibs__sentinels *s)
{
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->subscription->fd, NULL);
    dibs__conn_close(s->subscription);
    s->subscription = NULL;
    call_later(s, 0);
}

static bool read_subscription(dibs__sentinels *s)
{
    bool changed = false;

    for (;;) {
        redisReply *reply = NULL;
        dibs__io io = dibs__conn_next(s->subscription, &reply);
        if (io == DIBS__IO_GOT) {
            changed |= is_switch(s, reply);
            freeReplyObject(reply);
            continue;
        }
        if (io == DIBS__IO_LATE)
            io = dibs__conn_receive(s->subscription, 0);
        if (io == DIBS__IO_GOT)
            continue;
        if (io != DIBS__IO_LATE)
            deafen(s);
        return changed;
    }
}

void dibs__sentinels_hear(dibs__sentinels *s, dibs__changed_fn changed, void *ctx)
{
    uint64_t ticks;
    bool rang = read(s->timer_fd, &ticks, sizeof ticks) == sizeof ticks, other = false;

    if (!s->subscription && rang)
        other = listen_again(s);
    if (s->subscription)
        other |= read_subscription(s);
    if (other)
        changed(ctx);
}
