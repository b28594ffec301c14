/* Handles: what every call needs of one, opening by URL, engines as data. How they end: close.c. */
#define _GNU_SOURCE
#include "core/handle.h"

#include "core/error.h"
#include "core/thread.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define DEFAULT_SPAN (5 * DIBS__SECOND)
#define MAX_ABOVE    (INT64_MAX / 2) /* a fence has 63 bits */

/* ---- Small things that every call needs ------------------------------------------------------ */

/* Asked several times in every call, and so without a system call where the system allows it. */
bool dibs__same_process(const dibs *d)
{
    return d->here ? *(const volatile char *)d->here : d->pid == getpid();
}

dibs_status dibs__forked(dibs_error *err)
{
    return dibs__fail(err, DIBS_FORKED,
                      "this handle belongs to the parent process: open one in the child");
}

dibs_status dibs__closing(dibs_error *err)
{
    return dibs__fail(err, DIBS_CANCELLED, "the handle is being closed");
}

dibs_status dibs__check_name(const char *name, dibs_error *err)
{
    size_t n = name ? strnlen(name, DIBS_NAME_MAX + 1) : 0;

    if (n == 0)
        return dibs__fail(err, DIBS_INVALID, "a lock's name must not be empty");
    if (n > DIBS_NAME_MAX)
        return dibs__fail(err, DIBS_INVALID,
                          "the lock's name is too long (at most %d bytes): '%.40s…'", DIBS_NAME_MAX,
                          name);
    return DIBS_OK;
}

void dibs__stamp(dibs *d, char out[DIBS__STAMP_SIZE])
{
    uint64_t n;

    pthread_mutex_lock(&d->mutex);
    n = ++d->attempts_made;
    pthread_mutex_unlock(&d->mutex);
    snprintf(out, DIBS__STAMP_SIZE, "%s-%llx", d->id, (unsigned long long)n);
}

bool dibs__begin_call(dibs *d)
{
    pthread_mutex_lock(&d->mutex);
    d->users++;
    return !d->closing;
}

void dibs__end_call(dibs *d)
{
    if (--d->users == 0)
        pthread_cond_broadcast(&d->quiet);
    pthread_mutex_unlock(&d->mutex);
}

void dibs__stay(dibs *d)
{
    dibs__begin_call(d);
    pthread_mutex_unlock(&d->mutex);
}

void dibs__go(dibs *d)
{
    pthread_mutex_lock(&d->mutex);
    dibs__end_call(d);
}

dibs__deadline dibs__request_until(const dibs *d, dibs__deadline patience)
{
    dibs__deadline until = dibs__after(d->env, d->request_span);

    return patience == DIBS__NEVER ? until : dibs__sooner(until, patience + DIBS__GRACE);
}

void dibs__log_args(dibs *d, dibs_log_level level, const char *format, va_list args)
{
    char line[1024];

    if (!d->log)
        return;
    vsnprintf(line, sizeof line, format, args);
    d->log(d->log_data, level, line);
}

void dibs__log(dibs *d, dibs_log_level level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    dibs__log_args(d, level, format, args);
    va_end(args);
}

static void describe(const dibs__engine_class *class, dibs_engine_info *out)
{
    *out = (dibs_engine_info){
        .scheme = class->scheme,
        .missing = class->missing,
        .across_processes = class->can.across_processes,
        .first_come = class->can.first_come,
        .notices_death = class->can.notices_death,
        .cells = class->can.cells,
        .value_max = class->can.value_max,
        .shared = !class->can.no_shared,
        .slots = !class->can.no_slots,
        .lease_of_handle = class->can.lease_of_handle,
        .fence_of_place = class->can.fence_of_place,
        .forgets_idle = class->can.forgets_idle,
        .names_holder = class->can.names_holder,
    };
}

/* ---- Opening --------------------------------------------------------------------------------- */

