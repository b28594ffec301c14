/* The client's thread: connects, reads, keeps the lease alive, and tells.
 *
 * It goes well: poll, read, hand out what came, tell. It fails when the server hangs up, is silent
 * although it was asked, or says that it has no leader: then every call that is out ends, and the
 * next server is tried, all of them once at once, and again after growing pauses. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/error.h"
#include "engines/etcd/inner.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_SPAN (2 * DIBS__SECOND) /* for one server, at most */
#define LEAST_SPAN   DIBS__SECOND       /* and at least, however short the session */
#define LOGIN_SPAN   (3 * DIBS__SECOND) /* on top: checking a password is slow on purpose */
#define QUIET        (500 * DIBS__MS)   /* silence after a question: is anybody there? */
#define SILENCE      (2 * DIBS__SECOND) /* silence after that: nobody is */
#define ASK_SPAN     (60 * DIBS__SECOND)
#define GRACE        DIBS__SECOND /* after a goodbye, for what is under way */
#define FIRST_PAUSE  (20 * DIBS__MS)
#define MAX_PAUSE    DIBS__SECOND

/* ---- Connecting ------------------------------------------------------------------------------ */

/* Reads and writes until the server has spoken and `s`, if there is one, is over. */
static dibs_status exchange(dibs__etcd_client *c, dibs__h2 *h, const dibs__h2_stream *s,
                            dibs__deadline until, dibs_error *err)
{
    while (dibs__h2_heard(h) == 0 || (s && s->link)) {
        struct pollfd p[2] = {{dibs__h2_fd(h), POLLIN, 0}, {c->stop, POLLIN, 0}};
        dibs__h2_state state = dibs__h2_flush(h);
        int left = dibs__poll_ms(c->env, until);
        if (state == DIBS__H2_FULL)
            p[0].events |= POLLOUT;
        if (left == 0 || (poll(p, 2, left) < 0 && errno != EINTR))
            return dibs__fail(err, DIBS_UNAVAILABLE,
                              "connected, but received no reply; is it etcd's client port?");
        if (p[1].revents)
            return dibs__fail(err, DIBS_UNAVAILABLE, "the handle is being closed");
        if (state == DIBS__H2_DEAD || dibs__h2_read(h) == DIBS__H2_DEAD)
            return dibs__fail(
                err, DIBS_UNAVAILABLE,
                "the server closed the connection or does not support HTTP/2; is it etcd's client "
                "port%s?",
                c->address.tls ? ", with TLS, and does it want a client certificate "
                                 "(cert=, key=)"
                               : ", without TLS (else use etcds://)");
    }
    return DIBS_OK;
}

static void on_closed(dibs__h2_stream *s)
{
    (void)s;
}

static dibs_status read_token(const dibs__h2_stream *s, char **token, dibs_error *err)
{
    Etcd__AuthenticateResponse *reply;

    if (s->rpc != DIBS__RPC_OK)
        return dibs__etcd_refusal(s->rpc, s->text, err);
    reply = s->in.length < 5 ? NULL
                             : etcd__authenticate_response__unpack(NULL, s->in.length - 5,
                                                                   (const uint8_t *)s->in.data + 5);
    *token = reply && reply->token ? strdup(reply->token) : NULL;
    if (reply)
        etcd__authenticate_response__free_unpacked(reply, NULL);
    return *token ? DIBS_OK : dibs__fail(err, DIBS_UNAVAILABLE, "no token came: out of memory?");
}

