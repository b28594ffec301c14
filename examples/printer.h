/* What the three event-loop examples share: five jobs want one printer.
 *
 * Each job is a request. The loop (epoll, libuv, GLib) waits for dibs_fd beside its sockets, and calls
 * printer_take when it is readable. Nothing here blocks: the lock is released by a request, too. */
#ifndef PRINTER_H
#define PRINTER_H

#include <dibs.h>
#include <stdbool.h>
#include <stdio.h>

#define JOBS 5

typedef struct printer {
    dibs *d;
    int number[JOBS];
    int left; /* outcomes to come */
    int failed;
} printer;

static void printer_start(printer *p, const dibs_request *r)
{
    dibs_error err;

    if (dibs_start(p->d, r, NULL, &err) == DIBS_OK) {
        p->left++;
    } else {
        p->failed++;
        fprintf(stderr, "%s\n", err.message);
    }
}

static int printer_open(printer *p, const char *url)
{
    dibs_error err;

    if (dibs_open(url, NULL, &p->d, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return dibs_status_exit_code(err.status);
    }
    for (int i = 0; i < JOBS; i++) {
        p->number[i] = i + 1;
        printer_start(
            p, &(dibs_request){.op = DIBS_OP_LOCK, .name = "printer", .user = &p->number[i]});
    }
    return 0;
}

/* Takes all outcomes that are there. False: there are none to come. */
static bool printer_take(printer *p)
{
    dibs_outcome o;

    while (p->left > 0 && dibs_take(p->d, &o)) {
        p->left--;
        if (o.err.status != DIBS_OK) { /* LOST after an unlock: another job may have printed */
            p->failed++;
            fprintf(stderr, "job %d: %s\n", o.user ? *(int *)o.user : 0, o.err.message);
        } else if (o.op == DIBS_OP_LOCK) {
            printf("job %d has the printer, fence %llu\n", *(int *)o.user,
                   (unsigned long long)dibs_grant_fence(o.grant));
            printer_start(p,
                          &(dibs_request){.op = DIBS_OP_UNLOCK, .grant = o.grant, .user = o.user});
        }
    }
    return p->left > 0;
}

static int printer_close(printer *p)
{
    dibs_close(p->d);
    return p->failed ? 1 : 0;
}

#endif
