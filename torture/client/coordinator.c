/* The coordinator: starts the workers, serves the resource, lets the faults step, and ends everything.
 *
 * It is one thread without a handle of the library, so that it can fork at any time. Its death ends every
 * child (PR_SET_PDEATHSIG); a signal to end lets it end them itself. */
#define _GNU_SOURCE
#include "coordinator.h"

#include "cli/cli.h"
#include "cli/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALM_BEGIN TORTURE_SECOND

static volatile sig_atomic_t ended_by; /* the signal that came */

static void on_signal(int number)
{
    ended_by = number;
}

/* ---- Workers ---------------------------------------------------------------------------------- */

/* In the child: a group of its own (the terminal's Ctrl-C is for the coordinator; an adapter belongs to
 * it), no descriptor of the others. */
static void become_worker(torture_coordinator *c, int slot, int number, int socket, pid_t parent)
{
    torture_worker w = {
        .plan = c->plan, .shared = c->shared, .number = number, .slot = slot, .socket = socket};
    char name[32];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    setpgid(0, 0);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_DFL); /* as in most programs */
    for (int64_t i = 0; i < c->plan->processes; i++)
        if (c->slots[i].socket >= 0)
            close(c->slots[i].socket);
    close(c->resource_fd);
    close(c->faults_fd);
    w.random = (uint64_t)c->plan->seed * 0x10001U + (uint64_t)number;
    torture_random(&w.random);
    snprintf(name, sizeof name, "worker-%04d.jsonl", number);
    w.history = torture_history_open(c->folder, name);
    if (w.history < 0) {
        cli_say("cannot write the history: %s: %s", name, strerror(errno));
        _exit(CLI_EXIT_OUTPUT);
    }
    _exit(torture_worker_main(&w));
}

bool torture_spawn(torture_coordinator *c, int slot)
{
    torture_slot *s = &c->slots[slot];
    pid_t parent = getpid();
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        cli_say("cannot start a worker: %s", strerror(errno));
        return false;
    }
    *s = (torture_slot){.number = ++c->workers, .socket = pair[0]};
    s->pid = fork();
    if (s->pid == 0)
        become_worker(c, slot, s->number, pair[1], parent);
    close(pair[1]);
    if (s->pid < 0) {
        cli_say("cannot start a worker: %s", strerror(errno));
        s->pid = 0;
        return false;
    }
    setpgid(s->pid, s->pid); /* both do it: whoever comes second is not late */
    torture_note(c->faults_fd, torture_now(), "spawn", "{s:i,s:i,s:i}", "worker", s->number, "pid",
                 (int)s->pid, "slot", slot);
    return true;
}

static void note_exit(torture_coordinator *c, torture_slot *s, int status)
{
    bool signaled = WIFSIGNALED(status);
    int code = signaled ? WTERMSIG(status) : WEXITSTATUS(status);

    torture_note(c->faults_fd, torture_now(), "exit", "{s:i,s:i}", "worker", s->number,
                 signaled ? "signal" : "code", code);
    if ((signaled && s->killed) || (!signaled && code == 0))
        return;
    cli_say("worker %d died by itself: %s %d", s->number, signaled ? "signal" : "exit code", code);
    c->deaths++;
}

static void forget(torture_slot *s)
{
    if (s->socket >= 0)
        close(s->socket);
    s->socket = -1;
    s->pid = 0;
}

/* Takes note of children that are gone. A worker that died by itself is replaced unless the run ends. */
static void reap(torture_coordinator *c)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        int slot = 0;
        while (slot < c->plan->processes && c->slots[slot].pid != pid)
            slot++;
        if (slot == c->plan->processes) {
            torture_faults_reap(c, pid, status);
            continue;
        }
        bool killed = c->slots[slot].killed;
        note_exit(c, &c->slots[slot], status);
        while (c->slots[slot].socket >= 0) /* what it said before */
            torture_serve(c, slot);
        forget(&c->slots[slot]);
        if (!killed && !atomic_load(&c->shared->stopping))
            torture_spawn(c, slot);
    }
}

static int alive(const torture_coordinator *c)
{
    int n = 0;

    for (int64_t i = 0; i < c->plan->processes; i++)
        n += c->slots[i].pid > 0;
    return n;
}

static void kill_all(torture_coordinator *c)
{
    for (int64_t i = 0; i < c->plan->processes; i++) {
        torture_slot *s = &c->slots[i];
        if (s->pid <= 0)
            continue;
        s->killed = true;
        kill(-s->pid, SIGKILL);
        while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        torture_note(c->faults_fd, torture_now(), "exit", "{s:i,s:i,s:b}", "worker", s->number,
                     "signal", SIGKILL, "overdue", true);
        forget(s);
    }
}

/* ---- The run ---------------------------------------------------------------------------------- */

/* Serves who has something to say, for a tick at most. */
static void poll_once(torture_coordinator *c)
{
    struct pollfd fds[TORTURE_PROCESSES_MAX];
    int n = (int)c->plan->processes;

    for (int i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = c->slots[i].socket, .events = POLLIN};
    if (poll(fds, (nfds_t)n, TORTURE_TICK_MS) > 0)
        for (int i = 0; i < n; i++)
            if (fds[i].revents && c->slots[i].socket == fds[i].fd)
                torture_serve(c, i);
    reap(c);
}

static bool goes_on(torture_coordinator *c)
{
    if (torture_faults_last(c))
        torture_faults_delay_calm(c);
    return torture_now() < c->end && !ended_by && !c->failed;
}

