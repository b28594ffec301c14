/* usage: taker URL NAME COUNT ID: takes 1 from the counter COUNT times. Every tenth is a request with an
 * id of its own, and sent twice: the second must be told what the first was. Prints how often it got
 * one, and how often it was told that there are too few. */
#include "dibs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int complain(const dibs_error *err, const char *what)
{
    fprintf(stderr, "taker: %s: %s\n", what, err->message);
    return 1;
}

/* 0, or 1: something is wrong. */
static int take_twice(dibs *d, const char *name, const char *id, int64_t *left, dibs_status *status)
{
    dibs_counter_options o = {.request = id};
    dibs_error err = {0};
    int64_t again = -1;

    *status = dibs_counter_take(d, name, 1, &o, left, &err);
    if (*status == DIBS_ALREADY) /* its first answer was lost on the way, and asked for again */
        *status = DIBS_OK;
    if (*status == DIBS_TOO_FEW)
        return 0;
    if (*status != DIBS_OK)
        return complain(&err, id);
    if (dibs_counter_take(d, name, 1, &o, &again, &err) != DIBS_ALREADY || again != *left) {
        fprintf(stderr, "taker: %s got %" PRId64 ", then %" PRId64 "\n", id, *left, again);
        return 1;
    }
    return 0;
}

static int take(dibs *d, const char *name, int64_t *left, dibs_status *status)
{
    dibs_error err = {0};

    *status = dibs_counter_take(d, name, 1, NULL, left, &err);
    return *status == DIBS_OK || *status == DIBS_TOO_FEW ? 0 : complain(&err, name);
}

int main(int argc, char **argv)
{
    /* Fifty of them on a busy machine: contention costs time, and each of them has that. */
    static const dibs_options patient = {.request_ms = 60000};
    dibs *d = NULL;
    dibs_error err = {0};
    int got = 0, too_few = 0, wrong = 0;

    if (argc != 5 || dibs_open(argv[1], &patient, &d, &err) != DIBS_OK) {
        fprintf(stderr, "taker URL NAME COUNT ID: %s\n", err.message);
        return 64;
    }
    for (int i = 0; i < atoi(argv[3]) && !wrong; i++) {
        dibs_status status;
        int64_t left = -1;
        char id[64];
        snprintf(id, sizeof id, "%.40s-%d", argv[4], i);
        wrong = i % 10 == 9 ? take_twice(d, argv[2], id, &left, &status)
                            : take(d, argv[2], &left, &status);
        got += status == DIBS_OK;
        too_few += status == DIBS_TOO_FEW;
        wrong |= left < 0; /* a counter is never below zero */
    }
    printf("%d %d\n", got, too_few);
    dibs_close(d);
    return wrong;
}
