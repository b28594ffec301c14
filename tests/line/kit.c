#define _GNU_SOURCE
#include "line/kit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANDLES_MAX 64
#define JOBS_MAX    128
#define PROXIES_MAX 8
#define LASTING_MS  20000

ensemble the_server;
atomic_int log_lines;

static ensemble_kind the_kind;
static const char *const *the_extra;
static dibs *handles[HANDLES_MAX];
static job *jobs[JOBS_MAX];
static size_t job_count;
static proxy *proxies[PROXIES_MAX];

/* ---- The server ------------------------------------------------------------------------------ */

/* A build may lack the engine: that is a skip like a missing server. */
static void need_engine(const char *scheme)
{
    dibs_engine_info info;

    for (size_t i = 0; dibs_engine_at(i, &info); i++)
        if (strcmp(info.scheme, scheme) == 0 && info.missing) {
            if (server_required())
                fail_msg("this build is without %s, and servers are required here", scheme);
            skip();
        }
}

void describe_server(ensemble_kind kind, const char *const extra[])
{
    the_kind = kind;
    the_extra = extra;
}

void need_server(void)
{
    need_engine(the_kind == ENSEMBLE_ETCD ? "etcd" : "zookeeper");
    if (the_server.count == 0)
        ensemble_need(&the_server, the_kind, 1, the_extra);
    if (the_server.node[0].pid == 0) /* a case that failed left it dead */
        assert_int_equal(ensemble_restart(&the_server, 0), 0);
}

static const char *make_url(const char *hosts, int session_ms, const char *more)
{
    static char urls[8][512];
    static unsigned n;
    char *url = urls[n++ % 8];

    snprintf(url, sizeof urls[0], "%s://%s/tests?session=%dms%s",
             the_kind == ENSEMBLE_ETCD ? "etcd" : "zookeeper", hosts, session_ms, more);
    return url;
}

const char *url_of(const char *hosts, const char *more)
{
    return make_url(hosts, SESSION_MS, more);
}

const char *url_lasting(const char *hosts)
{
    return make_url(hosts, LASTING_MS, "");
}

const char *url_at(int port, const char *more)
{
    char hosts[32];

    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", port);
    return url_of(hosts, more);
}

static void become(const char *const words[], int out)
{
    dup2(out, 1);
    execvp(words[0], (char *const *)words);
    _exit(127);
}

