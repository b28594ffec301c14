/* Asks the engine what it can, in a child: the coordinator itself must have no handle before it forks. */
#define _GNU_SOURCE
#include "torture.h"

#include "cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct findings {
    dibs_error err;
    char engine[32];
    bool across_processes, first_come, notices_death, lease_of_handle, shared, cells;
    int64_t lease_ms;
} findings;

static void look(const torture_plan *plan, findings *f)
{
    const dibs_options how = {.lease_ms = plan->lease_ms, .request_ms = TORTURE_REQUEST_MS};
    dibs_engine_info info;
    dibs *d = NULL;

    if (dibs_open(plan->url, &how, &d, &f->err) != DIBS_OK)
        return;
    info = *dibs_engine_of(d);
    snprintf(f->engine, sizeof f->engine, "%s", info.scheme);
    f->across_processes = info.across_processes;
    f->first_come = info.first_come;
    f->notices_death = info.notices_death;
    f->lease_of_handle = info.lease_of_handle;
    f->shared = info.shared;
    f->cells = info.cells;
    f->lease_ms = info.lease_ms;
    dibs_close(d);
}

/* False: no child, or it died. */
static bool look_from_child(const torture_plan *plan, findings *f)
{
    int ends[2], status;
    pid_t pid;
    bool got;

    if (pipe(ends) != 0)
        return false;
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        look(plan, f);
        _exit(write(ends[1], f, sizeof *f) == (ssize_t)sizeof *f ? 0 : 1);
    }
    close(ends[1]);
    got = pid > 0 && read(ends[0], f, sizeof *f) == (ssize_t)sizeof *f;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    return got;
}

/* An adapter's engine is known by its URL alone. */
static int take_adapter(torture_plan *plan)
{
    const char *url = plan->url ? plan->url : "";

    snprintf(plan->engine, sizeof plan->engine, "%.*s", (int)strcspn(url, ":"), url);
    plan->work = TORTURE_LOCKS;
    plan->faults &= ~(unsigned)TORTURE_BREAK;
    return -1;
}

int torture_probe(torture_plan *plan)
{
    findings f = {0};

    if (plan->adapter)
        return take_adapter(plan);
    if (!look_from_child(plan, &f)) {
        cli_say("cannot start a process: %s", strerror(errno));
        return CLI_EXIT_SYSTEM;
    }
    if (f.err.status != DIBS_OK)
        return cli_failed(&f.err);
    if (!f.across_processes) {
        cli_say("%s: lives inside one process, and torture needs several; use sqlite: or a server",
                f.engine);
        return CLI_EXIT_USAGE;
    }
    snprintf(plan->engine, sizeof plan->engine, "%s", f.engine);
    plan->first_come = f.first_come;
    plan->notices_death = f.notices_death;
    plan->lease_of_handle = f.lease_of_handle;
    plan->shared = f.shared;
    if (f.lease_ms > 0) /* the handle's, as the server granted it */
        plan->lease_ms = f.lease_ms;
    if (!f.cells)
        plan->work &= TORTURE_LOCKS;
    return -1;
}
