/* The guardian; see the header. Its loop: wait for an order, for a child or for the timer; then
 * look at everything once. Nothing in here may allocate, lock or print. */
#define _GNU_SOURCE
#include "guardian.h"

#include "inherited.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MS     ((int64_t)1000)
#define SECOND ((int64_t)1000000)

#define GRACE_MAX (5 * SECOND)
#define SPARE_MAX (250 * MS) /* what KILL needs */
#define LOOK_MS   50         /* how often to look for what no event tells about */

typedef struct guardian_state {
    const cli_job *job;
    int orders; /* -1: the wrapper is dead */
    int news, timer, children;
    int exec; /* tells whether exec worked; -1: told */
    cli_pack pack;
    cli_schedule schedule;
    cli_reason reason;
    bool end_reported; /* the wrapper knows that the leader ended */
} guardian_state;

/* ---- When ------------------------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A grant that was handed over to a waiter may have much less than its lease left until its first
 * renewal: both spans are also bounded by what is left. */
cli_schedule cli_schedule_make(int64_t now, int64_t deadline, int64_t lease, cli_schedule latest)
{
    int64_t left = most(deadline - now, 0);
    int64_t grace = least(least(lease / 6, GRACE_MAX), left / 4);
    int64_t reserve = least(least(most(lease / 20, 10 * MS), SPARE_MAX), left / 4);
    cli_schedule s = {deadline - reserve - grace, deadline - reserve};

    if (latest.kill_at)
        s = (cli_schedule){least(s.term_at, latest.term_at), least(s.kill_at, latest.kill_at)};
    return s;
}

cli_schedule cli_schedule_within(int64_t start, int64_t span)
{
    int64_t kill_at = start + span - least(span / 25, SPARE_MAX);

    return (cli_schedule){kill_at - least(span / 20, GRACE_MAX), kill_at};
}

cli_schedule cli_schedule_hurry(int64_t now, cli_schedule planned)
{
    return (cli_schedule){now, least(now + GRACE_MAX, planned.kill_at)};
}

/* ---- Starting the command -------------------------------------------------------------------- */

/* Never blocks: a wrapper that is stopped does not read. */
static void report(guardian_state *g, int kind, int value)
{
    cli_news news = {.kind = kind, .value = value};

    while (write(g->news, &news, sizeof news) < 0 && errno == EINTR)
        ;
}

