/* Signals of the wrapper, and the thread that minds them while it waits; see the header. */
#define _GNU_SOURCE
#include "interrupt.h"
#include "cli.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define AGAIN_MS  20
#define SILENT_MS 1000 /* a wait that takes longer is explained */

static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH};

struct cli_interrupt {
    pthread_t thread;
    int signals; /* signalfd of the ending ones */
    int quit;    /* eventfd */
    _Atomic(dibs *) d;
    int signal;
    cli_waiting_fn waiting; /* NULL: not, or done */
    void *data;
};

static bool is_ignored(int signal)
{
    struct sigaction now;

    return sigaction(signal, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void add_all(sigset_t *set, const int *signals, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!is_ignored(signals[i]))
            sigaddset(set, signals[i]);
}

bool cli_signal_ends(int signal)
{
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        if (ending[i] == signal)
            return true;
    return false;
}

/* SIGTSTP keeps its default action as long as there is no command that could stop with us. */
void cli_signals_take(sigset_t *passed_on, sigset_t *mask_before)
{
    sigset_t blocked;

    signal(SIGCHLD, SIG_DFL);
    sigemptyset(passed_on);
    add_all(passed_on, passed, sizeof passed / sizeof passed[0]);
    blocked = *passed_on;
    sigaddset(&blocked, SIGCHLD);
    sigaddset(&blocked, SIGPIPE);
    sigaddset(&blocked, SIGTTOU);
    pthread_sigmask(SIG_BLOCK, &blocked, mask_before);
    add_all(passed_on, &(int){SIGTSTP}, 1);
}

/* A cancel that comes before the wait has begun finds nothing: it is repeated until the wait is
 * over. */
static void *mind(void *data)
{
    cli_interrupt *i = data;
    struct pollfd fds[] = {{i->quit, POLLIN, 0}, {i->signals, POLLIN, 0}};
    struct signalfd_siginfo info;
    dibs *d;

    for (;;) {
        if (poll(fds, 2, i->signal ? AGAIN_MS : i->waiting ? SILENT_MS : -1) < 0)
            continue;
        if (fds[0].revents)
            return NULL;
        d = atomic_load(&i->d);
        if (i->waiting && d && !fds[1].revents) {
            i->waiting(i->data, d);
            i->waiting = NULL;
        }
        if (fds[1].revents && read(i->signals, &info, sizeof info) > 0 && i->signal == 0)
            i->signal = (int)info.ssi_signo;
        if (i->signal == 0)
            continue;
        if (!d)
            _exit(CLI_EXIT_SIGNAL + i->signal);
        dibs_cancel(d, NULL);
    }
}

static void discard(cli_interrupt *i)
{
    if (i->signals >= 0)
        close(i->signals);
    if (i->quit >= 0)
        close(i->quit);
    free(i);
}

cli_interrupt *cli_interrupt_start(const sigset_t *passed_on, cli_waiting_fn waiting, void *data)
{
    cli_interrupt *i = calloc(1, sizeof *i);
    sigset_t set, all, before;
    int failed;

    if (!i)
        return NULL;
    i->waiting = isatty(STDERR_FILENO) ? waiting : NULL;
    i->data = data;
    sigemptyset(&set);
    add_all(&set, ending, sizeof ending / sizeof ending[0]);
    sigandset(&set, &set, passed_on);
    i->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    i->quit = eventfd(0, EFD_CLOEXEC);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = i->signals < 0 || i->quit < 0 || pthread_create(&i->thread, NULL, mind, i) != 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        return i;
    discard(i);
    return NULL;
}

void cli_interrupt_watch(cli_interrupt *i, dibs *d)
{
    atomic_store(&i->d, d);
}

int cli_interrupt_end(cli_interrupt *i)
{
    int signal;

    if (!i)
        return 0;
    eventfd_write(i->quit, 1);
    pthread_join(i->thread, NULL);
    signal = i->signal;
    discard(i);
    return signal;
}

int cli_enter(const char *url, int64_t lease_ms, const sigset_t *passed_on, dibs **d,
              int (*obtain)(void *data), cli_waiting_fn waiting, void *data)
{
    cli_interrupt *interrupt = cli_interrupt_start(passed_on, waiting, data);
    int code, signal;

    if (!interrupt) {
        cli_say("cannot start a thread");
        return CLI_EXIT_SYSTEM;
    }
    code = cli_open(url, &(dibs_options){.lease_ms = lease_ms}, d);
    if (code == 0) {
        cli_interrupt_watch(interrupt, *d);
        code = obtain(data);
    }
    signal = cli_interrupt_end(interrupt);
    return signal ? CLI_EXIT_SIGNAL + signal : code;
}
