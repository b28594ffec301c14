/* F3: dibs' own tokens: one token, 64 redeem it at the same moment from two processes, on every engine that
 * has tokens and is at hand. Exactly one may be told that it is his; and when the work behind it failed, he
 * gets one new token, and the spent one stays spent. */
#include "dibs.h"
#include "lab/hazards/actor.h"
#include "rush.h"
#include "sessions.h"

#include <pthread.h>
#include <stdio.h>

#define REQUESTS 64

typedef struct redeeming {
    const char *url;
    char token[DIBS_TOKEN_SIZE];
} redeeming;

/* One handle for the threads of a process; it goes with the process. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static dibs *shared;

static dibs *handle(const char *url)
{
    dibs_error err;

    pthread_mutex_lock(&opening);
    if (!shared && dibs_open(url, NULL, &shared, &err) != DIBS_OK)
        shared = NULL;
    pthread_mutex_unlock(&opening);
    return shared;
}

static int redeem(void *ctx, int number)
{
    const redeeming *r = ctx;
    dibs *d = handle(r->url);
    dibs_error err;

    (void)number;
    return d &&
           dibs_token_redeem(d, r->token, &(dibs_token_options){.scope = "lab"}, &err) == DIBS_OK;
}

/* After the work failed: one new token for the spent one? */
static const char *reissue(dibs *d, const dibs_token_options *o, const char *token, dibs_error *err)
{
    char renewed[DIBS_TOKEN_SIZE];

    if (dibs_token_reissue(d, token, o, renewed, err) != DIBS_OK)
        return "no new one";
    if (dibs_token_redeem(d, token, o, err) == DIBS_OK)
        return "the OLD one passes";
    return dibs_token_redeem(d, renewed, o, err) == DIBS_OK ? "one new token, which passes"
                                                            : "the new one is refused";
}

/* How many were told that it is theirs; `again`: after the work failed. False: not run. */
static bool on_engine(const char *url, int *passed, const char **again, dibs_error *err)
{
    const dibs_token_options o = {.scope = "lab"};
    redeeming r = {.url = url};
    dibs *d = NULL;
    bool ran = dibs_open(url, NULL, &d, err) == DIBS_OK &&
               dibs_token_issue(d, &o, r.token, err) == DIBS_OK;

    dibs_close(d); /* the processes of a rush are forked: its threads must be gone */
    d = NULL;
    if (ran) {
        *passed = lab_rush(2, REQUESTS / 2, redeem, &r);
        ran = dibs_open(url, NULL, &d, err) == DIBS_OK;
    }
    if (ran)
        *again = reissue(d, &o, r.token, err);
    dibs_close(d);
    return ran;
}

static void all_engines(const lab_site *site, lab_finding *out)
{
    static const lab_server servers[] = {LAB_SQLITE,     LAB_REDIS,     LAB_MARIADB,
                                         LAB_POSTGRESQL, LAB_ZOOKEEPER, LAB_ETCD};
    lab_rows *rows = lab_rows_new("engine\tof 64 at once passed\twhen the work failed");
    int engines = 0, wrong = 0;

    for (size_t i = 0; i < sizeof servers / sizeof servers[0]; i++) {
        const char *url = site->url[servers[i]], *again = "";
        dibs_error err = {0};
        int passed = 0;
        if (!url[0])
            continue;
        if (on_engine(url, &passed, &again, &err)) {
            engines++;
            wrong += passed != 1;
            lab_rows_add(rows, "%s\t%d\t%s", lab_server_name(servers[i]), passed, again);
        } else if (err.status != DIBS_UNSUPPORTED) {
            wrong++;
            lab_rows_add(rows, "%s\t\t%s", lab_server_name(servers[i]), err.message);
        }
    }
    out->table = lab_rows_end(rows);
    lab_found(out,
              !engines ? LAB_NOT_RUN
              : wrong  ? LAB_BROKE
                       : LAB_SURVIVED,
              "dibs' tokens on %d engines: of %d requests with one token at the same moment %s",
              engines, REQUESTS, wrong ? "not one passed" : "1 passed on each");
}

const lab_experiment lab_token_dibs = {
    .id = "F3",
    .name = "token-dibs",
    .title = "dibs' tokens, redeemed by many at once",
    .needs = LAB_NEED(LAB_REDIS),
    .run = all_engines,
    .promised = true,
};