int run_program(char *out, size_t size, const char *const words[])
{
    char unread[4096];
    int fds[2], status = -1;
    size_t used = 0;
    ssize_t got;
    pid_t pid;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0)
        become(words, fds[1]);
    close(fds[1]);
    if (!out) {
        out = unread;
        size = sizeof unread;
    }
    while (used + 1 < size && (got = read(fds[0], out + used, size - used - 1)) > 0)
        used += (size_t)got;
    out[used] = '\0';
    close(fds[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- Handles --------------------------------------------------------------------------------- */

static dibs *open_with(const char *url, const dibs_options *options)
{
    dibs_error err = {0};
    size_t i = 0;

    while (i < HANDLES_MAX && handles[i])
        i++;
    assert_true(i < HANDLES_MAX);
    if (dibs_open(url, options, &handles[i], &err) != DIBS_OK)
        fail_msg("%s: %s", url, err.message);
    return handles[i];
}

dibs *open_url(const char *url)
{
    return open_with(url, NULL);
}

dibs *open_here(void)
{
    need_server();
    return open_url(url_of(the_server.hosts, ""));
}

dibs *open_through(const proxy *p)
{
    return open_url(url_at(proxy_port(p), ""));
}

static void count_line(void *data, dibs_log_level level, const char *message)
{
    (void)data;
    (void)message;
    if (level <= DIBS_LOG_WARNING)
        atomic_fetch_add(&log_lines, 1);
}

dibs *open_logged(const char *url)
{
    atomic_store(&log_lines, 0);
    return open_with(url, &(dibs_options){.log = count_line});
}

void close_handle(dibs *d)
{
    for (size_t i = 0; i < HANDLES_MAX; i++)
        if (handles[i] == d)
            handles[i] = NULL;
    dibs_close(d);
}

static void join_those_done(void)
{
    for (size_t i = 0; i < job_count; i++)
        if (jobs[i]->thread && atomic_load(&jobs[i]->done)) {
            pthread_join(jobs[i]->thread, NULL);
            jobs[i]->thread = 0;
        }
}

/* Threads of a case that failed half-way are inside their handles: closing ends their waits. */
int close_all(void **state)
{
    (void)state;
    join_those_done();
    for (size_t i = 0; i < PROXIES_MAX; i++)
        if (proxies[i])
            proxy_heal(proxies[i]);
    for (size_t i = 0; i < HANDLES_MAX; i++) {
        if (handles[i])
            dibs_close(handles[i]);
        handles[i] = NULL;
    }
    for (size_t i = 0; i < job_count; i++) {
        if (jobs[i]->thread)
            pthread_join(jobs[i]->thread, NULL);
        free(jobs[i]);
    }
    job_count = 0;
    for (size_t i = 0; i < PROXIES_MAX; i++) {
        if (proxies[i])
            proxy_stop(proxies[i]);
        proxies[i] = NULL;
    }
    return 0;
}

proxy *proxy_to(int port)
{
    size_t i = 0;

    while (i < PROXIES_MAX && proxies[i])
        i++;
    assert_true(i < PROXIES_MAX);
    proxies[i] = proxy_start(port);
    assert_non_null(proxies[i]);
    return proxies[i];
}

proxy *proxy_here(void)
{
    need_server();
    return proxy_to(the_server.node[0].port);
}

void refused(const char *url, dibs_status want, const char *const words[])
{
    dibs *d = NULL;
    dibs_error err = {0};
    dibs_status got = dibs_open(url, &(dibs_options){.connect_ms = 4000}, &d, &err);

    if (got != want)
        fail_msg("%s: %s, not %s: %s", url, dibs_status_name(got), dibs_status_name(want),
                 err.message);
    assert_null(d);
    for (size_t i = 0; words && words[i]; i++)
        if (!strstr(err.message, words[i]))
            fail_msg("%s: \"%s\" does not say \"%s\"", url, err.message, words[i]);
}

/* ---- Locks ----------------------------------------------------------------------------------- */

dibs_grant *take(dibs *d, const char *name, const dibs_lock_options *options)
{
    dibs_lock_options o = options ? *options : (dibs_lock_options){0};
    dibs_error err = {0};
    dibs_grant *g = NULL;

    if (o.wait_ms == 0)
        o.wait_ms = LONG_MS;
    if (dibs_lock(d, name, &o, &g, &err) != DIBS_OK)
        fail_msg("lock %s: %s", name, err.message);
    return g;
}

dibs_status try_lock(dibs *d, const char *name)
{
    dibs_grant *g = NULL;
    dibs_status status =
        dibs_lock(d, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, NULL);

    if (status == DIBS_OK)
        dibs_unlock(g);
    return status;
}

static void count_line_of(dibs *d, const char *name, size_t *holders, size_t *waiters)
{
    dibs_report *r = NULL;

    *holders = *waiters = 0;
    if (dibs_inspect(d, name, &r, NULL) == DIBS_OK) {
        *holders = dibs_report_at(r, 0)->holder_count;
        *waiters = dibs_report_at(r, 0)->waiter_count;
    }
    dibs_report_free(r);
}

size_t holders_of(dibs *d, const char *name)
{
    size_t holders, waiters;

    count_line_of(d, name, &holders, &waiters);
    return holders;
}

size_t waiters_of(dibs *d, const char *name)
{
    size_t holders, waiters;

    count_line_of(d, name, &holders, &waiters);
    return waiters;
}

void wait_for_line(dibs *d, const char *name, size_t holders, size_t waiters)
{
    int64_t end = clock_ms() + LONG_MS;
    size_t h, w;

    for (;;) {
        count_line_of(d, name, &h, &w);
        if (h == holders && w == waiters)
            return;
        if (clock_ms() > end)
            fail_msg("%s: %zu hold and %zu wait, not %zu and %zu", name, h, w, holders, waiters);
        sleep_ms(10);
    }
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *job_run(void *arg)
{
    job *j = arg;

    j->status = dibs_lock(j->d, j->name, &j->options, &j->g, &j->err);
    if (j->status == DIBS_OK) {
        j->rival_held = j->rival && dibs_held(j->rival);
        j->held = dibs_held(j->g);
        j->fence = dibs_fence(j->g);
    }
    j->at = clock_ms();
    atomic_store(&j->done, true);
    return NULL;
}

job *job_start(dibs *d, const char *name, const dibs_lock_options *options, const dibs_grant *rival)
{
    job *j = calloc(1, sizeof *j);

    assert_non_null(j);
    assert_true(job_count < JOBS_MAX);
    j->d = d;
    j->rival = rival;
    snprintf(j->name, sizeof j->name, "%s", name);
    if (options)
        j->options = *options;
    jobs[job_count++] = j;
    assert_int_equal(pthread_create(&j->thread, NULL, job_run, j), 0);
    return j;
}

static bool job_is_done(void *ctx)
{
    return atomic_load(&((job *)ctx)->done);
}

bool job_done_within(job *j, int64_t ms)
{
    return wait_until(job_is_done, j, ms);
}

void job_join(job *j)
{
    if (!job_done_within(j, LONG_MS))
        fail_msg("a thread hangs in dibs_lock(%s)", j->name);
    pthread_join(j->thread, NULL);
    j->thread = 0;
    if (j->status != DIBS_OK)
        fail_msg("%s: %s", j->name, j->err.message);
    assert_true(j->held);
}

void note_loss(void *data, dibs_grant *g, dibs_loss why)
{
    loss_note *n = data;

    (void)g;
    n->at = clock_ms();
    atomic_store(&n->why, (int)why);
    atomic_fetch_add(&n->count, 1);
}

static bool loss_came(void *ctx)
{
    return atomic_load(&((loss_note *)ctx)->count) > 0;
}

bool loss_within(loss_note *n, int64_t ms)
{
    return wait_until(loss_came, n, ms);
}
