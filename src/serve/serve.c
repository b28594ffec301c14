/* `dibs serve`: the subcommand. Opens the engine and the HTTP server, and ends both in order. */
#include "serve/serve.h"
#include "serve/dashboard.h"
#include "serve/metrics.h"
#include "serve/notify.h"
#include "serve/past.h"
#include "serve/secret.h"
#include "serve/sets.h"

#include "cli/cli.h"
#include "cli/options.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DRAIN_MS = 5000, CLOSE_MS = 2000, CONNECTIONS_MAX = 1000000, HEADER_MIN = 1024 };

static const char help[] =
    "usage: dibs serve [--listen ADDRESS]... [--url URL] [OPTION...]\n"
    "Serves locks, once, tokens, counters and cells over HTTP, and a dashboard. Any\n"
    "number of servers may run on one engine. See dibs-serve(1) and docs/http.md.\n\n"
    "  --listen ADDRESS   HOST:PORT, unix:PATH or fd:N (default 127.0.0.1:8200)\n"
    "  --advertise URL    address of this very server (default: the first one above,\n"
    "                     with the name of this machine for 0.0.0.0 and [::])\n"
    "  --tokens FILE      lines of NAME SHA256 VERBS [PREFIX...]; SIGHUP rereads it\n"
    "  --tls-cert FILE, --tls-key FILE  certificate chain and key, PEM\n"
    "  --client-ca FILE   accept clients that have a certificate of this CA\n"
    "  --lease D          lease of locks that give none (default 30s)\n"
    "  --slice D          a wait is answered 202 after this (default 25s)\n"
    "  --access-log FILE  one JSON object per request; '-': standard output\n"
    "  --cors ORIGIN      let pages of this origin ask ('*': of any; default: none)\n"
    "  --connections N    at most N connections (default 20000)\n"
    "  --header-max N     bytes of a request's head (default 8192)\n"
    "  --patience D       time for a request to arrive, and for idle connections\n"
    "                     (default 30s)\n"
    "  --url URL          engine, or --url-file FILE (default: see dibs help)\n\n"
    "Without --tokens and --client-ca it listens at loopback and unix sockets only.\n"
    "SIGTERM: drain, then exit.\n";

static const char *const no_address[] = {"127.0.0.1:8200", NULL};

static const http_route *const routes[] = {
    serve_acquire_routes, serve_grant_routes,     serve_hold_routes,   serve_inspect_routes,
    serve_run_routes,     serve_key_routes,       serve_token_routes,  serve_counter_routes,
    serve_cell_routes,    serve_dashboard_routes, serve_status_routes, NULL};

/* ---- What happens to the process ------------------------------------------------------------- */

/* No new waits; what is held stays with its lease, and streams are told. */
static void on_drain(void *data)
{
    serve *s = data;

    serve_notify("STOPPING=1");
    http_server_drain(s->http);
    serve_waits_drain(s);
    serve_dashboard_drain(s->dashboard);
    http_server_stop(s->http, DRAIN_MS);
}

static void on_ended(void *context, const http_route *route, const char *method, int status,
                     int64_t us)
{
    serve_metrics_exchange(((serve *)context)->metrics, route, method, status, us);
}

