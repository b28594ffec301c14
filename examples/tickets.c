/* Waiting without a thread for each wait: an event loop around poll().
 *
 * Five jobs want one printer. Each stands in line with a ticket; the handle's descriptor becomes
 * readable when a ticket is served, dibs_dispatch then runs the callback, here, in this thread. A
 * server would poll its sockets beside it. Usage: tickets [URL] */
#include <dibs.h>
#include <poll.h>
#include <stdio.h>

#define JOBS 5

typedef struct job {
    int number;
    int *left;
    int *failed;
} job;

static void print_it(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    job *j = data;

    --*j->left;
    if (status != DIBS_OK) {
        ++*j->failed;
        fprintf(stderr, "job %d: %s\n", j->number, err->message);
        return;
    }
    printf("job %d has the printer, fence %llu\n", j->number, (unsigned long long)dibs_fence(g));
    dibs_unlock(g); /* the next in line is served */
}

int main(int argc, char **argv)
{
    dibs *d = NULL;
    dibs_error err = {0};
    job jobs[JOBS];
    int left = 0, failed = 0;

    if (dibs_open(argc > 1 ? argv[1] : NULL, NULL, &d, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = (job){.number = i + 1, .left = &left, .failed = &failed};
        left++;
        if (dibs_lock_start(d, "printer", NULL, print_it, &jobs[i], NULL, &err) != DIBS_OK) {
            fprintf(stderr, "%s\n", err.message);
            left--;
            failed++;
        }
    }
    while (left > 0) {
        struct pollfd fd = {.fd = dibs_fd(d), .events = POLLIN};
        if (poll(&fd, 1, -1) > 0)
            dibs_dispatch(d);
    }
    dibs_close(d);
    return failed ? 1 : 0;
}
