/* `dibs gateway`: the subcommand. Opens the engine, the admin address and the sockets, and ends them in order. */
#define _GNU_SOURCE
#include "gateway/gate.h"

#include "cli/cli.h"
#include "cli/options.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LOOK_MS = 50, HEAD_ROOM = 4096, SPARE_FILES = 64 };

static const char help[] =
    "usage: dibs gateway --upstream URL [--listen ADDRESS]... [--config FILE]\n"
    "                    [--url ENGINE] [OPTION...]\n"
    "A reverse proxy that makes requests with an Idempotency-Key idempotent. See\n"
    "dibs-gateway(1) and docs/gateway.md.\n\n"
    "  --upstream URL     the application: http://HOST:PORT or https://HOST:PORT\n"
    "  --listen ADDRESS   HOST:PORT, unix:PATH or fd:N (default 127.0.0.1:8300)\n"
    "  --config FILE      routes and limits, JSON; SIGHUP rereads it (default: every\n"
    "                     POST, PUT and PATCH with a key is guarded)\n"
    "  --check            check the file, and exit\n"
    "  --tls-cert FILE, --tls-key FILE  certificate chain and key, PEM\n"
    "  --client-ca FILE   clients need a certificate of this CA\n"
    "  --upstream-ca FILE trust this CA for https:// (default: the system's)\n"
    "  --admin ADDRESS    /metrics, /healthz and /readyz, loopback or unix:PATH\n"
    "  --access-log FILE  one JSON object per request; '-': standard output\n"
    "  --url URL          engine, or --url-file FILE (default: see dibs help)\n\n"
    "SIGTERM: finish what is in progress, then exit.\n";

static const char *const no_address[] = {"127.0.0.1:8300", NULL};

/* ---- From a request to the library and back ---------------------------------------------------- */

typedef struct call {
    gate_outcome_fn done;
    void *data;
} call;

dibs_status gate_ask(gate *g, dibs_request *r, gate_outcome_fn done, void *data, uint64_t *id,
                     dibs_error *err)
{
    call *c = malloc(sizeof *c);
    dibs_status status;

    *err =
        (dibs_error){.status = DIBS_NO_MEMORY, .next = DIBS_NEXT_LATER, .message = "out of memory"};
    if (!c)
        return DIBS_NO_MEMORY;
    c->done = done;
    c->data = data;
    r->user = c;
    status = dibs_start(g->d, r, id, err);
    if (status == DIBS_OK)
        g->calls++;
    else
        free(c);
    return status;
}

void gate_take(void *data)
{
    gate *g = data;
    dibs_outcome o;

    while (dibs_take(g->d, &o)) {
        call *c = o.user;

        gate_metrics_outcome(g->metrics, &o);
        if (o.op == DIBS_OP_LOST) {
            gate_guard_lost(o.user);
            continue;
        }
        g->calls--;
        c->done(c->data, &o);
        free(c);
    }
}

/* ---- What happens to the process --------------------------------------------------------------- */

static void close_listeners(gate *g)
{
    for (size_t i = 0; i < g->listens; i++)
        http_listener_close(&g->listeners[i]);
    g->listens = 0;
}

static http_timer look;
static gate *looked_at; /* of the one gateway of this process */

static void on_look(http_timer *timer)
{
    gate *g = looked_at;

    if (g->exchanges == 0 && g->client_count == 0)
        http_server_stop(g->http, 0);
    else
        http_timer_set(g->http, timer, LOOK_MS, on_look);
}

/* Requests in progress are finished; nothing new is accepted. Asked twice: at once. */
static void on_drain(void *data)
{
    gate *g = data;
    http_connection *next;

    if (g->draining) {
        http_server_stop(g->http, 0);
        return;
    }
    cli_say("draining: %zu requests in progress", g->exchanges);
    g->draining = true;
    close_listeners(g);
    gate_upstream_close_idle(g);
    for (http_connection *c = g->clients; c; c = next) {
        next = c->next;
        http_connection_go(c);
    }
    http_timer_set(g->http, &look, LOOK_MS, on_look);
}

