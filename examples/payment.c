/* A payment in several steps, each with an effect outside: reserve the goods, charge the card, send the
 * receipt. Whoever retries it, and wherever a runner dies, each step is done; done steps are not done
 * again, and the customer gets one answer.
 *
 * What no library can do for the outside world: a runner may die after the card was charged and before
 * that is written down. So the run is given to the card company as the payment's own key: it knows
 * whether it has charged it. (That is what their Idempotency-Key header is for.)
 *
 * Usage: payment ORDER EURO [STEP]    the engine is $DIBS_URL; after STEP it kills itself */
#include <dibs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *die_after;

/* Stands for a request to somebody else. */
static void ask_outside(const char *what, const char *order)
{
    printf("  %s, key %s\n", what, order);
    fflush(stdout);
}

/* Does a step unless an earlier runner has. */
static dibs_status step(dibs_once *run, const char *name, const char *order, dibs_error *err)
{
    dibs_status status;

    if (dibs_once_step_data(run, name, NULL)) {
        printf("  %s: was done\n", name);
        return DIBS_OK;
    }
    if (!dibs_once_held(run)) /* we were asleep: another may be at it */
        return DIBS_LOST;
    ask_outside(name, order);
    status = dibs_once_step(run, name, "", 0, err);
    if (status == DIBS_OK && die_after && strcmp(name, die_after) == 0)
        raise(SIGKILL);
    return status;
}

static dibs_status pay(dibs_once *run, const char *order, const char *euro, dibs_error *err)
{
    char receipt[128];
    dibs_status status = step(run, "reserve", order, err);

    if (status == DIBS_OK)
        status = step(run, "charge", order, err);
    if (status == DIBS_OK)
        status = step(run, "mail", order, err);
    if (status != DIBS_OK)
        return status;
    snprintf(receipt, sizeof receipt, "order %.60s paid: %.20s EUR", order, euro);
    return dibs_once_finish(run, receipt, strlen(receipt), 0, err);
}

int main(int argc, char **argv)
{
    dibs *d = NULL;
    dibs_once *run = NULL;
    dibs_error err = {0};
    dibs_once_options o = {.scope = "payments", .lease_ms = 1000, .on_crash = DIBS_CRASH_RERUN};
    dibs_status status;
    size_t size = 0;

    if (argc < 3)
        return fprintf(stderr, "usage: payment ORDER EURO [STEP]\n"), 64;
    die_after = argc > 3 ? argv[3] : NULL;
    o.fingerprint = argv[2]; /* the same order with another amount is a mistake */
    o.fingerprint_size = strlen(argv[2]);
    if (dibs_open(NULL, NULL, &d, &err) != DIBS_OK)
        return fprintf(stderr, "%s\n", err.message), dibs_status_exit_code(err.status);
    status = dibs_once_begin(d, argv[1], &o, &run, &err);
    if (status == DIBS_OK) {
        printf("%s\n", dibs_once_again(run) ? "going on after a crash" : "first run");
        status = pay(run, argv[1], argv[2], &err);
        printf("%s\n", status == DIBS_OK ? "paid" : err.message);
    } else if (status == DIBS_ALREADY) {
        const char *receipt = dibs_once_result(run, &size);
        printf("as before: %.*s\n", (int)size, receipt);
        status = DIBS_OK;
    } else {
        fprintf(stderr, "%s\n", err.message);
    }
    dibs_once_free(run);
    dibs_close(d);
    return status == DIBS_OK ? 0 : dibs_status_exit_code(status);
}