/* Workers finish their turn and close: the longest wait, the longest hold, the end of a handle. */
static void let_finish(torture_coordinator *c)
{
    int64_t until =
        torture_now() +
        (TORTURE_WAIT_MAX_MS + 2 * c->plan->lease_ms + 2 * TORTURE_REQUEST_MS + 4000) * TORTURE_MS;

    atomic_store(&c->shared->stopping, true);
    while (alive(c) > 0 && torture_now() < until && !ended_by)
        poll_once(c);
    if (alive(c) > 0 && !ended_by) {
        cli_say("%d workers did not end in time", alive(c));
        c->deaths += alive(c);
    }
}

static json_t *names_of(const char *const names[], unsigned bits)
{
    json_t *list = json_array();

    for (int i = 0; names[i]; i++)
        if (bits & 1U << i)
            json_array_append_new(list, json_string(names[i]));
    return list;
}

static bool write_meta(const torture_coordinator *c, int64_t end)
{
    const torture_plan *p = c->plan;
    json_t *locks = json_array(), *faults = names_of(torture_fault_names, p->faults), *meta;
    char name[4096], url[4096];
    bool done;

    for (int64_t i = 0; i < p->locks; i++) {
        torture_lock_name(p, i, name);
        json_array_append_new(locks, json_string(name));
    }
    for (size_t i = 0; i < p->declared_count; i++)
        json_array_append_new(faults, json_string(p->declared[i].name));
    snprintf(url, sizeof url, "%s", p->url ? p->url : "");
    cli_hide_login(url, strlen(url));
    meta = json_pack(
        "{s:i,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:s?,s:b,s:b,s:b,s:i,s:i,s:I,s:I,s:o}",
        "format", 1, "version", dibs_version(), "url", url, "engine", p->engine, "seed",
        (json_int_t)p->seed, "seconds", (json_int_t)p->seconds, "processes",
        (json_int_t)p->processes, "lease_ms", (json_int_t)p->lease_ms, "locks", locks, "work",
        names_of(torture_work_names, p->work), "faults", faults, "adapter", p->adapter,
        "first_come", p->first_come, "notices_death", p->notices_death, "lease_of_handle",
        p->lease_of_handle, "request_ms", TORTURE_REQUEST_MS, "connect_ms",
        p->adapter ? TORTURE_ADAPTER_MS : TORTURE_REQUEST_MS, "begin", (json_int_t)c->shared->begin,
        "calm", (json_int_t)c->calm, "end", end ? json_integer((json_int_t)end) : json_null());
    snprintf(name, sizeof name, "%s/meta.json", c->folder);
    done = meta && json_dump_file(meta, name, JSON_INDENT(1)) == 0;
    json_decref(meta);
    if (!done)
        cli_say("cannot write the history: %s: %s", name, strerror(errno));
    return done;
}

static bool set_up(torture_coordinator *c)
{
    c->slots = calloc((size_t)c->plan->processes, sizeof *c->slots);
    c->shared =
        mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    c->resource_fd = torture_history_open(c->folder, "resource.jsonl");
    c->faults_fd = torture_history_open(c->folder, "faults.jsonl");
    if (!c->slots || c->shared == MAP_FAILED || c->resource_fd < 0 || c->faults_fd < 0) {
        cli_say("cannot write the history into %s: %s", c->folder, strerror(errno));
        return false;
    }
    for (int64_t i = 0; i < c->plan->processes; i++)
        c->slots[i].socket = -1;
    c->random = (uint64_t)c->plan->seed;
    c->shared->begin = torture_now();
    return write_meta(c, 0);
}

static void take_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction how = {.sa_handler = on_signal}, before;

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &how, NULL);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
}

/* The time counts from when all workers have opened: adapters may be slow to start. */
static void wait_opened(torture_coordinator *c)
{
    int64_t calm = 2 * c->plan->lease_ms > 4000 ? 2 * c->plan->lease_ms : 4000;
    int64_t until = torture_now() + TORTURE_ADAPTER_MS * TORTURE_MS;

    while (c->opened < c->plan->processes && torture_now() < until && !ended_by)
        poll_once(c);
    c->next = torture_now() + CALM_BEGIN;
    c->end = torture_now() + c->plan->seconds * TORTURE_SECOND;
    c->calm = c->end - calm * TORTURE_MS - 2 * TORTURE_SECOND;
}

static bool work(torture_coordinator *c)
{
    bool started = true;

    for (int i = 0; i < c->plan->processes && started; i++)
        started = torture_spawn(c, i);
    if (started)
        wait_opened(c);
    while (started && c->opened > 0 && goes_on(c)) {
        torture_faults_step(c);
        poll_once(c);
    }
    torture_faults_end(c);
    if (started && c->opened > 0 && !ended_by && !c->failed)
        let_finish(c);
    kill_all(c);
    return started;
}

/* What the run came to; -1: the checker has the word. */
static int conclude(torture_coordinator *c)
{
    int64_t now = torture_now();

    if (ended_by) {
        cli_say("interrupted");
        return CLI_EXIT_SIGNAL + ended_by;
    }
    if (c->failed)
        return CLI_EXIT_SYSTEM;
    if (c->opened == 0) {
        cli_say("no worker could reach the %s",
                c->plan->adapter ? "lock through the adapter" : "engine");
        return dibs_status_exit_code(DIBS_UNAVAILABLE);
    }
    torture_resource_end(c);
    torture_final(c->plan, c->shared, c->resource_fd);
    if (!write_meta(c, c->end < now ? c->end : now))
        return CLI_EXIT_OUTPUT;
    return c->deaths > 0 ? 1 : -1;
}

int torture_run(torture_plan *plan, const char *folder)
{
    torture_coordinator c = {.plan = plan, .folder = folder};
    int code = CLI_EXIT_SYSTEM;

    take_signals();
    if (set_up(&c) && work(&c))
        code = conclude(&c);
    free(c.slots);
    return code;
}
