/* What the verbs of `dibs lab` share: which strategies, which servers, what is shown meanwhile. */
#include "command.h"

#include "servers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const server_names[LAB_SERVERS] = {
    [LAB_REDIS] = "redis",   [LAB_REDIS_NODES] = "redlock",
    [LAB_MARIADB] = "mysql", [LAB_POSTGRESQL] = "postgresql",
    [LAB_SQLITE] = "sqlite", [LAB_ZOOKEEPER] = "zookeeper",
    [LAB_ETCD] = "etcd"};

const char *lab_server_name(lab_server server)
{
    return server_names[server];
}

void lab_request_options(lab_request *r, cli_option out[LAB_OPTIONS_MAX], const cli_option *more)
{
    size_t n = 0;

    r->plan = (lab_plan){
        .processes = 1, .threads = 50, .loops = 100, .stock = 5000, .limit_ms = 120 * 1000};
    for (int i = 0; i < LAB_SERVERS; i++)
        out[n++] = (cli_option){server_names[i], CLI_URL, &r->url[i], 0, 0, 0};
    out[n++] = (cli_option){"with-servers", CLI_FLAG, &r->with_servers, 0, 0, 0};
    out[n++] = (cli_option){"json", CLI_FLAG, &r->json, 0, 0, 0};
    out[n++] = (cli_option){"processes", CLI_NUMBER, &r->plan.processes, 1, 64, 0};
    out[n++] = (cli_option){"threads", CLI_NUMBER, &r->plan.threads, 1, 500, 0};
    out[n++] = (cli_option){"loops", CLI_NUMBER, &r->plan.loops, 1, 100000, 0};
    out[n++] = (cli_option){"stock", CLI_NUMBER, &r->plan.stock, 1, 100000000, 0};
    out[n++] = (cli_option){"limit", CLI_SPAN, &r->plan.limit_ms, 100, 3600 * 1000, 0};
    for (; more && more->name; more++)
        out[n++] = *more;
    out[n] = (cli_option){0};
}

static void choose(lab_request *r, const lab_strategy *s)
{
    if (r->chosen_count < LAB_CHOSEN_MAX)
        r->chosen[r->chosen_count++] = s;
}

static void choose_experiment(lab_request *r, const lab_experiment *e)
{
    if (r->experiment_count < LAB_CHOSEN_MAX)
        r->experiments[r->experiment_count++] = e;
}

/* How many were meant by `word`: a name, or a row. */
static size_t choose_named(lab_request *r, const char *word, bool experiments)
{
    size_t found = 0;

    for (const lab_strategy *s = lab_find(word, NULL); s; s = lab_find(word, s), found++)
        choose(r, s);
    for (size_t i = 0; experiments && lab_experiments[i]; i++)
        if (strcmp(lab_experiments[i]->name, word) == 0 ||
            strcmp(lab_experiments[i]->id, word) == 0) {
            choose_experiment(r, lab_experiments[i]);
            found++;
        }
    return found;
}

int lab_request_choose(lab_request *r, const cli_command *self, const cli_words *words,
                       bool experiments)
{
    for (int i = 0; i < words->count; i++)
        if (choose_named(r, words->word[i], experiments) == 0)
            return cli_misused(self, "unknown strategy '%s': see dibs lab list", words->word[i]);
    for (size_t i = 0; words->count == 0 && lab_strategies[i]; i++)
        choose(r, lab_strategies[i]);
    for (size_t i = 0; words->count == 0 && experiments && lab_experiments[i]; i++)
        choose_experiment(r, lab_experiments[i]);
    return -1;
}

int lab_request_choose_one(lab_request *r, const cli_command *self, const char *name)
{
    r->chosen[0] = lab_find(name, NULL);
    if (!r->chosen[0])
        return cli_misused(self, "unknown strategy '%s': see dibs lab list", name);
    if (lab_find(name, r->chosen[0]))
        return cli_misused(self, "the row %s has several strategies, among them '%s': name one",
                           name, r->chosen[0]->name);
    r->chosen_count = 1;
    return -1;
}

int lab_request_place_url(lab_request *r, const cli_command *self, const char *url)
{
    size_t size = url ? strcspn(url, ":") : 0;

    for (int i = 0; url && i < LAB_SERVERS; i++)
        if (strlen(server_names[i]) == size && strncmp(server_names[i], url, size) == 0) {
            r->url[i] = url;
            return -1;
        }
    return url ? cli_misused(self, "--url: '%s' begins with no engine's name", url) : -1;
}

static unsigned needs_of(const lab_request *r)
{
    unsigned needs = 0;

    for (size_t i = 0; i < r->chosen_count; i++)
        needs |= r->chosen[i]->needs | LAB_NEED(r->chosen[i]->stock);
    for (size_t i = 0; i < r->experiment_count; i++)
        needs |= r->experiments[i]->needs;
    return needs;
}

int lab_request_open(lab_request *r)
{
    char missing[256] = "", why[256] = "";

    for (int i = 0; i < LAB_SERVERS; i++) {
        if (r->url[i] && strlen(r->url[i]) >= sizeof r->site.url[i]) {
            cli_say("--%s: the URL is longer than %zu bytes", server_names[i],
                    sizeof r->site.url[i] - 1);
            return CLI_EXIT_USAGE;
        }
        if (r->url[i])
            snprintf(r->site.url[i], sizeof r->site.url[i], "%s", r->url[i]);
    }
    if (!r->with_servers)
        return -1;
    if (!lab_servers_start(&r->site, needs_of(r), missing, why)) {
        cli_say("%s", why);
        lab_servers_stop();
        return dibs_status_exit_code(DIBS_UNAVAILABLE);
    }
    if (missing[0])
        cli_say("not on this machine, and left out: %s", missing);
    return -1;
}

void lab_request_close(lab_request *r)
{
    (void)r;
    lab_servers_stop();
}

bool lab_request_has(const lab_request *r, unsigned needs, const char *name)
{
    for (int i = 0; i < LAB_SERVERS; i++)
        if ((needs & LAB_NEED(i)) && !r->site.url[i][0]) {
            cli_say("%s is left out: it needs --%s URL, or --with-servers", name, server_names[i]);
            return false;
        }
    return true;
}

bool lab_request_can(const lab_request *r, const lab_strategy *s)
{
    return lab_request_has(r, s->needs | LAB_NEED(s->stock), s->name);
}

bool lab_request_can_try(const lab_request *r, const lab_experiment *e)
{
    return lab_request_has(r, e->needs, e->name);
}

bool lab_request_done(size_t count)
{
    if (count == 0)
        cli_say("nothing was run: --with-servers starts what is needed");
    return count > 0;
}

void lab_progress(const lab_request *r, size_t done, size_t of, const char *what)
{
    static const char full[] = "##############################";

    if (r->json || of == 0 || !isatty(2))
        return;
    fprintf(stderr, "\r\033[K[%-30.*s] %zu/%zu %s", (int)(done * 30 / of), full, done, of,
            done < of ? what : "");
    if (done == of)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}