static int open_log(gate *g)
{
    int fd = -1;

    if (g->log_path)
        fd = strcmp(g->log_path, "-") == 0
                 ? dup(STDOUT_FILENO)
                 : open(g->log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (fd >= 0) {
        if (g->log >= 0)
            close(g->log);
        g->log = fd;
    }
    return fd >= 0 || !g->log_path ? 0
                                   : (cli_say("%s: cannot be opened", g->log_path), CLI_EXIT_USAGE);
}

/* Settings that only this combination makes wrong. */
static bool check_config(const gate *g, const gate_config *c, dibs_error *err)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->route[i].by_certificate && !g->by_certificate) {
            *err = (dibs_error){.status = DIBS_INVALID};
            snprintf(err->message, sizeof err->message,
                     "%s: routes[%zu].caller: certificate needs --client-ca", g->config_path, i);
            return false;
        }
    return true;
}

static gate_config *read_config(gate *g, dibs_error *err)
{
    gate_config *c = gate_config_read(g->config_path, err);

    if (c && check_config(g, c, err))
        return c;
    gate_config_drop(c);
    return NULL;
}

/* A client that is accepted without a descriptor for the application, the engine or a file left is served badly. */
static void fit_connections(gate_config *c)
{
    gate_limits *l = &c->limits;
    int64_t room;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur > INT32_MAX)
        return;
    room = (int64_t)files.rlim_cur - l->upstream - SPARE_FILES;
    if (room < SPARE_FILES)
        room = SPARE_FILES;
    if (l->connections <= room)
        return;
    if (l->connections_given)
        cli_say("limits.connections is %lld, because the process may open %lld files",
                (long long)room, (long long)files.rlim_cur);
    l->connections = room;
}

/* What cannot be read is reported, and what was there stays. */
static void on_reload(void *data, const dibs_error *ignored)
{
    gate *g = data;
    dibs_error err;
    gate_config *fresh = read_config(g, &err);

    (void)ignored;
    if (!fresh) {
        cli_say("reload: %s; the old configuration stays in use", err.message);
        return;
    }
    gate_config_drop(g->config);
    g->config = fresh;
    fit_connections(fresh);
    open_log(g);
    if (g->tls && !http_tls_reload(g->tls, &err))
        cli_say("reload: %s; the old one stays in use", err.message);
    else if (!gate_target_resolve(&g->target, &err))
        cli_say("reload: %s; the old one stays in use", err.message);
    else
        cli_say("reloaded");
}

/* ---- Opening ----------------------------------------------------------------------------------- */

static int open_engine(gate *g, const char *url)
{
    const dibs_options options = {.in_background = true};
    dibs_error err;
    size_t most;

    if (dibs_open(url, &options, &g->d, &err) != DIBS_OK)
        return cli_failed(&err);
    most = dibs_engine_of(g->d)->value_max;
    g->answer_max = most > 2 * HEAD_ROOM ? most - HEAD_ROOM : most / 2;
    g->metrics = gate_metrics_new();
    return g->metrics ? 0 : CLI_EXIT_SYSTEM;
}

static int open_admin(gate *g, const char *admin)
{
    static const http_route *routes[] = {gate_admin_routes, NULL};
    static const char *listen[2];
    http_options o = {.routes = routes,
                      .context = g,
                      .listen = listen,
                      .connections = 64,
                      .api_title = "dibs gateway",
                      .on_drain = on_drain,
                      .on_reload = on_reload};
    dibs_error err = {0};

    listen[0] = admin;
    if (http_server_open(&o, &g->http, &err) != DIBS_OK) {
        cli_say("--admin %s: needs a free loopback address or unix:PATH", admin ? admin : "");
        return dibs_status_exit_code(err.status);
    }
    if (!http_server_watch(g->http, dibs_fd(g->d), gate_take, g))
        return CLI_EXIT_SYSTEM;
    if (admin)
        cli_say("admin at %s", http_server_address(g->http, 0));
    return 0;
}

static int open_listeners(gate *g, const char *const *listen)
{
    dibs_error err = {0};

    for (size_t i = 0; listen[i]; i++) {
        http_listener *l = &g->listeners[i];
        if (http_socket_open(listen[i], g->tls != NULL, &l->socket, &err) != DIBS_OK)
            return cli_failed(&err);
        l->data = g;
        l->accepted = gate_client_accept;
        l->short_of = gate_client_starved;
        g->listens++;
        if (!http_listener_start(l, g->http))
            return CLI_EXIT_SYSTEM;
        cli_say("gateway to %s on %s at %s", g->target.url, dibs_engine_name(g->d),
                l->socket.address);
    }
    return 0;
}

