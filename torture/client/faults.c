/* Faults, one at a time and sometimes a second one while the first lasts. Each has an id; its beginning and
 * its end are written to faults.jsonl, the first before and the second after the deed, so that what happened
 * lies between them. */
#define _GNU_SOURCE
#include "coordinator.h"

#include "cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define COMMAND_LIMIT (120 * TORTURE_SECOND) /* a command that takes longer has failed */
#define UNDO_LIMIT    (30 * TORTURE_SECOND)
#define BREAK_WAIT_MS 5000

const char *const torture_fault_names[] = {"stop", "kill", "cut", "break", NULL};

static const char *name_of(const torture_fault *f)
{
    int bit = 0;

    while (f->kind >> bit > 1)
        bit++;
    return f->declared ? f->declared->name : torture_fault_names[bit];
}

static void note(torture_coordinator *c, const torture_fault *f, const char *event)
{
    torture_note(c->faults_fd, torture_now(), event, "{s:s,s:i,s:o,s:b}", "fault", name_of(f), "id",
                 f->id, "worker", f->worker ? json_integer(f->worker) : json_null(), "failed",
                 f->failed);
}

/* The calm part begins after the last fault and keeps its length, however late that fault ended. */
void torture_faults_delay_calm(torture_coordinator *c)
{
    int64_t late = torture_now() - c->calm;

    if (late > 0) {
        c->calm += late;
        c->end += late;
    }
}

static void over(torture_coordinator *c, torture_fault *f)
{
    note(c, f, "end");
    torture_faults_delay_calm(c);
    if (f->slot >= 0)
        c->slots[f->slot].taken = false;
    f->phase = TORTURE_IDLE;
    c->next = torture_now() + torture_between(&c->random, c->plan->gap.low, c->plan->gap.high);
}

/* ---- Choosing --------------------------------------------------------------------------------- */

/* A worker that no other fault has; mostly one that is likely to hold a lock. -1: there is none. */
static int choose_slot(torture_coordinator *c)
{
    int found = -1, count = 0;
    bool writing = torture_chance(&c->random, 75);

    for (int again = 0; again < 2 && found < 0; again++, writing = false)
        for (int i = 0; i < c->plan->processes; i++) {
            const torture_slot *s = &c->slots[i];
            if (s->pid > 0 && !s->taken && !s->killed && (!writing || s->writing) &&
                torture_between(&c->random, 0, count++) == 0)
                found = i;
        }
    return found;
}

/* Every kind is as likely as any other. */
static void choose_kind(torture_coordinator *c, torture_fault *f)
{
    unsigned kinds[4 + TORTURE_DECLARED_MAX] = {0};
    int64_t count = 0, chosen;

    for (int i = 0; torture_fault_names[i]; i++)
        if (c->plan->faults & 1U << i)
            kinds[count++] = 1U << i;
    chosen = torture_between(&c->random, 0, count + (int64_t)c->plan->declared_count - 1);
    if (chosen < count)
        f->kind = kinds[chosen];
    else
        f->declared = &c->plan->declared[chosen - count];
}

/* ---- Declared faults -------------------------------------------------------------------------- */

static void run_command(torture_fault *f, const char *verb)
{
    char script[4096];

    snprintf(script, sizeof script, "%s \"$@\"", f->declared->command);
    f->until = torture_now() + COMMAND_LIMIT;
    f->pid = fork();
    if (f->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setpgid(0, 0);       /* Ctrl-C is for the coordinator */
        if (dup2(2, 1) != 1) /* stdout is for the report */
            _exit(127);
        signal(SIGPIPE, SIG_DFL);
        execl("/bin/sh", "sh", "-c", script, "sh", verb, (char *)NULL);
        _exit(127);
    }
}

static void command_done(torture_coordinator *c, torture_fault *f, int status)
{
    bool begun = f->phase == TORTURE_BEGINNING;

    f->pid = 0;
    if (status != 0 && !f->kind) {
        cli_say("the command of fault '%s' failed at its %s: %s %d", name_of(f),
                begun ? "beginning" : "end", WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        f->failed = c->failed = true;
    }
    if (!begun) {
        over(c, f);
        return;
    }
    f->phase = TORTURE_LASTING;
    f->until =
        torture_now() + torture_between(&c->random, c->plan->lasting.low, c->plan->lasting.high);
    if (f->until > c->calm)
        f->until = c->calm;
}

void torture_faults_reap(torture_coordinator *c, pid_t pid, int status)
{
    for (int i = 0; i < TORTURE_FAULTS_AT_ONCE; i++)
        if (c->fault[i].phase != TORTURE_IDLE && c->fault[i].pid == pid)
            command_done(c, &c->fault[i], status);
}

/* ---- Breaking --------------------------------------------------------------------------------- */

/* An operator, in a process of its own: breaking waits until the holder has let go. */
static void run_break(torture_coordinator *c, torture_fault *f)
{
    int64_t lock = torture_between(&c->random, 0, c->plan->locks - 1);
    pid_t parent = getpid();
    const dibs_options how = {.lease_ms = c->plan->lease_ms,
                              .request_ms = TORTURE_REQUEST_MS,
                              .connect_ms = TORTURE_REQUEST_MS};
    char name[96];
    dibs *d = NULL;

    f->phase = TORTURE_ENDING;
    f->until = torture_now() + COMMAND_LIMIT;
    f->pid = fork();
    if (f->pid != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    if (getppid() != parent || dibs_open(c->plan->url, &how, &d, NULL) != DIBS_OK)
        _exit(0);
    torture_lock_name(c->plan, lock, name);
    dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "torture", .wait_ms = BREAK_WAIT_MS},
                    NULL);
    dibs_close(d);
    _exit(0);
}