static void on_reload(void *data, const dibs_error *err)
{
    serve *s = data;

    serve_streams_check(s);
    serve_dashboard_check(s->dashboard);
    if (err->status != DIBS_OK)
        cli_say("reload: %s; the old one stays in use", err->message);
    else
        cli_say("reloaded");
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static int open_engine(serve *s, const char *url)
{
    const dibs_options options = {.lease_ms = s->lease_ms};
    dibs_error err;

    if (dibs_open(url, &options, &s->d, &err) != DIBS_OK)
        return cli_failed(&err);
    s->engine = dibs_engine_of(s->d);
    if (s->engine->lease_ms > 0)
        s->lease_ms = s->engine->lease_ms;
    if (s->lease_ms == 0)
        s->lease_ms = 30000;
    serve_random(s->instance);
    s->past = serve_past_new();
    s->past_runs = serve_past_new();
    s->ready = serve_ready_new();
    s->metrics = serve_metrics_new();
    s->dashboard = serve_dashboard_new(s);
    if (!s->past || !s->past_runs || !s->ready || !s->metrics || !s->dashboard)
        return CLI_EXIT_SYSTEM;
    return 0;
}

static int open_http(serve *s, http_options *o)
{
    dibs_error err = {0};

    o->routes = routes;
    o->schemas = serve_schemas;
    o->api_title = "dibs";
    o->context = s;
    o->on_ended = on_ended;
    o->on_handled = serve_take_answers;
    o->on_drain = on_drain;
    o->on_reload = on_reload;
    if (http_server_open(o, &s->http, &err) != DIBS_OK)
        return cli_failed(&err);
    if (!http_server_watch(s->http, dibs_fd(s->d), serve_take, s))
        return CLI_EXIT_SYSTEM;
    if (!s->advertise)
        s->advertise = http_server_reach(s->http, 0);
    for (size_t i = 0; http_server_address(s->http, i); i++)
        cli_say("serving %s at %s", dibs_engine_name(s->d), http_server_address(s->http, i));
    return 0;
}

/* Takes the last outcomes. Those who get them set timers and answer exchanges: the HTTP server is still there. */
static void take_last(serve *s)
{
    struct pollfd fd = {.fd = dibs_fd(s->d), .events = POLLIN};
    int64_t until = http_now_ms() + CLOSE_MS;

    while (s->calls > 0 && http_now_ms() < until && poll(&fd, 1, 100) >= 0)
        serve_take(s);
}

/* Where the lease is the handle's, closing it would release locks that clients were promised: then the process
 * ends without it, and the engine ends its session. */
static void close_engine(serve *s)
{
    if (s->left_behind > 0)
        _exit(0);
    dibs_close(s->d);
}

static int check(const cli_command *self, const http_options *o, const cli_words *words,
                 const cli_texts *listen)
{
    if (words->count > 0)
        return cli_misused(self, "unexpected operand '%s'", words->word[0]);
    if (!o->cert != !o->key)
        return cli_misused(self, "--tls-cert and --tls-key belong together");
    if (o->client_ca && !o->cert)
        return cli_misused(self, "--client-ca needs --tls-cert and --tls-key");
    if (listen->count > 8)
        return cli_misused(self, "give at most 8 --listen");
    return -1;
}

static int serve_all(serve *s, const char *url, http_options *o)
{
    int code = open_engine(s, url);

    if (code == 0)
        code = open_http(s, o);
    if (code == 0) {
        serve_notify("READY=1");
        http_server_run(s->http);
        take_last(s);
        serve_grants_drain(s);
    }
    http_server_close(s->http);
    close_engine(s);
    serve_dashboard_free(s->dashboard);
    serve_metrics_free(s->metrics);
    serve_ready_free(s->ready);
    serve_past_free(s->past);
    serve_past_free(s->past_runs);
    return code;
}

static int run(const cli_command *self, int argc, char **argv)
{
    static serve s; /* what is in its tables at the end is still reachable */
    const char *url = NULL;
    http_options o = {.listen = no_address};
    int64_t connections = 0, header = 0;
    cli_texts listen = {0};
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"listen", CLI_TEXTS, &listen, 0, 0, 0},
                                  {"advertise", CLI_TEXT, &s.advertise, 0, 0, 0},
                                  {"tokens", CLI_TEXT, &o.tokens, 0, 0, 0},
                                  {"tls-cert", CLI_TEXT, &o.cert, 0, 0, 0},
                                  {"tls-key", CLI_TEXT, &o.key, 0, 0, 0},
                                  {"client-ca", CLI_TEXT, &o.client_ca, 0, 0, 0},
                                  {"access-log", CLI_TEXT, &o.access_log, 0, 0, 0},
                                  {"cors", CLI_TEXT, &o.cors, 0, 0, 0},
                                  {"lease", CLI_SPAN, &s.lease_ms, CLI_LEASE_MIN, CLI_LEASE_MAX, 0},
                                  {"slice", CLI_SPAN, &s.slice_ms, 100, CLI_LEASE_MAX, 0},
                                  {"connections", CLI_NUMBER, &connections, 1, CONNECTIONS_MAX, 0},
                                  {"header-max", CLI_NUMBER, &header, HEADER_MIN, 1024 * 1024, 0},
                                  {"patience", CLI_SPAN, &o.patience_ms, 100, CLI_LEASE_MAX, 0},
                                  {0}};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code < 0)
        code = check(self, &o, &words, &listen);
    if (code >= 0)
        return code;
    if (s.slice_ms == 0)
        s.slice_ms = SERVE_SLICE_MS;
    o.connections = (size_t)connections;
    o.header_max = (size_t)header;
    if (listen.count > 0)
        o.listen = listen.text; /* ended by a NULL: there are at most 8 */
    return serve_all(&s, url, &o);
}

const cli_command cli_serve = {"serve", "serve locks over HTTP, with a dashboard", help, run};
