/* The wrapper's loop: signals go to the command, renewals and losses to the guardian, the
 * guardian's news decide what to do.
 *
 * It goes well: the guardian tells STARTED, ENDED with a status, GONE. It fails in three ways. What
 * is held is lost: the guardian is told and ends the command. The guardian dies: its children become
 * ours (we are a subreaper as well) and we end them. The guardian is stopped and lets the time for
 * killing pass: we kill it, and go on as if it had died. */
#include "wrapper.h"
#include "cli.h"
#include "interrupt.h"
#include "terminal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS      ((int64_t)1000)
#define LOOK_MS 50

#define LATE_MAX (125 * MS)

typedef struct wrapper {
    const cli_held *held;
    const char *command;
    cli_guardian guardian;
    cli_terminal terminal;
    int signals;
    int64_t lease;
    int64_t deadline; /* as the guardian knows it */
    cli_schedule schedule;
    cli_pack pack; /* as the guardian tells it; our own when the guardian is dead */
    cli_outcome out;
    bool replaced; /* the guardian was stopped, and we do its work */
    bool over;
} wrapper;

/* ---- Deadline -------------------------------------------------------------------------------- */

/* When what is held ends. The clock is read before, so that a pause in between makes it
 * too early; and again after, so that a long pause makes it nothing. */
static int64_t read_deadline(const cli_held *held)
{
    int64_t before, left;

    do {
        before = cli_now();
        left = held->remaining_ms(held->what) * MS;
    } while (cli_now() - before > 10 * MS);
    return before + left;
}

/* Never blocks: what a stopped guardian does not read is sent again at the next look. */
static bool order(wrapper *w, cli_order what)
{
    return write(w->guardian.orders, &what, sizeof what) == (ssize_t)sizeof what;
}

static void lose(wrapper *w)
{
    if (w->out.lost)
        return;
    w->out.lost = true;
    w->schedule = cli_schedule_hurry(cli_now(), w->schedule);
    order(w, (cli_order){.kind = CLI_ORDER_END});
}

/* Remaining time comes in milliseconds, so that a deadline which stays the same wavers by one. Once
 * the command is gone, the engine decides whether that was in time. */
static void look_at_lease(wrapper *w)
{
    int64_t deadline;

    if (w->out.lost || w->over)
        return;
    if (!w->held->held(w->held->what)) {
        lose(w);
        return;
    }
    deadline = read_deadline(w->held);
    if (deadline > w->deadline - 2 * MS && deadline < w->deadline + 2 * MS)
        return;
    if (order(w, (cli_order){.kind = CLI_ORDER_DEADLINE, .deadline = deadline})) {
        w->deadline = deadline;
        w->schedule = cli_schedule_make(cli_now(), deadline, w->lease, w->held->latest);
    }
}

/* ---- The command: signals, stopping, its end ------------------------------------------------- */

static void pass_on(wrapper *w, int signal)
{
    order(w, (cli_order){.kind = CLI_ORDER_SIGNAL, .signal = signal});
}

static void resume_command(wrapper *w)
{
    if (w->terminal.lent || w->terminal.eager)
        cli_terminal_lend(&w->terminal, w->pack.leader);
    pass_on(w, SIGCONT);
}

/* The command stopped. For reading the terminal that we have: it may have it. Else the job stops
 * with it, so that the shell sees it; a command that was stopped by SIGSTOP is somebody's
 * experiment and no job. */
static void follow_stop(wrapper *w, int signal)
{
    bool wants = signal == SIGTTIN || signal == SIGTTOU;

    if (wants && cli_terminal_lend(&w->terminal, w->pack.leader)) {
        pass_on(w, SIGCONT);
        return;
    }
    if (!wants && signal != SIGTSTP)
        return;
    cli_terminal_return(&w->terminal, w->pack.leader);
    cli_terminal_stop_job(&w->terminal, signal);
    resume_command(w);
}

/* Once the command is gone there is nobody to pass them on to. But they came before that was known, and what
 * sent them may have sent them to the command as well: systemd does. */
static void take_signals(wrapper *w)
{
    struct signalfd_siginfo info;

    while (read(w->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCONT && !w->over)
            resume_command(w);
        else if (info.ssi_signo != SIGCHLD && !w->over)
            pass_on(w, (int)info.ssi_signo);
        if (w->out.stopped == 0 && cli_signal_ends((int)info.ssi_signo))
            w->out.stopped = (int)info.ssi_signo;
    }
}

/* ---- Without a guardian ---------------------------------------------------------------------- */

static void await_children(wrapper *w, int timeout_ms)
{
    struct pollfd fd = {w->signals, POLLIN, 0};
    struct signalfd_siginfo info;

    poll(&fd, 1, timeout_ms);
    while (read(w->signals, &info, sizeof info) > 0)
        ;
}

/* Did the guardian's death hit the command? Not if that had come to its end, as the guardian said or
 * as we see ourselves, with nobody left in its group. */
static bool is_cut_off(wrapper *w)
{
    bool reported = w->pack.ended;

    cli_pack_reap(&w->pack);
    return !cli_pack_over(&w->pack) || !w->pack.ended || (!reported && !WIFEXITED(w->pack.status));
}

/* The leader was killed with the guardian (PR_SET_PDEATHSIG); the rest of its group is ours to end.
 */
static void take_over(wrapper *w)
{
    cli_schedule schedule = cli_schedule_hurry(cli_now(), w->schedule);
    bool deaths;

    w->over = true;
    w->out.cut_off = is_cut_off(w);
    cli_pack_end(&w->pack, SIGTERM);
    while (!cli_pack_gone(&w->pack)) {
        await_children(w, LOOK_MS);
        deaths = cli_pack_reap(&w->pack);
        if (cli_now() >= schedule.kill_at)
            cli_pack_end(&w->pack, SIGKILL);
        else if (deaths)
            cli_pack_end_strays(&w->pack, SIGTERM);
    }
    if (!w->replaced && w->out.cut_off)
        cli_say("the guardian of '%s' was killed; the command was ended", w->command);
}