/* ---- Beginning and ending --------------------------------------------------------------------- */

static void begin_cut(torture_coordinator *c, torture_fault *f)
{
    bool all = f->slot < 0;

    for (int i = all ? 0 : f->slot; i < (all ? c->plan->processes : f->slot + 1); i++)
        if (c->slots[i].pid > 0 && torture_cut(c->slots[i].pid) < 0) {
            cli_say("cannot cut the connections of worker %d: %s", c->slots[i].number,
                    strerror(errno));
            f->failed = c->failed = true;
            break;
        }
    over(c, f);
}

static int64_t length_of(torture_coordinator *c, const torture_fault *f)
{
    int64_t chosen = torture_between(&c->random, c->plan->lasting.low, c->plan->lasting.high);
    int64_t lease = c->plan->lease_ms * TORTURE_MS;

    if (f->kind == TORTURE_KILL)
        return torture_between(&c->random, 0, TORTURE_SECOND / 2);
    if (f->kind == TORTURE_STOP && chosen < lease + lease / 4)
        return torture_between(&c->random, lease + lease / 4, lease * 2);
    return chosen;
}

static void begin(torture_coordinator *c, torture_fault *f)
{
    *f = (torture_fault){.slot = -1};
    choose_kind(c, f);
    f->until = torture_now() + length_of(c, f);
    if (f->kind & (TORTURE_STOP | TORTURE_KILL) ||
        (f->kind == TORTURE_CUT && torture_chance(&c->random, 60)))
        f->slot = choose_slot(c);
    if ((f->slot < 0 && f->kind & (TORTURE_STOP | TORTURE_KILL)) || f->until > c->calm)
        return; /* nobody to do it to, or no time left */
    f->id = ++c->faults;
    if (f->slot >= 0) {
        f->worker = c->slots[f->slot].number;
        c->slots[f->slot].taken = true;
    }
    f->phase = f->declared ? TORTURE_BEGINNING : TORTURE_LASTING;
    c->single = !torture_chance(&c->random, 25);
    c->next = torture_now() + torture_between(&c->random, 0, f->until - torture_now());
    note(c, f, "begin");
    if (f->kind == TORTURE_KILL)
        c->slots[f->slot].killed = true;
    if (f->kind & (TORTURE_STOP | TORTURE_KILL))
        kill(-c->slots[f->slot].pid, f->kind == TORTURE_STOP ? SIGSTOP : SIGKILL);
    else if (f->kind == TORTURE_CUT)
        begin_cut(c, f);
    else if (f->kind == TORTURE_BREAK)
        run_break(c, f);
    else
        run_command(f, "begin");
}

/* Time is up: undoes it, or gives its command no more time. */
static void end(torture_coordinator *c, torture_fault *f)
{
    torture_slot *s = f->slot >= 0 ? &c->slots[f->slot] : NULL;

    if (f->phase != TORTURE_LASTING) {
        if (f->pid > 0)
            kill(-f->pid, SIGKILL);
    } else if (f->kind == TORTURE_STOP) {
        kill(-s->pid, SIGCONT);
        over(c, f);
    } else if (f->kind == TORTURE_KILL && s->pid == 0) {
        torture_spawn(c, f->slot);
        over(c, f);
    } else if (f->declared) {
        f->phase = TORTURE_ENDING;
        run_command(f, "end");
    }
}

bool torture_faults_last(const torture_coordinator *c)
{
    for (int i = 0; i < TORTURE_FAULTS_AT_ONCE; i++)
        if (c->fault[i].phase != TORTURE_IDLE)
            return true;
    return false;
}

void torture_faults_step(torture_coordinator *c)
{
    int64_t now = torture_now();
    bool lasts;

    for (int i = 0; i < TORTURE_FAULTS_AT_ONCE; i++)
        if (c->fault[i].phase != TORTURE_IDLE && now >= c->fault[i].until)
            end(c, &c->fault[i]);
    lasts = torture_faults_last(c);
    if (now < c->next || now >= c->calm || (lasts && c->single) ||
        (c->plan->faults == 0 && c->plan->declared_count == 0))
        return;
    for (int i = 0; i < TORTURE_FAULTS_AT_ONCE; i++)
        if (c->fault[i].phase == TORTURE_IDLE) {
            begin(c, &c->fault[i]);
            c->single |= lasts; /* two at a time are enough */
            return;
        }
}

/* Waits for the command of a run that ends, but not for ever; its status. */
static int wait_for(torture_fault *f)
{
    int64_t until = torture_now() + UNDO_LIMIT;
    int status = 0;

    while (f->pid > 0 && waitpid(f->pid, &status, WNOHANG) == 0) {
        if (torture_now() > until)
            kill(-f->pid, SIGKILL);
        torture_sleep(TORTURE_TICK_MS * TORTURE_MS);
    }
    f->pid = 0;
    return status;
}

/* What the run's end cuts short: a stopped worker goes on (to be killed), a declared fault is undone. */
void torture_faults_end(torture_coordinator *c)
{
    for (int i = 0; i < TORTURE_FAULTS_AT_ONCE; i++) {
        torture_fault *f = &c->fault[i];
        bool begun = f->phase == TORTURE_BEGINNING || f->phase == TORTURE_LASTING;
        if (f->phase == TORTURE_IDLE)
            continue;
        if (f->kind == TORTURE_BREAK && f->pid > 0)
            kill(-f->pid, SIGKILL);
        wait_for(f);
        if (f->declared && begun) {
            run_command(f, "end");
            f->failed |= wait_for(f) != 0;
        } else if (f->kind == TORTURE_STOP && c->slots[f->slot].pid > 0) {
            kill(-c->slots[f->slot].pid, SIGCONT);
        }
        over(c, f);
    }
}
