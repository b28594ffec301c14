/* Connection and session, and the thread that keeps both.
 *
 * The library connects, changes servers and sends pings by itself. Our thread makes a session, proves
 * now and then that it lives (proof.c), makes a new one when it has ended, and removes what has
 * lingered long enough. So names are resolved and sessions closed where nobody waits. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "engines/zookeeper/zookeeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define AGAIN      (500 * DIBS__MS) /* a session that could not be made is tried again */
#define RESOLVE_MS 30000
#define CLOSE_SPAN DIBS__SECOND

/* The library would else write to stderr. */
static void on_log(const char *message)
{
    (void)message;
}

/* ---- The socket ------------------------------------------------------------------------------ */

static bool is_at(int fd, const struct sockaddr_storage *peer, socklen_t size)
{
    struct sockaddr_storage other;
    socklen_t n = sizeof other;

    return getpeername(fd, (struct sockaddr *)&other, &n) == 0 && n == size &&
           memcmp(&other, peer, size) == 0;
}

/* What the user's program executes must not inherit our connection. The library neither asks for that
 * nor tells which descriptor it has: every one to this server is meant. */
static void close_on_exec(zhandle_t *zh)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    DIR *dir = zookeeper_get_connected_host(zh, (struct sockaddr *)&peer, &size)
                   ? opendir("/proc/self/fd")
                   : NULL;

    for (struct dirent *e; dir && (e = readdir(dir));) {
        int fd = atoi(e->d_name);
        if (fd > 2 && is_at(fd, &peer, size))
            fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    if (dir)
        closedir(dir);
}

/* ---- What the library tells ------------------------------------------------------------------ */

/* With the mutex. A session of another length than the first one's would break what was promised. */
static void connected(dibs__zk *z, zhandle_t *zh)
{
    uint64_t session = (uint64_t)zoo_client_id(zh)->client_id;
    int64_t span = (int64_t)zoo_recv_timeout(zh) * DIBS__MS;

    z->connected = true;
    z->connections++;
    z->clock = 0; /* it may be another leader's */
    if (session == z->session && z->state == DIBS__ZK_OPEN) {
        dibs__zk_proof_moved(z);
        return;
    }
    z->granted = span;
    z->session = session;
    if (z->session_span == 0 && (span == z->asked || !z->exact))
        z->session_span = span;
    if (span == z->session_span) {
        dibs__zk_proof_reset(z, z->init_at);
        z->state = DIBS__ZK_OPEN;
    } else {
        z->state = z->session_span ? DIBS__ZK_EXPIRED : DIBS__ZK_REFUSED;
    }
}

/* With the mutex. */
static void refused(dibs__zk *z)
{
    z->connected = false;
    z->state = DIBS__ZK_REFUSED;
    dibs__fail(&z->why, DIBS_DENIED,
               "zookeeper: %s rejected the credentials: check user and password in the URL",
               z->hosts);
    dibs__error_code(&z->why, "%d", ZAUTHFAILED);
}