static dibs_status authenticate(dibs__etcd_client *c, dibs__h2 *h, dibs__deadline until,
                                char **token, dibs_error *err)
{
    Etcd__AuthenticateRequest request = ETCD__AUTHENTICATE_REQUEST__INIT;
    dibs__h2_stream s = {.closed = on_closed};
    dibs_status status;

    request.name = c->address.user;
    request.password = c->address.password;
    if (!dibs__h2_pack(&s, &request.base) ||
        !dibs__h2_start(h, &s, "/etcdserverpb.Auth/Authenticate", NULL, false)) {
        status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    } else {
        status = exchange(c, h, &s, until, err);
        dibs__h2_forget(h, &s);
        if (status == DIBS_OK)
            status = read_token(&s, token, err);
    }
    if (status == DIBS_DENIED)
        dibs__wrap(err, "as user '%.60s'", c->address.user);
    dibs__h2_stream_fini(&s);
    return status;
}

/* A server that does not answer must not cost the session. */
static int64_t connect_span(dibs__etcd_client *c)
{
    int64_t span;

    pthread_mutex_lock(&c->lock);
    span = c->lease.id ? c->lease.ttl / 4 : CONNECT_SPAN;
    pthread_mutex_unlock(&c->lock);
    span = span > LEAST_SPAN ? span : LEAST_SPAN;
    return span < CONNECT_SPAN ? span : CONNECT_SPAN;
}

static dibs_status connect_one(dibs__etcd_client *c, dibs__h2 **out, char **token, dibs_error *err)
{
    dibs__h2_address address = {.host = c->address.host[c->at].name,
                                .port = c->address.host[c->at].port,
                                .tls = c->address.tls,
                                .env = c->env,
                                .stop_fd = c->stop};
    dibs__deadline until = dibs__after(c->env, connect_span(c));
    dibs_status status = dibs__h2_open(&address, until, out, err);

    if (status == DIBS_OK) {
        status = exchange(c, *out, NULL, until, err);
        if (status == DIBS_OK && c->address.user)
            status = authenticate(c, *out, until + LOGIN_SPAN, token, err);
        if (status != DIBS_OK) {
            dibs__h2_close(*out);
            *out = NULL;
        }
    }
    if (status != DIBS_OK)
        dibs__wrap(err, "etcd at %.200s:%d", address.host, address.port);
    return status;
}

/* With the mutex: the connection is there for everybody. */
static void install(dibs__etcd_client *c, dibs__h2 *h2, char *token)
{
    free(c->token);
    c->why = (dibs_error){0};
    c->token = token;
    c->h2 = h2;
    c->cut = c->full = false;
    c->goodbye = 0;
    c->since = dibs__now(c->env);
    dibs__etcd_watches_start(c);
    dibs__etcd_lease_start(c);
    dibs__etcd_guard_turn(c, c->since);
    dibs__etcd_calls_send(c);
    dibs__etcd_flush(c);
    pthread_cond_broadcast(&c->turned);
}