static void exec_command(const cli_job *job, pid_t guardian, int failure)
{
    int code;

    /* Should the guardian be killed, so is the command: nobody would hold its deadline. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guardian)
        _exit(127);
    setpgid(0, 0);
    if (job->terminal >= 0)
        tcsetpgrp(job->terminal, getpid());
    if (job->output) {
        dup2(job->output->write[0], STDOUT_FILENO);
        dup2(job->output->write[1], STDERR_FILENO);
    }
    sigprocmask(SIG_SETMASK, &job->mask, NULL);
    cli_inherited_only();
    execvpe(job->argv[0], job->argv, job->environment);
    code = errno;
    while (write(failure, &code, sizeof code) < 0 && errno == EINTR)
        ;
    _exit(127);
}

/* `exec` is closed by a successful exec and carries errno otherwise. */
static int start_command(guardian_state *g)
{
    int exec[2];
    pid_t self = getpid();

    if (pipe2(exec, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    g->pack.leader = fork();
    if (g->pack.leader < 0)
        return -1;
    if (g->pack.leader == 0)
        exec_command(g->job, self, exec[1]);
    setpgid(g->pack.leader, g->pack.leader);
    close(exec[1]);
    g->exec = exec[0];
    return 0;
}

static void look_at_exec(guardian_state *g)
{
    int code;
    ssize_t n;

    if (g->exec < 0)
        return;
    n = read(g->exec, &code, sizeof code);
    if (n < 0)
        return;
    if (n > 0)
        report(g, CLI_NEWS_NOT_RUN, code);
    else
        report(g, CLI_NEWS_STARTED, g->pack.leader);
    close(g->exec);
    g->exec = -1;
}

/* ---- Ending it ------------------------------------------------------------------------------- */

static void end_now(guardian_state *g, cli_reason reason)
{
    if (g->reason != CLI_REASON_NONE)
        return;
    g->reason = reason;
    g->schedule = cli_schedule_hurry(cli_now(), g->schedule);
    cli_pack_end(&g->pack, SIGTERM);
}

/* Looks at the clock. While ending, a death may have made somebody our child who has not been
 * asked. */
static void keep_schedule(guardian_state *g, bool deaths)
{
    int64_t now = cli_now();

    if (g->reason == CLI_REASON_NONE) {
        if (now >= g->schedule.term_at)
            end_now(g, CLI_REASON_DEADLINE);
    } else if (now >= g->schedule.kill_at) {
        cli_pack_end(&g->pack, SIGKILL);
    } else if (deaths) {
        cli_pack_end_strays(&g->pack, SIGTERM);
    }
}

/* ---- The loop -------------------------------------------------------------------------------- */

static void take_orders(guardian_state *g)
{
    cli_order order;
    ssize_t n;

    while ((n = read(g->orders, &order, sizeof order)) == (ssize_t)sizeof order) {
        if (order.kind == CLI_ORDER_END)
            end_now(g, CLI_REASON_LOST);
        else if (order.kind == CLI_ORDER_SIGNAL)
            cli_pack_signal(&g->pack, order.signal);
        else if (g->reason == CLI_REASON_NONE)
            g->schedule =
                cli_schedule_make(cli_now(), order.deadline, g->job->lease, g->job->latest);
    }
    if (n == 0) {
        close(g->orders);
        g->orders = -1;
        end_now(g, CLI_REASON_ORPHANED);
    }
}

static void arm(guardian_state *g)
{
    int64_t at = g->reason == CLI_REASON_NONE ? g->schedule.term_at : g->schedule.kill_at;
    struct itimerspec when = {.it_value = {.tv_sec = at / SECOND, .tv_nsec = at % SECOND * 1000}};

    timerfd_settime(g->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* While we end it, or when only leftovers run whose end may be reaped by others, events are not
 * enough. */
static void await(guardian_state *g)
{
    struct pollfd fds[] = {{g->orders, POLLIN, 0},
                           {g->children, POLLIN, 0},
                           {g->timer, POLLIN, 0},
                           {g->exec, POLLIN, 0}};
    bool look = g->pack.ended || g->reason != CLI_REASON_NONE;
    struct signalfd_siginfo info;

    arm(g);
    if (cli_now() >= g->schedule.kill_at)
        fds[2].fd = -1; /* it would be readable for ever */
    poll(fds, 4, look ? LOOK_MS : -1);
    while (read(g->children, &info, sizeof info) > 0)
        ;
}

static void report_changes(guardian_state *g)
{
    if (g->pack.stopped)
        report(g, CLI_NEWS_STOPPED, g->pack.stopped);
    g->pack.stopped = 0;
    if (g->pack.ended && !g->end_reported)
        report(g, CLI_NEWS_ENDED, g->pack.status);
    g->end_reported = g->pack.ended;
}

/* Once it is being ended nobody may be left, in the group or out of it; a command that ends by
 * itself may leave behind what left its group. */
static bool finished(const guardian_state *g)
{
    return g->reason == CLI_REASON_NONE ? g->pack.ended && cli_pack_over(&g->pack)
                                        : cli_pack_gone(&g->pack);
}

static void keep_guarding(guardian_state *g)
{
    bool deaths;

    while (!finished(g)) {
        await(g);
        look_at_exec(g);
        take_orders(g);
        deaths = cli_pack_reap(&g->pack);
        report_changes(g);
        keep_schedule(g, deaths);
    }
    report(g, CLI_NEWS_GONE, (int)g->reason);
}

/* ---- Birth ----------------------------------------------------------------------------------- */

static void close_both(const int fds[2])
{
    close(fds[0]);
    close(fds[1]);
}

static int open_events(guardian_state *g)
{
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    g->children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    g->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    return g->children < 0 || g->timer < 0 ? -1 : 0;
}

/* Its own group: what a shell does to the wrapper's job (stop, kill) does not reach it. A command
 * whose output nobody reads any more must get SIGPIPE: we are no reader. */
static void guardian_main(const cli_job *job, int orders, int news)
{
    guardian_state g = {.job = job, .orders = orders, .news = news, .pack = {.status = -1}};
    sigset_t all;
    dibs_status status;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setpgid(0, 0);
    prctl(PR_SET_NAME, "dibs-guardian");
    if (job->output)
        close_both(job->output->read);
    g.schedule = cli_schedule_make(cli_now(), job->deadline, job->lease, job->latest);
    status = dibs_stand_in(job->d);
    if (status != DIBS_OK) {
        report(&g, CLI_NEWS_NO_SUPPORT, (int)status);
        return;
    }
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || open_events(&g) < 0 || start_command(&g) < 0)
        report(&g, CLI_NEWS_NO_SUPPORT, -errno);
    else
        keep_guarding(&g);
}

int cli_guardian_start(const cli_job *job, cli_guardian *out)
{
    int orders[2], news[2], code;

    if (pipe2(orders, O_CLOEXEC | O_NONBLOCK) < 0)
        return errno;
    if (pipe2(news, O_CLOEXEC | O_NONBLOCK) < 0) {
        code = errno;
        close_both(orders);
        return code;
    }
    out->pid = fork();
    if (out->pid == 0) {
        close(orders[1]);
        close(news[0]);
        guardian_main(job, orders[0], news[1]);
        _exit(0);
    }
    code = out->pid < 0 ? errno : 0;
    close(orders[0]);
    close(news[1]);
    out->orders = orders[1];
    out->news = news[0];
    if (code == 0)
        return 0;
    close(out->orders);
    close(out->news);
    return code;
}
