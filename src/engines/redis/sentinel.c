/* See the header. */
#define _GNU_SOURCE
#include "engines/redis/sentinel.h"

#include "core/error.h"
#include "core/table.h"
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
#define FIRST_SPAN \
    (100 * DIBS__MS) /* the keeper has other things to do; a slow network needs more */
#define LAST_SPAN   (800 * DIBS__MS)
#define RETRY_FIRST (100 * DIBS__MS)
#define RETRY_LAST  (5 * DIBS__SECOND)
#define SILENCE     (5 * DIBS__SECOND) /* one that did not answer is left out for so long */
#define DOUBT       DIBS__SECOND       /* between two looks because replicas do not acknowledge */

typedef struct address {
    char host[256];
    int port;
} address;

typedef struct entry {
    address at;
    bool seed;                   /* of the URL */
    dibs__deadline named;        /* or it has answered: when last */
    dibs__deadline silent_until; /* did not answer the last time */
} entry;

struct dibs__sentinels {
    const dibs__env *env;
    char service[SERVICE_SIZE];
    char *user, *password;
    dibs__tls_context *tls; /* NULL: plain */
    pthread_mutex_t lock;
    entry list[DIBS__HOSTS_MAX];
    size_t count;
    address good;   /* was believed the last time: asked first, and listened to */
    address master; /* that the keeper has acted on, or the first */
    atomic_uint changes;
    atomic_bool doubted;
    _Atomic int64_t doubted_at;
    /* Of the keeper alone. */
    int epoll_fd, timer_fd;
    dibs__conn *subscription;
    int64_t pause, span;
};

/* ---- The list -------------------------------------------------------------------------------- */

static bool is_same(const address *a, const address *b)
{
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}

/* With the lock, or while nobody else knows it. NULL: it is not on the list. */
static entry *find_entry(dibs__sentinels *s, const address *at)
{
    for (size_t i = 0; i < s->count; i++)
        if (is_same(&s->list[i].at, at))
            return &s->list[i];
    return NULL;
}

/* The same. It is there: somebody has said so. What does not fit is left out. */
static void add(dibs__sentinels *s, const address *at, bool seed)
{
    entry *e = find_entry(s, at);

    if (!e && s->count < DIBS__HOSTS_MAX) {
        e = &s->list[s->count++];
        *e = (entry){.at = *at, .seed = seed};
    }
    if (e)
        e->named = dibs__now(s->env);
}

/* Those that nobody has named since then are gone; in time, addresses change. */
static void forget(dibs__sentinels *s, dibs__deadline since)
{
    size_t kept = 0;

    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i].seed || s->list[i].named >= since)
            s->list[kept++] = s->list[i];
    s->count = kept;
    pthread_mutex_unlock(&s->lock);
}

static bool copy(char **out, const char *text)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
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
        address at = {.port = url->host[i].port ? url->host[i].port : SENTINEL_PORT};
        if (!url->host[i].name[0] || strlen(url->host[i].name) >= sizeof at.host)
            return dibs__fail(err, DIBS_INVALID,
                              "redis+sentinel: a host is missing in the list of sentinels, or its "
                              "name is too long");
        strcpy(at.host, url->host[i].name);
        add(s, &at, true);
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
    s->span = FIRST_SPAN;
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

/* In a list of names and values. */
static const char *value_of(const redisReply *list, const char *name)
{
    const char *at;

    for (size_t i = 0; (at = text_of(list, i)); i += 2)
        if (strcmp(at, name) == 0)
            return text_of(list, i + 1);
    return NULL;
}

/* What one of them says. It is known by the others that it names, whatever it is called itself. */
typedef struct answer {
    address master;
    int64_t epoch; /* of the configuration; 0: we may not ask */
    size_t total;  /* sentinels, with itself */
    uint64_t others;
} answer;