/* Every server once. true: connected. */
static bool connect_any(dibs__etcd_client *c)
{
    dibs_error why = {0};

    for (size_t i = 0; i < c->address.count; i++) {
        dibs__h2 *h2 = NULL;
        char *token = NULL;
        dibs_error err = {0};
        c->at = (c->at + 1) % c->address.count;
        if (connect_one(c, &h2, &token, &err) == DIBS_OK) {
            pthread_mutex_lock(&c->lock);
            install(c, h2, token);
            pthread_mutex_unlock(&c->lock);
            return true;
        }
        /* A refused password says more than a server that is down. */
        if (i == 0 || why.status == DIBS_UNAVAILABLE)
            why = err;
        pthread_mutex_lock(&c->lock);
        c->why = why;
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_lock(&c->lock);
    c->failed++;
    dibs__etcd_calls_fail(c);
    pthread_cond_broadcast(&c->turned);
    pthread_mutex_unlock(&c->lock);
    return false;
}

/* ---- Telling --------------------------------------------------------------------------------- */

/* With the mutex, which is let go for every word. */
static void notify(dibs__etcd_client *c)
{
    dibs__etcd_call *calls = c->over;
    int64_t lease = c->lease.over;
    int renewed = c->lease.renewed;
    bool alarm = dibs__now(c->env) >= c->alarm;
    char refused[sizeof c->watches.refused], unguarded[sizeof c->guard.refused];
    uint64_t tag;
    dibs__etcd_news news;

    memcpy(refused, c->watches.refused, sizeof refused);
    memcpy(unguarded, c->guard.refused, sizeof unguarded);
    c->watches.refused[0] = c->guard.refused[0] = '\0';
    c->over = NULL;
    c->over_end = &c->over;
    c->lease.over = c->lease.renewed = 0;
    if (alarm)
        c->alarm = DIBS__NEVER;
    if (calls || lease || renewed || alarm || refused[0] || unguarded[0]) {
        pthread_mutex_unlock(&c->lock);
        for (dibs__etcd_call *next; calls; calls = next) {
            next = calls->next;
            calls->done(calls);
        }
        if (renewed)
            c->events.lease_renewed(c->events.ctx, renewed > 0);
        if (lease)
            c->events.lease_over(c->events.ctx, lease);
        if (alarm)
            c->events.alarm(c->events.ctx);
        if (refused[0])
            c->sink->log(c->sink, DIBS_LOG_WARNING, "etcd: a watch was refused: %s", refused);
        if (unguarded[0])
            c->sink->log(c->sink, DIBS_LOG_WARNING,
                         "etcd: a request that got no answer may still take effect, because the "
                         "session's key could not be written: %s",
                         unguarded);
        pthread_mutex_lock(&c->lock);
    }
    while (dibs__etcd_watches_next(c, &tag, &news)) {
        pthread_mutex_unlock(&c->lock);
        c->events.watched(c->events.ctx, tag, news);
        pthread_mutex_lock(&c->lock);
    }
}

static bool has_news(const dibs__etcd_client *c)
{
    return c->over || c->lease.over || c->lease.renewed || c->watches.to_notify ||
           c->guard.refused[0];
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static void on_health(dibs__etcd_call *call)
{
    dibs__etcd_client *c = call->client;

    pthread_mutex_lock(&c->lock);
    c->asked = false;
    dibs__etcd_call_fini(call);
    pthread_mutex_unlock(&c->lock);
}

/* By a call of gRPC's own that needs neither disk nor leader, so that a slow cluster answers it. Not by
 * HTTP/2 pings: etcd hangs up on who sends more than one in five seconds. */
static void ask_for_health(dibs__etcd_client *c, int64_t now)
{
    Etcd__HealthCheckRequest request = ETCD__HEALTH_CHECK_REQUEST__INIT;

    c->asked_at = now;
    c->asked =
        dibs__etcd_post_locked(c, &c->health, DIBS__ETCD_URGENT, "/grpc.health.v1.Health/Check",
                               &request.base, now + ASK_SPAN, on_health);
    if (!c->asked)
        dibs__etcd_call_fini(&c->health);
}

/* A server that was asked and is silent is asked for a keep-alive, and left if none comes.
 * Returns when to look again. */
static dibs__deadline doubt(dibs__etcd_client *c, int64_t now)
{
    dibs__deadline heard = dibs__h2_heard(c->h2);
    dibs__deadline since = c->asked && c->asked_at > heard ? c->asked_at : heard;

    if (!c->flying && !c->lease.sent)
        return DIBS__NEVER;
    if (c->asked && now >= since + SILENCE) {
        c->cut = true;
        return now;
    }
    if (!c->asked && now >= heard + QUIET) {
        ask_for_health(c, now);
        since = now;
    }
    return c->asked ? since + SILENCE : heard + QUIET;
}

/* A server that says goodbye has some time for what it was asked before; the rest waits for another. */
static dibs__deadline part(dibs__etcd_client *c, int64_t now)
{
    if (!c->goodbye && dibs__h2_said_goodbye(c->h2))
        c->goodbye = now;
    if (!c->goodbye)
        return DIBS__NEVER;
    if (!c->flying || now >= c->goodbye + GRACE)
        c->cut = true;
    return c->cut ? now : c->goodbye + GRACE;
}

static bool wait_for_more(dibs__etcd_client *c, dibs__deadline until)
{
    struct pollfd p[2] = {{c->h2 ? dibs__h2_fd(c->h2) : -1, POLLIN, 0}, {c->kick, POLLIN, 0}};
    uint64_t count;

    if (c->full)
        p[0].events |= POLLOUT;
    c->asleep_until = until;
    pthread_mutex_unlock(&c->lock);
    if (poll(p, 2, dibs__poll_ms(c->env, until)) > 0 && p[1].revents &&
        read(c->kick, &count, sizeof count) < 0)
        count = 0;
    pthread_mutex_lock(&c->lock);
    c->asleep_until = 0;
    return p[0].revents != 0;
}

/* One turn with a connection: with the mutex. */
static void turn(dibs__etcd_client *c)
{
    int64_t now = dibs__now(c->env);
    dibs__deadline until = dibs__etcd_lease_turn(c, now);
    bool readable = false;

    until = dibs__sooner(until, dibs__etcd_calls_late(c, now));
    until = dibs__sooner(until, dibs__etcd_guard_turn(c, now));
    dibs__etcd_calls_send(c); /* what came back, or has waited for the guard */
    dibs__etcd_flush(c);
    until = dibs__sooner(until, part(c, now));
    until = dibs__sooner(until, dibs__sooner(c->alarm, doubt(c, now)));
    if (now < c->posted + 2 * DIBS__ETCD_NAP)
        until = dibs__sooner(until, now + DIBS__ETCD_NAP);
    if (!has_news(c) && !c->cut && !c->stopping)
        readable = wait_for_more(c, until);
    if (readable && dibs__h2_read(c->h2) == DIBS__H2_DEAD)
        c->cut = true;
    if (readable || c->full)
        dibs__etcd_flush(c);
    notify(c);
}

static void drop_connection(dibs__etcd_client *c)
{
    dibs__h2 *h2 = c->h2;

    c->h2 = NULL;
    c->watches.up = c->lease.up = false;
    dibs__h2_close(h2);
    dibs__h2_stream_fini(&c->watches.stream);
    dibs__h2_stream_fini(&c->lease.stream);
    c->cut = c->full = false;
    c->goodbye = 0;
    notify(c);
}

/* Between two rounds over all servers. */
static void rest(dibs__etcd_client *c, int64_t pause)
{
    dibs__deadline again = dibs__after(c->env, pause);

    while (!c->stopping && dibs__now(c->env) < again) {
        int64_t now = dibs__now(c->env);
        dibs__deadline until = dibs__sooner(again, dibs__etcd_lease_turn(c, now));
        until = dibs__sooner(until, dibs__sooner(c->alarm, dibs__etcd_calls_late(c, now)));
        notify(c);
        wait_for_more(c, until);
    }
}

void *dibs__etcd_thread(void *client)
{
    dibs__etcd_client *c = client;
    int64_t pause = 0;

    pthread_mutex_lock(&c->lock);
    while (!c->stopping) {
        if (c->h2 && !c->cut) {
            turn(c);
            continue;
        }
        if (c->h2) {
            drop_connection(c);
            if (dibs__now(c->env) > c->since + MAX_PAUSE)
                pause = 0;
        }
        /* A server that takes us and turns us away at once is not asked without end. */
        if (pause)
            rest(c, pause);
        pthread_mutex_unlock(&c->lock);
        if (!connect_any(c) || pause)
            pause = dibs__longer(pause, FIRST_PAUSE, MAX_PAUSE);
        pause = pause ? pause : FIRST_PAUSE;
        pthread_mutex_lock(&c->lock);
        notify(c);
    }
    if (c->h2)
        drop_connection(c);
    while (c->queued || c->over) {
        dibs__etcd_calls_fail(c);
        notify(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
