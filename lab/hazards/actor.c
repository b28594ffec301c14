/* Actors; see the header. Steps and outcomes are fixed-size messages over two pipes. */
#define _GNU_SOURCE
#include "actor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN_MS 20000

typedef struct message {
    lab_step step;
    int64_t wait_ms;
} message;

typedef struct strike {
    const char *point;
    int signal;
    int count;
} strike;

/* ---- In the actor's process ------------------------------------------------------------------ */

static void at_point(lab_buyer *buyer, const char *name)
{
    strike *s = buyer->point_data;

    if (!s->point || strcmp(s->point, name) != 0)
        return;
    if (s->count++ == 0)
        raise(s->signal);
}

static void work(int64_t us)
{
    for (int64_t until = lab_now_us() + us; lab_now_us() < until;)
        usleep(5000);
}

static void act(lab_buyer *buyer, const message *m, lab_answer *out)
{
    const lab_strategy *s = buyer->strategy;

    buyer->note[0] = '\0';
    buyer->pace.wait_ms = m->wait_ms;
    switch (m->step) {
    case LAB_STEP_OPEN:
        out->yes = (!s->open_process || s->open_process(buyer)) && lab_buyer_open(buyer);
        break;
    case LAB_STEP_LOCK:
        out->yes = s->lock(buyer);
        break;
    case LAB_STEP_SELL:
        out->sale = s->sell ? s->sell(buyer) : lab_sell(buyer);
        out->yes = out->sale == LAB_SOLD;
        break;
    case LAB_STEP_UNLOCK:
        out->yes = s->unlock(buyer);
        break;
    case LAB_STEP_WORK:
        work(buyer->pace.work_us);
        out->yes = true;
        break;
    case LAB_STEP_END:
        break;
    }
    memcpy(out->note, buyer->note, sizeof out->note);
}

static void actor_main(const lab_role *role, int in, int out)
{
    strike hit = {.point = role->point, .signal = role->strike};
    lab_buyer buyer = {.strategy = role->strategy,
                       .site = role->site,
                       .pace = role->pace,
                       .process = getpid(),
                       .resource = role->resource,
                       .point = at_point,
                       .point_data = &hit};
    message m;

    while (read(in, &m, sizeof m) == sizeof m && m.step != LAB_STEP_END) {
        lab_answer answer = {0};
        act(&buyer, &m, &answer);
        answer.struck = hit.count;
        if (write(out, &answer, sizeof answer) != sizeof answer)
            break;
    }
    _exit(0); /* as a process ends that has other things to do: nothing is given back */
}

/* ---- In the director's ----------------------------------------------------------------------- */

static pid_t spawn(const lab_role *role, int in, int out)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    if (getppid() == parent)
        actor_main(role, in, out);
    _exit(1);
}

bool lab_actor_start(lab_actor *a, const lab_role *role, char why[256])
{
    int in[2], out[2];
    lab_answer answer = {0};

    *a = (lab_actor){-1, -1, -1};
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        snprintf(why, 256, "no pipe: %s", strerror(errno));
        return false;
    }
    a->pid = spawn(role, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    a->in = in[1];
    a->out = out[0];
    if (lab_actor_do(a, LAB_STEP_OPEN, 0, OPEN_MS, &answer))
        return true;
    snprintf(why, 256, "%s", answer.note[0] ? answer.note : "no connection in time");
    lab_actor_end(a);
    return false;
}

void lab_actor_order(lab_actor *a, lab_step step, int64_t wait_ms)
{
    message m = {step, wait_ms};

    if (write(a->in, &m, sizeof m) != sizeof m)
        return; /* a dead actor answers nothing, which is noticed there */
}

int lab_actor_hear(lab_actor *a, int64_t ms, lab_answer *out)
{
    struct pollfd p = {.fd = a->out, .events = POLLIN};
    int64_t until = lab_now_us() + ms * 1000, left;

    do {
        left = (until - lab_now_us() + 999) / 1000;
        if (poll(&p, 1, left > 0 ? (int)left : 0) > 0)
            return read(a->out, out, sizeof *out) == sizeof *out ? 1 : -1;
    } while (lab_now_us() < until);
    return 0;
}

bool lab_actor_do(lab_actor *a, lab_step step, int64_t wait_ms, int64_t ms, lab_answer *out)
{
    lab_actor_order(a, step, wait_ms);
    return lab_actor_hear(a, ms, out) == 1 && out->yes;
}

void lab_actor_signal(lab_actor *a, int signal)
{
    if (a->pid > 0)
        kill(a->pid, signal);
}

bool lab_actor_stopped(lab_actor *a, int64_t ms)
{
    for (int64_t until = lab_now_us() + ms * 1000; lab_now_us() < until; usleep(2000)) {
        int status;
        if (waitpid(a->pid, &status, WNOHANG | WUNTRACED) == a->pid)
            return WIFSTOPPED(status);
    }
    return false;
}

void lab_actor_end(lab_actor *a)
{
    if (a->pid > 0) {
        kill(a->pid, SIGKILL);
        waitpid(a->pid, NULL, 0);
    }
    if (a->in >= 0)
        close(a->in);
    if (a->out >= 0)
        close(a->out);
    *a = (lab_actor){-1, -1, -1};
}

/* ---- Scenes ---------------------------------------------------------------------------------- */

bool lab_scene(const lab_strategy *s, const lab_site *site, int64_t stock, char resource[64],
               char why[256])
{
    static int count;
    lab_buyer books = {.strategy = s, .site = site, .resource = resource};
    bool set;

    snprintf(resource, 64, "hazard:%d:%d", (int)getpid(), count++);
    set = lab_stock_open(&books) && lab_stock_set(&books, stock);
    snprintf(why, 256, "%s", books.note);
    lab_stock_close(&books);
    return set;
}

bool lab_scene_stock(const lab_strategy *s, const lab_site *site, const char *resource,
                     int64_t *left)
{
    lab_buyer books = {.strategy = s, .site = site, .resource = resource};
    bool read = lab_stock_open(&books) && lab_stock_read(&books, left);

    lab_stock_close(&books);
    return read;
}

const char *lab_lease_words(const lab_strategy *s, int64_t asked_ms, char out[32])
{
    if (s->no_lease)
        snprintf(out, 32, "no lease");
    else
        snprintf(out, 32, "lease %lld ms", (long long)lab_lease(s, asked_ms));
    return out;
}

void lab_found(lab_finding *f, lab_outcome outcome, const char *format, ...)
{
    va_list list;

    f->outcome = outcome;
    va_start(list, format);
    vsnprintf(f->text, sizeof f->text, format, list);
    va_end(list);
}