/* What cannot be read is left out. */
static void learn(dibs__sentinels *s, const redisReply *others, answer *out)
{
    out->total = 1;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; others->type == REDIS_REPLY_ARRAY && i < others->elements; i++) {
        const redisReply *one = others->element[i];
        const char *id = value_of(one, "runid");
        address at = {.port = 0};
        if (!read_address(value_of(one, "ip"), value_of(one, "port"), &at))
            continue;
        add(s, &at, false);
        out->others ^= dibs__hash(id ? id : at.host);
        out->total++;
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

/* Where it is and who comes, out of what the URL said; `at` is borrowed. */
static dibs__redis_address place_of(const dibs__sentinels *s, const address *at)
{
    dibs__redis_address place = {.env = s->env,
                                 .host = (char *)at->host,
                                 .port = at->port,
                                 .user = s->user,
                                 .password = s->password,
                                 .tls = s->tls};

    snprintf(place.text, sizeof place.text, "sentinel at %.200s:%d", at->host, at->port);
    return place;
}

static dibs_status read_answer(dibs__sentinels *s, redisReply *const replies[3], answer *out,
                               dibs_error *err)
{
    const char *epoch = value_of(replies[2], "config-epoch");
    dibs_status status = read_master(s, replies[0], &out->master, err);

    if (status == DIBS_OK)
        learn(s, replies[1], out);
    out->epoch = epoch ? strtoll(epoch, NULL, 10) : 0;
    return status;
}

static dibs_status ask_one(dibs__sentinels *s, const address *at, dibs__deadline until, answer *out,
                           dibs_error *err)
{
    dibs__redis_address place = place_of(s, at);
    dibs__bytes bytes = {0};
    redisReply *replies[3] = {NULL};
    dibs__conn *c = NULL;
    dibs_status status = dibs__redis_connect(&place, until, &c, err);

    *out = (answer){.epoch = 0};
    if (status != DIBS_OK)
        return status;
    write_ask(&bytes, "GET-MASTER-ADDR-BY-NAME", s->service);
    write_ask(&bytes, "SENTINELS", s->service);
    write_ask(&bytes, "MASTER", s->service);
    status = dibs__conn_ask(c, &bytes, replies, 3, until, err);
    if (status == DIBS_OK)
        status = read_answer(s, replies, out, err);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", place.text);
    for (int i = 0; i < 3; i++)
        if (replies[i])
            freeReplyObject(replies[i]);
    dibs__bytes_fini(&bytes);
    dibs__conn_close(c);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* ---- Asking more than half of them ------------------------------------------------------------- */

/* One that was cut off with an old master still names that one. A failover raises the epoch of the configuration, and
 * is known to the others: the highest epoch is believed. */
typedef struct round {
    dibs__deadline began;
    address asked[DIBS__HOSTS_MAX];
    uint64_t heard[DIBS__HOSTS_MAX]; /* each of them once */
    size_t asks, answers, total;
    answer best;
    address from;
} round;

static bool was_asked(const round *x, const address *at)
{
    for (size_t i = 0; i < x->asks; i++)
        if (is_same(&x->asked[i], at))
            return true;
    return false;
}

/* The one that was believed last, then the others; those that were silent only when their time has come, or when nobody
 * has answered. False: there are no more. */
static bool pick(dibs__sentinels *s, round *x, address *out)
{
    const entry *best = NULL;
    int best_rank = 3, rank;

    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->count; i++) {
        const entry *e = &s->list[i];
        rank = e->silent_until > x->began ? 2 : !is_same(&e->at, &s->good);
        if (rank < best_rank && !was_asked(x, &e->at)) {
            best = e;
            best_rank = rank;
        }
    }
    if (best_rank == 2 && x->answers > 0)
        best = NULL;
    if (best)
        *out = best->at;
    pthread_mutex_unlock(&s->lock);
    if (!best || x->asks == DIBS__HOSTS_MAX)
        return false;
    x->asked[x->asks++] = *out;
    return true;
}

static void note_answer(dibs__sentinels *s, const address *at, bool answered)
{
    int64_t now = dibs__now(s->env);
    entry *e;

    pthread_mutex_lock(&s->lock);
    e = find_entry(s, at);
    if (e && answered)
        e->named = now;
    if (e)
        e->silent_until = answered ? 0 : now + SILENCE;
    pthread_mutex_unlock(&s->lock);
}

static void count_answer(round *x, const address *from, const answer *a)
{
    x->total = a->total > x->total ? a->total : x->total;
    if (x->answers == 0 || a->epoch > x->best.epoch) {
        x->best = *a;
        x->from = *from;
    }
    for (size_t i = 0; i < x->answers; i++)
        if (x->heard[i] == a->others)
            return;
    x->heard[x->answers++] = a->others;
}

static bool is_enough(const round *x)
{
    return x->answers * 2 > x->total;
}

static void believe(dibs__sentinels *s, const round *x, address *out)
{
    *out = x->best.master;
    pthread_mutex_lock(&s->lock);
    s->good = x->from;
    pthread_mutex_unlock(&s->lock);
    if (is_enough(x))
        forget(s, x->began);
}

/* One that does not answer, or does not know the service, leaves it to the others. */
static dibs_status find_master(dibs__sentinels *s, dibs__deadline until, int64_t span, address *out,
                               dibs_error *err)
{
    round x = {.began = dibs__now(s->env)};
    dibs_status status = DIBS_UNAVAILABLE;
    address at;
    answer a;

    dibs__fail(err, status, "no sentinel was asked in time");
    while (!(x.answers && is_enough(&x)) && dibs__now(s->env) < until && pick(s, &x, &at)) {
        status = ask_one(s, &at, dibs__sooner(until, dibs__after(s->env, span)), &a, err);
        note_answer(s, &at, status == DIBS_OK);
        if (status == DIBS_OK)
            count_answer(&x, &at, &a);
    }
    if (x.answers == 0)
        return status;
    believe(s, &x, out);
    return DIBS_OK;
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
    if (!s->master
             .port) /* another one is for the keeper to note, which ends what leads to the old one */
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

static dibs_status subscribe(dibs__sentinels *s, const address *at, dibs__deadline until)
{
    dibs__redis_address place = place_of(s, at);
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs__conn *c = NULL;
    dibs_status status = dibs__redis_connect(&place, until, &c, NULL);

    if (status != DIBS_OK)
        return status;
    dibs__resp_begin(&bytes, 2);
    dibs__resp_text(&bytes, "SUBSCRIBE");
    dibs__resp_text(&bytes, "+switch-master");
    status = dibs__conn_ask(c, &bytes, &reply, 1, until, NULL);
    if (status == DIBS_OK && (reply->type != REDIS_REPLY_ARRAY || !watch(s, c->fd)))
        status = dibs__redis_refusal(reply, NULL);
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    if (status == DIBS_OK)
        s->subscription = c;
    else
        dibs__conn_close(c);
    return status;
}

/* True: there is another master. */
static bool look_again(dibs__sentinels *s, dibs__deadline until)
{
    address now;

    atomic_store(&s->doubted, false);
    return find_master(s, until, s->span, &now, NULL) == DIBS_OK && note_master(s, &now);
}

/* To another one each time; what was missed meanwhile is asked for. True: there is another master. */
static bool listen_again(dibs__sentinels *s, dibs__deadline until)
{
    round x = {.began = dibs__now(s->env)};
    address at = {.port = 0};

    if (pick(s, &x, &at) &&
        subscribe(s, &at, dibs__sooner(until, dibs__after(s->env, s->span))) == DIBS_OK) {
        s->pause = 0;
        call_later(s, 0); /* something may have come with the confirmation already */
        return look_again(s, until);
    }
    note_answer(s, &at, false);
    s->span = dibs__longer(s->span, FIRST_SPAN, LAST_SPAN);
    s->pause = dibs__longer(s->pause, RETRY_FIRST, RETRY_LAST);
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

void dibs__sentinels_doubt(dibs__sentinels *s)
{
    int64_t now = dibs__now(s->env), last = atomic_load(&s->doubted_at);

    if (now - last < DOUBT || !atomic_compare_exchange_strong(&s->doubted_at, &last, now))
        return;
    atomic_store(&s->doubted, true);
    call_later(s, 0);
}

/* A sentinel that has not said that there is another master is not listened to any more. */
static bool check_doubt(dibs__sentinels *s, dibs__deadline until)
{
    bool other = look_again(s, until);

    if (other)
        deafen(s);
    return other;
}

void dibs__sentinels_hear(dibs__sentinels *s, dibs__deadline until, dibs__changed_fn changed,
                          void *ctx)
{
    uint64_t ticks;
    bool rang = read(s->timer_fd, &ticks, sizeof ticks) == sizeof ticks, other = false;

    if (!s->subscription && rang)
        other = listen_again(s, until);
    else if (s->subscription && atomic_load(&s->doubted))
        other = check_doubt(s, until);
    if (s->subscription)
        other |= read_subscription(s);
    if (other)
        changed(ctx);
}