static void close_all(gate *g)
{
    close_listeners(g);
    while (g->clients)
        http_connection_close(g->clients, true);
    gate_upstream_close_idle(g);
    dibs_close(
        g->d); /* abandons the runs that are left: their outcome is unknown, and known to be */
    http_server_close(g->http);
    http_tls_close(g->tls);
    gate_target_close(&g->target);
    gate_config_drop(g->config);
    gate_metrics_free(g->metrics);
}

typedef struct arguments {
    const char *url, *admin, *cert, *key, *client_ca;
    const char *const *listen;
    bool check;
} arguments;

static int open_tls(gate *g, const arguments *a)
{
    dibs_error err = {0};

    const http_tls_files files = {
        .cert = a->cert, .key = a->key, .ca = a->client_ca, .require = true};

    if (a->cert && http_tls_open(&files, &g->tls, &err) != DIBS_OK)
        return cli_failed(&err);
    return 0;
}

static int gate_all(gate *g, const arguments *a)
{
    dibs_error err = {0};
    int code;

    g->by_certificate = a->client_ca != NULL;
    g->config = read_config(g, &err);
    if (!g->config || (!a->check && !gate_target_read(&g->target, &err)))
        return cli_failed(&err);
    if (a->check)
        return 0;
    code = open_engine(g, a->url);
    if (code == 0)
        code = open_tls(g, a);
    if (code == 0)
        code = open_log(g);
    if (code == 0)
        code = open_admin(g, a->admin); /* which raises the limit of files */
    if (code == 0)
        fit_connections(g->config);
    if (code == 0)
        code = open_listeners(g, a->listen);
    if (code == 0)
        http_server_run(g->http);
    close_all(g);
    return code;
}

/* ---- The command ------------------------------------------------------------------------------- */

static int check(const cli_command *self, const gate *g, const arguments *a, const cli_words *words,
                 const cli_texts *listen)
{
    if (words->count > 0)
        return cli_misused(self, "unexpected operand '%s'", words->word[0]);
    if (!g->target.url && !a->check)
        return cli_misused(self, "give the application: --upstream http://HOST:PORT");
    if (!a->cert != !a->key)
        return cli_misused(self, "--tls-cert and --tls-key belong together");
    if (a->client_ca && !a->cert)
        return cli_misused(self, "--client-ca needs --tls-cert and --tls-key");
    if (listen->count > GATE_LISTENS)
        return cli_misused(self, "give at most %d --listen", GATE_LISTENS);
    return -1;
}

static int run(const cli_command *self, int argc, char **argv)
{
    static gate g = {.log = -1};
    arguments a = {.listen = no_address};
    cli_texts listen = {0};
    const cli_option options[] = {CLI_URL_OPTIONS(&a.url),
                                  {"upstream", CLI_TEXT, &g.target.url, 0, 0, 0},
                                  {"listen", CLI_TEXTS, &listen, 0, 0, 0},
                                  {"config", CLI_TEXT, &g.config_path, 0, 0, 0},
                                  {"check", CLI_FLAG, &a.check, 0, 0, 0},
                                  {"tls-cert", CLI_TEXT, &a.cert, 0, 0, 0},
                                  {"tls-key", CLI_TEXT, &a.key, 0, 0, 0},
                                  {"client-ca", CLI_TEXT, &a.client_ca, 0, 0, 0},
                                  {"upstream-ca", CLI_TEXT, &g.target.ca, 0, 0, 0},
                                  {"admin", CLI_TEXT, &a.admin, 0, 0, 0},
                                  {"access-log", CLI_TEXT, &g.log_path, 0, 0, 0},
                                  {0}};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0)
        code = check(self, &g, &a, &words, &listen);
    if (code >= 0)
        return code;
    looked_at = &g;
    if (listen.count > 0)
        a.listen = listen.text; /* ended by a NULL: there are at most 8 */
    return gate_all(&g, &a);
}

const cli_command cli_gateway = {"gateway", "guard an HTTP application by Idempotency-Key", help,
                                 run};
