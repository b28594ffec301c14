/* Turns with tokens and counters: several workers redeem the same token, and send the same request. */
#define _GNU_SOURCE
#include "message.h"

#define TOKEN_TTL_MS 300000
#define REQUEST_SLOT (TORTURE_SECOND / 4) /* so long everybody's request is the same */
#define REQUESTS_MAX 3                    /* times that one without an answer is sent */

/* ---- Tokens ----------------------------------------------------------------------------------- */

/* A token is a secret; its hash (FNV-1a) is none. */
static const char *hash_of(const char *token, char out[20])
{
    uint64_t h = 0xcbf29ce484222325U;

    for (; *token; token++)
        h = (h ^ (unsigned char)*token) * 0x100000001b3U;
    snprintf(out, 20, "%016llx", (unsigned long long)h);
    return out;
}

static void note_token(torture_worker *w, const char *event, const char *token, int64_t call,
                       dibs_status status)
{
    int64_t back = torture_now();
    char hash[20];

    torture_note(w->history, back, event, "{s:s?,s:I,s:s}", "token",
                 token[0] ? hash_of(token, hash) : NULL, "call", (json_int_t)call, "status",
                 dibs_status_name(status));
}

static dibs_status issue(torture_worker *w)
{
    const dibs_token_options how = {.scope = w->plan->prefix, .ttl_ms = TOKEN_TTL_MS};
    torture_message m = {.kind = TORTURE_SAY_GIVE};
    char token[DIBS_TOKEN_SIZE] = "";
    int64_t call = torture_now();
    dibs_status status = dibs_token_issue(w->d, &how, token, NULL);

    note_token(w, "issue", token, call, status);
    snprintf(m.text, sizeof m.text, "%s", token);
    if (status == DIBS_OK)
        torture_ask(w, &m);
    return status;
}

bool torture_turn_token(torture_worker *w)
{
    torture_message m = {.kind = TORTURE_SAY_TAKE};
    dibs_status status;
    int64_t call;

    if (!torture_chance(&w->random, 30))
        torture_ask(w, &m);
    if (!m.ok)
        return !torture_unreachable(issue(w));
    torture_meet();
    call = torture_now();
    status = dibs_token_redeem(w->d, m.text, &(dibs_token_options){.scope = w->plan->prefix}, NULL);
    note_token(w, "redeem", m.text, call, status);
    return !torture_unreachable(status);
}

/* ---- Counters --------------------------------------------------------------------------------- */

typedef struct change {
    int64_t counter, n; /* negative: take */
    char request[96];   /* "": none */
} change;

void torture_counter_name(const torture_plan *plan, int64_t counter, char out[96])
{
    snprintf(out, 96, "%s:counter:%d", plan->prefix, (int)counter);
}

static change choose(torture_worker *w)
{
    int64_t chosen = torture_between(&w->random, 0, 99), slot;
    uint64_t common;
    change c = {.counter = torture_between(&w->random, 0, TORTURE_COUNTERS - 1),
                .n = torture_between(&w->random, -4, 6)};

    if (chosen < 40) { /* the same for everybody who chooses now */
        slot = (torture_now() - w->shared->begin) / REQUEST_SLOT;
        common = (uint64_t)(w->plan->seed + slot);
        c.counter = torture_between(&common, 0, TORTURE_COUNTERS - 1);
        c.n = torture_between(&common, -4, 6);
        snprintf(c.request, sizeof c.request, "all.%lld", (long long)slot);
    } else if (chosen < 75) {
        snprintf(c.request, sizeof c.request, "%d.%llu", w->number,
                 (unsigned long long)++w->sequence);
    }
    c.n = c.n == 0 ? 7 : c.n;
    return c;
}

static dibs_status count(torture_worker *w, const change *c)
{
    const dibs_counter_options how = {.request = c->request[0] ? c->request : NULL,
                                      .keep_ms = TORTURE_KEEP_MS};
    int64_t value = 0, call, back;
    dibs_status status;
    bool valued;
    char name[96];

    torture_counter_name(w->plan, c->counter, name);
    call = torture_now();
    if (c->n < 0)
        status = dibs_counter_take(w->d, name, -c->n, &how, &value, NULL);
    else
        status = dibs_counter_add(w->d, name, c->n, &how, &value, NULL);
    back = torture_now();
    valued = status == DIBS_OK || status == DIBS_ALREADY || status == DIBS_TOO_FEW;
    torture_note(w->history, back, "add", "{s:s,s:I,s:s?,s:I,s:s,s:o}", "counter", name, "n",
                 (json_int_t)c->n, "request", how.request, "call", (json_int_t)call, "status",
                 dibs_status_name(status), "value",
                 valued ? json_integer((json_int_t)value) : json_null());
    return status;
}

bool torture_turn_counter(torture_worker *w)
{
    dibs_status status;
    change c;

    torture_meet();
    c = choose(w);
    status = count(w, &c);
    for (int i = 1; i < REQUESTS_MAX && c.request[0] && torture_unreachable(status); i++) {
        torture_sleep(50 * TORTURE_MS);
        status = count(w, &c);
    }
    return !torture_unreachable(status);
}