dibs_status dibs__check_lease(int64_t lease_ms, dibs_error *err)
{
    return dibs__check_ms("lease_ms", lease_ms, DIBS__MIN_LEASE / DIBS__MS,
                          DIBS__MAX_LEASE / DIBS__MS, 0, err);
}

static dibs_status check_open_options(const dibs_options *o, dibs_error *err)
{
    dibs_status status;

    if (o->owner && (!*o->owner || strlen(o->owner) > DIBS_OWNER_MAX))
        return dibs__fail(err, DIBS_INVALID, "invalid owner: give 1 to %d bytes", DIBS_OWNER_MAX);
    status = DIBS__CHECK_RESERVED(o, err);
    if (status == DIBS_OK)
        status = dibs__check_ms("connect_ms", o->connect_ms, 1, DIBS__MAX_MS, 0, err);
    if (status == DIBS_OK)
        status = dibs__check_ms("request_ms", o->request_ms, 1, DIBS__MAX_MS, 0, err);
    if (status == DIBS_OK)
        status = dibs__check_wait(o->wait_ms, err);
    return status == DIBS_OK ? dibs__check_lease(o->lease_ms, err) : status;
}

/* A page that the kernel empties in a forked child, however it was forked. */
static const char *new_here(void)
{
    char *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return NULL;
    if (madvise(page, 1, MADV_WIPEONFORK) != 0) { /* before Linux 4.14 */
        munmap(page, 1);
        return NULL;
    }
    *page = 1;
    return page;
}

static void fill_identity(dibs *d, const dibs__env *env, const dibs_options *o)
{
    uint64_t id;

    d->env = env;
    d->pid = getpid();
    d->here = new_here();
    d->env->random(d->env->ctx, &id, sizeof id);
    snprintf(d->id, sizeof d->id, "%016llx", (unsigned long long)id);
    if (gethostname(d->host, sizeof d->host - 1) != 0)
        snprintf(d->host, sizeof d->host, "?");
    if (o->owner)
        snprintf(d->owner, sizeof d->owner, "%s", o->owner);
    d->request_span = o->request_ms ? o->request_ms * DIBS__MS : DEFAULT_SPAN;
    d->lease = o->lease_ms ? o->lease_ms * DIBS__MS : DIBS__DEFAULT_LEASE;
    d->run_lease = d->lease;
    d->wait_ms = o->wait_ms ? o->wait_ms : DIBS_FOREVER;
    d->log = o->log;
    d->log_data = o->log_data;
    d->sink = dibs__core_sink;
    d->news.end = &d->news.first;
    d->outcomes.end = &d->outcomes.first;
    d->workers.end = &d->workers.first;
    d->armed = DIBS__NEVER;
}

void dibs__handle_free(dibs *d)
{
    int fds[] = {d->notice_fd, d->timer_fd, d->wake_fd, d->leader_fd};

    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (d->here)
        munmap((void *)(uintptr_t)d->here, 1);
    dibs__table_fini(&d->attempts);
    dibs__table_fini(&d->owners);
    dibs__table_fini(&d->requests);
    dibs__table_fini(&d->watches);
    dibs__heap_fini(&d->due);
    dibs__heap_fini(&d->expiries);
    dibs__heap_fini(&d->exchanges);
    dibs__heap_fini(&d->renewals);
    dibs__heap_fini(&d->maintenance);
    dibs__heap_fini(&d->ends);
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->quiet);
    pthread_cond_destroy(&d->workers.wake);
    pthread_cond_destroy(&d->opening.changed);
    dibs__url_forget(d->opening.url);
    free(d);
}

static dibs_status new_handle(const dibs__env *env, const dibs_options *o, dibs **out,
                              dibs_error *err)
{
    dibs *d = calloc(1, sizeof *d);

    if (!d)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    fill_identity(d, env, o);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->quiet, NULL);
    pthread_cond_init(&d->workers.wake, NULL);
    dibs__cond_init(&d->opening.changed);
    d->notice_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->leader_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (d->notice_fd < 0 || d->wake_fd < 0 || d->leader_fd < 0 || d->timer_fd < 0) {
        dibs_status status =
            dibs__fail(err, DIBS_NO_MEMORY, "no descriptors left: %s", strerror(errno));
        dibs__handle_free(d);
        return status;
    }
    *out = d;
    return DIBS_OK;
}

