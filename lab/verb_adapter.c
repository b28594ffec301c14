/* `dibs lab adapter`: one of the lab's locks behind the line protocol of `dibs torture --adapter`, so that the
 * checker of torture can be run on schemes that are known to be broken.
 *
 * A request is a line, and so is its answer (docs/torture.md). Each lock name gets a buyer of its own at its
 * first use. A buyer whose connection failed is closed, and the next request opens another. A scheme that
 * cannot tell whether it still holds says yes, as a program without that question believes. */
#include "command.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 64
#define NAME_SIZE 128 /* what the schemes have room for */

typedef struct named_lock {
    char name[NAME_SIZE]; /* empty: unused */
    lab_buyer buyer;
    bool open, ours;
} named_lock;

typedef struct adapter {
    lab_strategy scheme; /* without its books: nothing is sold here */
    const lab_site *site;
    named_lock locks[NAMES_MAX];
} adapter;

/* ---- Buyers ---------------------------------------------------------------------------------- */

static void close_lock(adapter *a, named_lock *p)
{
    if (!p->open)
        return;
    if (a->scheme.close)
        a->scheme.close(&p->buyer);
    if (a->scheme.close_process)
        a->scheme.close_process(&p->buyer);
    p->open = p->ours = false;
}

static bool open_lock(adapter *a, named_lock *p, int64_t lease_ms)
{
    if (p->open)
        return true;
    p->buyer = (lab_buyer){.strategy = &a->scheme,
                           .site = a->site,
                           .pace = {.lease_ms = lease_ms},
                           .resource = p->name};
    if (a->scheme.open_process && !a->scheme.open_process(&p->buyer))
        return false;
    p->open = !a->scheme.open || a->scheme.open(&p->buyer);
    if (!p->open && a->scheme.close_process)
        a->scheme.close_process(&p->buyer);
    return p->open;
}

/* Names go into commands of every scheme as they are. */
static bool is_plain(const char *name)
{
    const char *c = name;

    while (isalnum((unsigned char)*c) || (*c && strchr(":._-", *c)))
        c++;
    return c > name && !*c && c - name < NAME_SIZE;
}

/* The entry of the name, a new one if need be. NULL: no room. */
static named_lock *find(adapter *a, const char *name)
{
    for (named_lock *p = a->locks; p < a->locks + NAMES_MAX; p++) {
        if (!p->name[0])
            snprintf(p->name, sizeof p->name, "%s", name);
        if (strcmp(p->name, name) == 0)
            return p;
    }
    return NULL;
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* The connection may be gone: the next request gets a new one. */
static void fail(adapter *a, named_lock *p)
{
    printf("error %s\n", p->buyer.note[0] ? p->buyer.note : "failed without a reason");
    close_lock(a, p);
}

static void take(adapter *a, named_lock *p, int64_t wait_ms, int64_t lease_ms)
{
    if (p->ours) {
        printf("error %s is held already\n", p->name);
        return;
    }
    if (!open_lock(a, p, lease_ms)) {
        fail(a, p);
        return;
    }
    p->buyer.note[0] = '\0';
    p->buyer.pace.wait_ms = wait_ms > 0 ? wait_ms : DIBS_NO_WAIT; /* 0 would be for ever */
    p->ours = a->scheme.lock(&p->buyer);
    if (!p->ours && p->buyer.note[0])
        fail(a, p);
    else if (!p->ours)
        puts("busy");
    else if (a->scheme.fence)
        printf("granted %" PRIu64 "\n", a->scheme.fence(&p->buyer));
    else
        puts("granted -");
}

static void give(adapter *a, named_lock *p)
{
    if (!p->ours) {
        printf("error %s is not held\n", p->name);
        return;
    }
    p->buyer.note[0] = '\0';
    p->ours = false;
    if (a->scheme.unlock(&p->buyer))
        puts("released");
    else if (p->buyer.note[0])
        fail(a, p);
    else
        puts("lost");
}

/* False: it was the last request. */
static bool answer(adapter *a, char *line)
{
    char *rest = NULL, *end = NULL, *verb = strtok_r(line, " \n", &rest);
    char *name = strtok_r(NULL, " \n", &rest), *wait = strtok_r(NULL, " \n", &rest);
    char *lease = strtok_r(NULL, " \n", &rest);
    named_lock *p = name && is_plain(name) ? find(a, name) : NULL;

    if (verb && strcmp(verb, "quit") == 0)
        return false;
    if (!verb || !name)
        puts("error a request is: lock NAME WAIT_MS LEASE_MS, held NAME, unlock NAME, quit");
    else if (!p)
        printf("error '%.100s' is not a name that the lab can use, or there are more than %d\n",
               name, NAMES_MAX);
    else if (strcmp(verb, "lock") == 0 && lease && strtoll(lease, &end, 10) > 0 && !*end)
        take(a, p, strtoll(wait, NULL, 10), strtoll(lease, NULL, 10));
    else if (strcmp(verb, "held") == 0)
        puts(p->ours && (!a->scheme.held || a->scheme.held(&p->buyer)) ? "yes" : "no");
    else if (strcmp(verb, "unlock") == 0)
        give(a, p);
    else
        printf("error unknown or incomplete request '%.100s'\n", verb);
    return true;
}

static void serve(adapter *a)
{
    char *line = NULL;
    size_t size = 0;

    printf("dibs-adapter 1 lab-%s %s\n", a->scheme.name, dibs_version());
    fflush(stdout);
    while (getline(&line, &size, stdin) > 0 && answer(a, line) && fflush(stdout) == 0)
        continue;
    free(line);
    for (named_lock *p = a->locks; p < a->locks + NAMES_MAX; p++)
        close_lock(a, p);
}

/* ---- The verb -------------------------------------------------------------------------------- */

static int choose(lab_request *r, const cli_command *self, const cli_words *words)
{
    int code;

    if (words->count != 1)
        return cli_misused(self, "adapter takes one strategy: dibs lab list names them");
    if (r->with_servers)
        return cli_misused(self, "adapter: all adapters of a run share the servers; use --url");
    code = lab_request_choose_one(r, self, words->word[0]);
    if (code < 0 && !r->chosen[0]->lock)
        code =
            cli_misused(self, "'%s' is not a lock: it has no lock and unlock", r->chosen[0]->name);
    return code;
}

int lab_verb_adapter(const cli_command *self, int argc, char **argv)
{
    const char *url = getenv("DIBS_TORTURE_URL");
    const cli_option more[] = {CLI_URL_OPTIONS(&url), {0}};
    lab_request r = {0};
    cli_option options[LAB_OPTIONS_MAX];
    adapter *a;
    cli_words words;
    int code;

    lab_request_options(&r, options, more);
    code = cli_parse(self, options, argc, argv, &words);
    if (code < 0)
        code = choose(&r, self, &words);
    if (code < 0)
        code = lab_request_place_url(&r, self, url && url[0] ? url : NULL);
    if (code < 0)
        code = lab_request_open(&r);
    if (code >= 0)
        return code;
    if (!lab_request_has(&r, r.chosen[0]->needs, r.chosen[0]->name))
        return CLI_EXIT_USAGE;
    a = calloc(1, sizeof *a);
    if (!a)
        return CLI_EXIT_SYSTEM;
    a->scheme = *r.chosen[0];
    a->scheme.sell = NULL;
    a->site = &r.site;
    serve(a);
    free(a);
    return cli_finish(0);
}