/* ---- News ------------------------------------------------------------------------------------ */

static void not_run(wrapper *w, int code)
{
    cli_say("cannot run '%s': %s", w->command, strerror(code));
    w->out.failed =
        code == ENOENT || code == ENOTDIR ? CLI_EXIT_NOT_FOUND : CLI_EXIT_NOT_EXECUTABLE;
}

static void no_support(wrapper *w, int value)
{
    cli_say("cannot guard '%s': %s", w->command,
            value < 0 ? strerror(-value) : dibs_status_text((dibs_status)value));
    w->out.failed = value < 0 ? CLI_EXIT_SYSTEM : dibs_status_exit_code((dibs_status)value);
    w->over = true;
}

static void take_news(wrapper *w, cli_news news)
{
    switch (news.kind) {
    case CLI_NEWS_STARTED:
        w->pack.leader = news.value;
        break;
    case CLI_NEWS_NOT_RUN:
        not_run(w, news.value);
        break;
    case CLI_NEWS_NO_SUPPORT:
        no_support(w, news.value);
        break;
    case CLI_NEWS_STOPPED:
        follow_stop(w, news.value);
        break;
    case CLI_NEWS_ENDED:
        w->pack.ended = true;
        w->pack.status = news.value;
        break;
    case CLI_NEWS_GONE:
        w->out.lost |= news.value != CLI_REASON_NONE;
        w->over = true;
        break;
    }
}

static void read_news(wrapper *w)
{
    cli_news news;
    ssize_t n = -1;

    while (!w->over && (n = read(w->guardian.news, &news, sizeof news)) == (ssize_t)sizeof news)
        take_news(w, news);
    if (!w->over && n == 0)
        take_over(w);
}

/* ---- The loop -------------------------------------------------------------------------------- */

/* A guardian that does not kill in time is stopped: its end makes the command ours. Half of what it
 * had in reserve is left for us. */
static void look_at_guardian(wrapper *w)
{
    int64_t late = (w->deadline - w->schedule.kill_at) / 2;

    if (late > LATE_MAX)
        late = LATE_MAX;
    if (w->over || cli_now() < w->schedule.kill_at + late)
        return;
    if (!w->replaced)
        cli_say("the guardian of '%s' is stopped; killing it and ending the command", w->command);
    w->replaced = true;
    w->out.lost = true;
    kill(w->guardian.pid, SIGKILL);
}

/* A quarter of what is left, so that a renewal is passed on long before the old deadline. */
static int until_next_look(const wrapper *w)
{
    int64_t left = (w->schedule.kill_at - cli_now()) / 4;

    if (left > w->lease / 6)
        left = w->lease / 6;
    return left < 10 * MS ? 10 : (int)(left / MS);
}

static void run_until_over(wrapper *w)
{
    struct pollfd fds[] = {
        {w->signals, POLLIN, 0}, {w->guardian.news, POLLIN, 0}, {dibs_fd(w->held->d), POLLIN, 0}};
    dibs_outcome lost;

    while (!w->over) {
        poll(fds, 3, until_next_look(w));
        while (dibs_take(w->held->d, &lost)) /* look_at_lease sees what it says */
            continue;
        read_news(w);
        take_signals(w);
        look_at_lease(w);
        look_at_guardian(w);
    }
}

static int prepare(wrapper *w, const sigset_t *passed_on)
{
    sigset_t all = *passed_on;

    sigaddset(&all, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    w->signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    if (w->signals < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return errno;
    cli_terminal_open(&w->terminal);
    w->deadline = read_deadline(w->held);
    w->schedule = cli_schedule_make(cli_now(), w->deadline, w->lease, w->held->latest);
    return 0;
}

cli_outcome cli_wrap(const cli_held *held, char **argv, char **environment,
                     const cli_output *output, const sigset_t *passed_on, const sigset_t *mask)
{
    wrapper w = {
        .held = held, .command = argv[0], .lease = held->lease_ms * MS, .pack = {.status = -1}};
    cli_job job = {
        .d = held->d, .argv = argv, .environment = environment, .output = output, .mask = *mask};
    int code = prepare(&w, passed_on);

    if (!held->held(held->what)) { /* the first of several may go while the last is waited for */
        w.out.lost = true;
        return w.out;
    }
    job.lease = w.lease;
    job.deadline = w.deadline;
    job.latest = held->latest;
    job.terminal = w.terminal.eager ? w.terminal.fd : -1;
    if (code == 0)
        code = cli_guardian_start(&job, &w.guardian);
    if (code) {
        cli_say("cannot start a guardian for '%s': %s", argv[0], strerror(code));
        w.out.failed = CLI_EXIT_SYSTEM;
        return w.out;
    }
    w.out.started = true;
    run_until_over(&w);
    cli_terminal_return(&w.terminal, w.pack.leader);
    w.out.at_home = w.terminal.lent;
    w.out.status = w.pack.status;
    return w.out;
}

/* ---- Its exit code --------------------------------------------------------------------------- */

static void end_by_interrupt(void)
{
    sigset_t interrupt;

    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    kill(0, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &interrupt, NULL);
}

int cli_exit_code_of(int status)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    return CLI_EXIT_SIGNAL + (status == -1 ? SIGKILL : WTERMSIG(status));
}

int cli_exit_as(const cli_outcome *out)
{
    if (out->at_home && WIFSIGNALED(out->status) && WTERMSIG(out->status) == SIGINT)
        end_by_interrupt();
    return cli_exit_code_of(out->status);
}
