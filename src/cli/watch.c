/* `dibs watch`: a live view in a terminal, a line a change otherwise.
 *
 * Engines tell a holder what it must know, not an onlooker, so this asks again at an interval. When
 * the engine goes away, it says so and goes on asking. In a terminal the view is on the alternate
 * screen, and the screen is put back however the command ends (but by SIGKILL). */
#include "changes.h"
#include "cli.h"
#include "options.h"
#include "table.h"
#include "text.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: dibs watch [--interval D] [--json] [--url URL] [PREFIX]\n"
    "Shows the locks whose names start with PREFIX, updated live in a terminal (exit\n"
    "with Ctrl-C). If the output is not a terminal, prints one line per change: held,\n"
    "released, breaking, waiting.\n\n"
    "  --interval D  time between two updates (default 1s)\n"
    "  --json        one object per line: {\"time_ms\", \"event\", \"name\",\n"
    "                \"waiter_count\", \"holder\"}\n"
    "  --url URL     engine, or --url-file FILE (default: see dibs help)\n\n"
    "A lock that is taken and released between two updates is not shown.\n";

typedef struct watch {
    dibs *d;
    const char *prefix;
    int64_t interval_ms;
    bool json, live;
    int signals; /* signalfd, live only */
    dibs_lock_report *report;
    dibs_error err;
} watch;

/* ---- The screen ------------------------------------------------------------------------------ */

static void screen_enter(void)
{
    fputs("\033[?1049h\033[?25l", stdout);
}

static void screen_leave(void)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
}

static void draw(const watch *w)
{
    char now[32], span[24];
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row == 0)
        size = (struct winsize){.ws_row = 24, .ws_col = 80};
    fputs("\033[H\033[2J", stdout);
    printf("dibs watch  %s  every %s  %s\n", dibs_engine_name(w->d),
           cli_format_span(span, w->interval_ms), cli_format_time(now, (int64_t)time(NULL) * 1000));
    if (w->err.status != DIBS_OK)
        cli_print_line(stdout, w->err.message);
    putchar('\n');
    if (w->report && size.ws_row > 4)
        cli_table_print(stdout, w->report, size.ws_col, (size_t)size.ws_row - 3);
}

/* ---- Looking --------------------------------------------------------------------------------- */

static void look(watch *w)
{
    dibs_lock_report *next = NULL;
    dibs_status before = w->err.status;

    w->err.message[0] = '\0';
    w->err.status = dibs_lock_list(w->d, w->prefix, NULL, &next, &w->err);
    if (w->err.status != DIBS_OK) {
        if (!w->live && before == DIBS_OK)
            cli_say("%s; retrying", w->err.message);
        return;
    }
    if (!w->live)
        cli_changes_print(w->report, next, w->json);
    dibs_lock_report_free(w->report);
    w->report = next;
}

/* Sleeps until the next look. A signal that ends the command is returned, else 0. */
static int pause_live(watch *w)
{
    struct pollfd fd = {w->signals, POLLIN, 0};
    struct signalfd_siginfo info;

    if (poll(&fd, 1, (int)w->interval_ms) <= 0 || read(w->signals, &info, sizeof info) <= 0)
        return 0;
    if (info.ssi_signo == SIGTSTP) {
        screen_leave();
        raise(SIGSTOP);
        screen_enter();
    }
    return info.ssi_signo == SIGTSTP || info.ssi_signo == SIGWINCH ? 0 : (int)info.ssi_signo;
}

static int watch_live(watch *w)
{
    int signal = 0, code = 0;

    screen_enter();
    while (signal == 0 && code == 0) {
        look(w);
        draw(w);
        code = cli_finish(0);
        if (code == 0)
            signal = pause_live(w);
    }
    screen_leave();
    return signal ? CLI_EXIT_SIGNAL + signal : code;
}

static int watch_lines(watch *w)
{
    int code = 0;

    while (code == 0) {
        look(w);
        code = cli_finish(0);
        if (code == 0)
            poll(NULL, 0, (int)w->interval_ms);
    }
    return code;
}

/* ---- Start ----------------------------------------------------------------------------------- */

/* Before the engine is opened, so that no thread of its is in doubt about them. */
static int take_signals(watch *w)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&set, taken[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    w->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (w->signals >= 0)
        return -1;
    cli_say("cannot set up signal handling");
    return CLI_EXIT_SYSTEM;
}

static int start(const cli_command *self, int argc, char **argv)
{
    watch w = {.interval_ms = 1000};
    const char *url = NULL;
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"interval", CLI_SPAN, &w.interval_ms, 10, 3600 * 1000, 0},
                                  {"json", CLI_FLAG, &w.json, 0, 0, 0},
                                  {0}};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0 && words.count > 1)
        code = cli_misused(self, "give at most one PREFIX, not %d", words.count);
    if (code >= 0)
        return code;
    w.prefix = words.count ? words.word[0] : NULL;
    w.live = !w.json && isatty(STDOUT_FILENO);
    code = w.live ? take_signals(&w) : -1;
    if (code < 0)
        code = cli_open(url, NULL, &w.d);
    if (!w.d)
        return code;
    code = w.live ? watch_live(&w) : watch_lines(&w);
    dibs_lock_report_free(w.report);
    dibs_close(w.d);
    return code;
}

const cli_command cli_watch = {"watch", "show locks live", help, start};