static dibs_status find_engine(const dibs__url *url, const dibs__engine_class **out,
                               dibs_error *err)
{
    const dibs__engine_class *class = dibs__engine_find(url->scheme);
    char known[256] = "";

    if (class && !class->missing) {
        *out = class;
        return DIBS_OK;
    }
    if (class)
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "this build has no %s engine: install %s and build again", class->scheme,
                          class->missing);
    for (size_t i = 0; dibs__engines[i]; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s:", i ? ", " : "", dibs__engines[i]->scheme);
    }
    /* user:password@host without a scheme begins with what must not be repeated */
    return dibs__fail(err, DIBS_INVALID, "unknown URL scheme '%.40s:'; use one of %s",
                      !url->authority && strchr(url->path, '@') ? "..." : url->scheme, known);
}

/* What listens there is usually something else. */
static void hint_at_port(const dibs__url *url, const dibs__engine_class *class, dibs_error *err)
{
    static const struct {
        int port;
        const char *schemes;
    } usual[] = {{6379, "redis redlock"},
                 {5432, "postgresql"},
                 {3306, "mysql"},
                 {2181, "zookeeper"},
                 {2379, "etcd"}};
    size_t n = err ? strlen(err->message) : 0;

    for (size_t i = 0; err && i < url->host_count; i++)
        for (size_t k = 0; k < sizeof usual / sizeof usual[0]; k++)
            if (url->host[i].port == usual[k].port && !strstr(usual[k].schemes, class->scheme))
                snprintf(err->message + n, sizeof err->message - n,
                         "; port %d is usually that of %s", usual[k].port, usual[k].schemes);
}

dibs_status dibs__url_begin(dibs__url *url, const char *text, const dibs__engine_class **out,
                            dibs_error *err)
{
    char *meant = NULL;
    dibs_status status = text ? DIBS_OK : dibs__url_default(&meant, err);

    memset(url, 0, sizeof *url);
    if (status == DIBS_OK)
        status = dibs__url_parse(url, text ? text : meant, err);
    dibs__url_forget(meant);
    return status == DIBS_OK ? find_engine(url, out, err) : status;
}

/* The engine is there: what the handle learns from it. Requests may have been started already. */
static dibs_status settle_in(dibs *d, dibs__engine *engine, int64_t above, dibs__deadline until,
                             dibs_error *err)
{
    dibs_status status;

    engine->class = d->class;
    d->engine = engine;
    status = dibs__base_open(d, above, until, err);
    if (status != DIBS_OK) {
        d->class->close(engine);
        return status;
    }
    pthread_mutex_lock(&d->mutex);
    d->info_open = d->info;
    d->info_open.lease_ms = engine->session / DIBS__MS;
    if (engine->lease)
        d->lease = engine->lease;
    atomic_store_explicit(&d->ready, true, memory_order_release);
    pthread_mutex_unlock(&d->mutex);
    return DIBS_OK;
}

dibs_status dibs__engine_open(dibs *d, const char *text, const dibs_options *o, dibs_error *err)
{
    dibs__engine *engine = NULL;
    dibs__url url;
    dibs__open_request request = {.url = &url,
                                  .env = d->env,
                                  .sink = &d->sink,
                                  .handle_id = d->id,
                                  .request_span = d->request_span,
                                  .lease = o->lease_ms * DIBS__MS};
    int64_t above = 0;
    const dibs__engine_class *class = NULL;
    dibs_status status = dibs__url_begin(&url, text, &class, err);

    if (status == DIBS_OK && !d->class) /* in the background it is there, and others read it */
        describe(d->class = class, &d->info);
    if (status == DIBS_OK)
        status = dibs__url_take_number(&url, "fence_above", 1, MAX_ABOVE, &above, err);
    if (status == DIBS_OK) {
        request.until =
            dibs__after(d->env, o->connect_ms ? o->connect_ms * DIBS__MS : DEFAULT_SPAN);
        status = d->class->open(&request, &engine, err);
        if (status == DIBS_OK)
            status = settle_in(d, engine, above, request.until, err);
        if (status == DIBS_UNAVAILABLE || status == DIBS_ENGINE_FAILED)
            hint_at_port(&url, d->class, err);
    }
    dibs__url_fini(&url);
    return status;
}