static void on_session(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    dibs__zk *z = context;
    uint64_t expired = 0;

    (void)path;
    if (type != ZOO_SESSION_EVENT)
        return;
    if (state == ZOO_CONNECTED_STATE)
        close_on_exec(zh);
    pthread_mutex_lock(&z->mutex);
    if (z->leaving) {
        z->connected = false; /* whatever becomes of it, it is over for us */
    } else if (state == ZOO_CONNECTED_STATE) {
        connected(z, zh);
    } else if (state == ZOO_EXPIRED_SESSION_STATE) {
        expired = z->session;
        z->connected = false;
        z->state = DIBS__ZK_EXPIRED;
    } else if (state == ZOO_AUTH_FAILED_STATE) {
        refused(z);
    } else {
        z->connected = false;
    }
    pthread_cond_broadcast(&z->cond);
    pthread_mutex_unlock(&z->mutex);
    if (expired)
        dibs__entries_expired(z->backend.entries, expired);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* With the mutex. */
static void sleep_until(dibs__zk *z, dibs__deadline until)
{
    dibs__cond_sleep(&z->cond, &z->mutex, z->backend.env, until);
}

/* ---- The range of sessions ------------------------------------------------------------------- */

typedef struct probe {
    dibs__zk *z;
    int granted;
} probe;

static void on_probe(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    probe *p = context;

    (void)path;
    if (type != ZOO_SESSION_EVENT || state != ZOO_CONNECTED_STATE)
        return;
    pthread_mutex_lock(&p->z->mutex);
    p->granted = zoo_recv_timeout(zh);
    pthread_cond_broadcast(&p->z->cond);
    pthread_mutex_unlock(&p->z->mutex);
}

/* What the server makes of so many milliseconds; 0: it does not tell. */
static int probe_session(dibs__zk *z, int ms)
{
    dibs__deadline until = dibs__after(z->backend.env, DIBS__SECOND);
    probe p = {z, 0};
    zhandle_t *zh = zookeeper_init2(z->hosts, on_probe, ms, NULL, &p, 0, on_log);

    if (!zh)
        return 0;
    pthread_mutex_lock(&z->mutex);
    while (p.granted == 0 && dibs__now(z->backend.env) < until && !z->ending)
        sleep_until(z, until);
    pthread_mutex_unlock(&z->mutex);
    zookeeper_close(zh);
    return p.granted;
}

/* The shortest that it grants. A short one is hard to get over a slow network. */
static int probe_shortest(dibs__zk *z)
{
    int granted = 0;

    for (int ms = 100; granted == 0 && ms <= 6400; ms *= 4)
        granted = probe_session(z, ms);
    return granted;
}

/* The session that we asked for is not the one that we got: says which there are. */
static void log_range(dibs__zk *z)
{
    int asked = (int)(z->asked / DIBS__MS), got = (int)(z->granted / DIBS__MS);
    int low = got > asked ? got : probe_shortest(z), high = got;
    dibs_error why;

    if (got > asked)
        high = probe_session(z, 24 * 3600 * 1000);
    dibs__fail(
        &why, DIBS_INVALID,
        "zookeeper: a session of %d ms is not granted by %s: give ?session= (or a lease) from "
        "%d ms to %d ms",
        asked, z->hosts, low, high > low ? high : low);
    pthread_mutex_lock(&z->mutex);
    if (z->why.status == DIBS_OK)
        z->why = why;
    pthread_cond_broadcast(&z->cond);
    pthread_mutex_unlock(&z->mutex);
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* Without the mutex; nothing new is sent. Requests that are out when the library is closed would be lost to
 * it, memory and all: unless they are answered before, it gives them up by itself when it has heard nothing
 * for two thirds of a session. */
static void close_handle(dibs__zk *z, int64_t patience)
{
    dibs__deadline until = dibs__after(z->backend.env, patience);
    zhandle_t *zh;

    pthread_mutex_lock(&z->mutex);
    z->leaving = true;
    while ((z->open || z->exchanges) && dibs__now(z->backend.env) < until &&
           (!z->ending || patience == CLOSE_SPAN))
        sleep_until(z, until);
    zh = z->zh;
    z->zh = NULL;
    pthread_mutex_unlock(&z->mutex);
    if (zh)
        zookeeper_close(zh);
    dibs__zk_ops_lost(z);
    dibs__zk_exchanges_lost(z);
    pthread_mutex_lock(&z->mutex);
    dibs__zk_watches_clear(z);
    pthread_mutex_unlock(&z->mutex);
}

/* Without the mutex. */
static void make_session(dibs__zk *z)
{
    zhandle_t *zh;

    pthread_mutex_lock(&z->mutex);
    z->state = DIBS__ZK_STARTING;
    pthread_mutex_unlock(&z->mutex);
    close_handle(z, z->asked);
    pthread_mutex_lock(&z->mutex);
    z->leaving = false;
    z->init_at = dibs__now(z->backend.env);
    pthread_mutex_unlock(&z->mutex);
    zh = zookeeper_init2(z->hosts, on_session, (int)(z->asked / DIBS__MS), NULL, z, 0, on_log);
    if (zh) /* else the library asks for the servers' addresses at every turn of its loop */
        zoo_set_servers_resolution_delay(zh, RESOLVE_MS);
    if (zh && z->auth)
        zoo_add_auth(zh, "digest", z->auth, (int)strlen(z->auth), NULL, NULL);
    pthread_mutex_lock(&z->mutex);
    z->zh = zh;
    if (!zh)
        dibs__fail_errno(&z->last, DIBS_UNAVAILABLE, errno, "zookeeper: %s: %s", z->hosts,
                         strerror(errno));
    pthread_cond_broadcast(&z->cond);
    pthread_mutex_unlock(&z->mutex);
}

static void on_pulse(int rc, const struct Stat *stat, const void *data)
{
    (void)stat;
    dibs__zk_answered((dibs__zk_op *)(uintptr_t)data, rc, false);
}

/* A proof while there is anything to lose, else a touch. */
static void pulse(dibs__zk *z)
{
    dibs__zk_op *op = dibs__zk_op_new(z, NULL, NULL);
    bool busy = dibs__entries_busy(z->backend.entries) > 0;

    if (op && busy) {
        op->multi = calloc(1, sizeof *op->multi);
        op->multi_result = calloc(1, sizeof *op->multi_result);
    }
    if (!op || (busy && (!op->multi || !op->multi_result)) ||
        dibs__zk_flush_begin(op, dibs__zk_op_free) != DIBS_OK) {
        if (op)
            dibs__zk_op_free(op);
        return;
    }
    z->proof.tried = op->sent;
    if (busy) {
        zoo_check_op_init(op->multi, "/", -1);
        dibs__zk_sent(op, zoo_amulti(z->zh, 1, op->multi, op->multi_result, dibs__zk_on_void, op),
                      &op->rc);
    } else {
        dibs__zk_sent(op, zoo_aexists(z->zh, "/", 0, on_pulse, op), &op->rc);
    }
    if (dibs__zk_flush_end(op) != DIBS_OK)
        dibs__zk_op_free(op);
}

/* The library (3.8) skips a server after each that failed, and so tries only every other one of an
 * even number: one more step for each of its attempts, which come every sixtieth of the session, gets it
 * to all of them. */
static dibs__deadline step_on(dibs__zk *z, dibs__deadline now)
{
    pthread_mutex_lock(&z->mutex);
    if (z->zh && !z->connected && now >= z->stepped + z->asked / 60) {
        zoo_cycle_next_server(z->zh);
        z->stepped = now;
    }
    pthread_mutex_unlock(&z->mutex);
    return now + z->asked / 60;
}

/* Nothing was answered for two sessions. It is over for us long since; but what we send may still arrive
 * and keep it alive, and with it entries that nobody wants. So the next session is another one. What the old
 * one sent may arrive later and do no harm: its entries vanish with it, and what it writes into a cell names
 * the version that it has read. */
static void give_up_silent(dibs__zk *z, dibs__deadline now)
{
    uint64_t session = 0;

    pthread_mutex_lock(&z->mutex);
    if (z->state == DIBS__ZK_OPEN && now > z->proof.last + 2 * z->session_span) {
        session = z->session;
        z->state = DIBS__ZK_EXPIRED;
    }
    pthread_mutex_unlock(&z->mutex);
    if (session)
        dibs__entries_expired(z->backend.entries, session);
}

/* What is to be done now; when to look again. Without the mutex. */
static dibs__deadline serve(dibs__zk *z)
{
    dibs__deadline now = dibs__now(z->backend.env), next = dibs__zk_lingering_serve(z), due;
    dibs__zk_state state;
    bool none, connected_now, range;

    next = dibs__sooner(next, dibs__zk_strays_serve(z));
    give_up_silent(z, now);
    pthread_mutex_lock(&z->mutex);
    state = z->state;
    none = z->zh == NULL;
    connected_now = z->connected;
    range = state == DIBS__ZK_REFUSED && z->why.status == DIBS_OK;
    due = state == DIBS__ZK_OPEN ? dibs__zk_proof_due(z) : DIBS__NEVER;
    pthread_mutex_unlock(&z->mutex);
    if (range)
        log_range(z);
    if (state == DIBS__ZK_EXPIRED || (state == DIBS__ZK_STARTING && none)) {
        if (now < z->init_at + AGAIN && z->init_at)
            return dibs__sooner(next, z->init_at + AGAIN);
        make_session(z);
        return dibs__sooner(next, now + AGAIN);
    }
    if (!connected_now && state != DIBS__ZK_REFUSED)
        next = dibs__sooner(next, step_on(z, now));
    if (due <= now) {
        pulse(z);
        return dibs__sooner(next, now + DIBS__MS);
    }
    return dibs__sooner(next, due);
}

static void *thread_main(void *data)
{
    dibs__zk *z = data;

    pthread_mutex_lock(&z->mutex);
    while (!z->ending) {
        dibs__deadline next;
        pthread_mutex_unlock(&z->mutex);
        next = serve(z);
        pthread_mutex_lock(&z->mutex);
        if (!z->ending)
            sleep_until(z, next);
    }
    z->state = DIBS__ZK_STARTING;
    pthread_mutex_unlock(&z->mutex);
    close_handle(z, CLOSE_SPAN);
    return NULL;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

/* The library tries all of them again and again, and says only that much. */
static dibs_status no_server(const dibs__zk *z, int64_t span, dibs_error *err)
{
    dibs__fail(err, DIBS_UNAVAILABLE,
               "zookeeper: no server answered at %s within %lld ms: is it running, is it "
               "ZooKeeper's client port, and does it have a quorum?",
               z->hosts, (long long)(span / DIBS__MS));
    dibs__error_code(err, "%d", ZCONNECTIONLOSS);
    return DIBS_UNAVAILABLE;
}

dibs_status dibs__zk_connect(dibs__zk *z, dibs__deadline until, dibs_error *err)
{
    int64_t start = dibs__now(z->backend.env);
    dibs_status status = DIBS_OK;

    z->thread_runs = dibs__thread_start(&z->thread, thread_main, z);
    if (!z->thread_runs)
        return dibs__fail(err, DIBS_NO_MEMORY, "zookeeper: cannot start a thread");
    pthread_mutex_lock(&z->mutex);
    /* The library may have connected before our thread has its handle. */
    while ((z->state != DIBS__ZK_OPEN || !z->zh) && z->why.status == DIBS_OK &&
           dibs__now(z->backend.env) < until)
        sleep_until(z, until);
    if (z->why.status != DIBS_OK)
        status = dibs__fail_as(err, z->why.status, &z->why);
    else if (z->state != DIBS__ZK_OPEN && z->last.status != DIBS_OK)
        status = dibs__fail_as(err, z->last.status, &z->last);
    else if (z->state != DIBS__ZK_OPEN)
        status = no_server(z, dibs__now(z->backend.env) - start, err);
    pthread_mutex_unlock(&z->mutex);
    return status;
}

void dibs__zk_close(dibs__entries_backend *s)
{
    dibs__zk *z = (dibs__zk *)s;

    pthread_mutex_lock(&z->mutex);
    z->ending = true;
    pthread_cond_broadcast(&z->cond);
    pthread_mutex_unlock(&z->mutex);
    if (z->thread_runs)
        pthread_join(z->thread, NULL);
    dibs__zk_lingering_free(z);
    dibs__zk_strays_free(z);
    dibs__zk_free(z);
}

/* The library's socket cannot be had from it; it is closed on exec, and the child never writes. */
void dibs__zk_abandon(dibs__entries_backend *s)
{
    (void)s;
}