/* What is wrong with the URL is said at once. */
static dibs_status open_later(dibs *d, const char *text, const dibs_options *o, dibs_error *err)
{
    dibs__url url;
    dibs_status status = dibs__url_begin(&url, text, &d->class, err);

    dibs__url_fini(&url);
    if (status == DIBS_OK) {
        describe(d->class, &d->info);
        status = dibs__open_later(d, text, o, err);
    }
    return status;
}

dibs_status dibs__open_in(const dibs__env *env, const char *url, const dibs_options *options,
                          dibs **out, dibs_error *err)
{
    static const dibs_options defaults;
    const dibs_options *o = options ? options : &defaults;
    dibs *d = NULL;
    dibs_status status = check_open_options(o, err);

    *out = NULL;
    if (status == DIBS_OK)
        status = new_handle(env, o, &d, err);
    if (status == DIBS_OK && o->in_background)
        status = open_later(d, url, o, err);
    else if (status == DIBS_OK)
        status = dibs__engine_open(d, url, o, err);
    if (status == DIBS_OK)
        *out = d;
    else if (d)
        dibs__handle_free(d);
    return status;
}

dibs_status dibs__do_open(const char *url, const dibs_options *options, dibs **out, dibs_error *err)
{
    return dibs__open_in(&dibs__env_system, url, options, out, err);
}

dibs_status dibs__do_schema(const char *text, char **out, dibs_error *err)
{
    const dibs__engine_class *class = NULL;
    dibs__url url;
    dibs_status status = dibs__url_begin(&url, text, &class, err);

    *out = NULL;
    if (status == DIBS_OK)
        dibs__url_take(&url, "fence_above"); /* no table depends on it */
    if (status == DIBS_OK && !class->schema)
        status = dibs__fail(err, DIBS_UNSUPPORTED, "%s: this engine has no tables to create",
                            class->scheme);
    else if (status == DIBS_OK)
        status = class->schema(&url, out, err);
    dibs__url_fini(&url);
    return status;
}

/* ---- Engines as data ------------------------------------------------------------------------- */

#define ENGINES_MAX 16

static dibs_engine_info described[ENGINES_MAX + 1];

static void describe_all(void)
{
    for (size_t i = 0; i < ENGINES_MAX && dibs__engines[i]; i++)
        describe(dibs__engines[i], &described[i]);
}

const dibs_engine_info *dibs_engine_at(size_t i)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, describe_all);
    return i < ENGINES_MAX && described[i].scheme ? &described[i] : NULL;
}

const dibs_engine_info *dibs_engine_of(const dibs *d)
{
    return dibs__is_open(d) ? &d->info_open : &d->info;
}

const char *dibs_engine_name(const dibs *d)
{
    return d->class->scheme;
}

dibs_status dibs_stand_in(dibs *d)
{
    return d->class->stand_in && dibs__is_open(d) ? d->class->stand_in(d->engine) : DIBS_OK;
}

void dibs_stats_read(dibs *d, dibs_stats *out, size_t size)
{
    memset(out, 0, size);
    if (!dibs__same_process(d))
        return;
    pthread_mutex_lock(&d->mutex);
    memcpy(out, &d->stats, size < sizeof d->stats ? size : sizeof d->stats);
    pthread_mutex_unlock(&d->mutex);
}
