/* `dibs serve`: the subcommand. Opens the engine and the HTTP server, and ends both in order. */
#include "serve/serve.h"

#include "serve/dashboard.h"
#include "serve/metrics.h"
#include "serve/secret.h"
#include "serve/sets.h"

#include "cli/cli.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DRAIN_MS = 5000 };

static const char help[] =
    "usage: dibs serve [--listen ADDRESS]... [--url URL] [OPTION...]\n"
    "Serves locks, once, tokens, counters and cells over HTTP, and a dashboard.\n"
    "Any number of servers may run on one engine.\n\n"
    "  --listen ADDRESS   HOST:PORT or unix:PATH (default 127.0.0.1:8200)\n"
    "  --url URL         engine, or --url-file FILE (default: see dibs help)\n\n"
    "SIGTERM drains.\n";

static const char *const no_address[] = {"127.0.0.1:8200", NULL};

static const http_route *const routes[] = {
    serve_acquire_routes, serve_grant_routes,     serve_hold_routes,   serve_look_routes,
    serve_run_routes,     serve_key_routes,       serve_token_routes,  serve_counter_routes,
    serve_cell_routes,    serve_dashboard_routes, serve_status_routes, NULL};

static int open_engine(serve *s, const char *url)
{
    dibs_error err;

    if (dibs_open(url, NULL, &s->d, &err) != DIBS_OK)
        return cli_failed(&err);
    s->engine = dibs_engine_of(s->d);
    s->lease_ms = s->engine->lease_ms > 0 ? s->engine->lease_ms : 30000;
    serve_random(s->instance);
    s->metrics = serve_metrics_new();
    s->dashboard = serve_dashboard_new(s);
    return s->metrics && s->dashboard ? 0 : CLI_EXIT_SYSTEM;
}

static void on_ended(void *context, const http_route *route, const char *method, int status,
                     int64_t us)
{
    serve_metrics_exchange(((serve *)context)->metrics, route, method, status, us);
}

/* No new waits; what is held stays with its lease, and streams are told. */
static void on_drain(void *data)
{
    serve *s = data;

    http_server_drain(s->http);
    serve_acquire_drain(s);
    serve_dashboard_drain(s->dashboard);
    http_server_stop(s->http, DRAIN_MS);
}

static int open_http(serve *s, const cli_texts *listen)
{
    const char *addresses[33] = {0};
    http_options o = {.routes = routes,
                      .context = s,
                      .listen = no_address,
                      .on_ended = on_ended,
                      .on_drain = on_drain,
                      .api_title = "dibs",
                      .schemas = serve_schemas};
    dibs_error err = {0};

    for (size_t i = 0; i < listen->count && i < 32; i++)
        addresses[i] = listen->text[i];
    if (listen->count > 0)
        o.listen = addresses;
    if (http_server_open(&o, &s->http, &err) != DIBS_OK)
        return cli_failed(&err);
    if (!http_server_watch(s->http, dibs_fd(s->d), serve_take, s))
        return CLI_EXIT_SYSTEM;
    if (!s->advertise)
        s->advertise = http_server_address(s->http, 0);
    for (size_t i = 0; http_server_address(s->http, i); i++)
        fprintf(stderr, "dibs: serving %s at %s\n", dibs_engine_name(s->d),
                http_server_address(s->http, i));
    return 0;
}

/* Where the lease is the handle's, closing it would release locks that clients were promised: then the
 * process just ends, and the engine ends its session. */
static void close_all(serve *s)
{
    http_server_close(s->http);
    serve_dashboard_free(s->dashboard);
    serve_metrics_free(s->metrics);
    if (s->left_behind > 0)
        _exit(0);
    dibs_close(s->d);
}

static int run(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    cli_texts listen = {0};
    serve s = {0};
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"listen", CLI_TEXTS, &listen, 0, 0, 0},
                                  {"advertise", CLI_TEXT, &s.advertise, 0, 0, 0},
                                  {0}};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    if (words.count > 0)
        return cli_misused(self, "unexpected operand '%s'", words.word[0]);
    code = open_engine(&s, url);
    if (code == 0)
        code = open_http(&s, &listen);
    if (code == 0) {
        http_server_run(s.http);
        serve_grants_drain(&s);
    }
    close_all(&s);
    return code;
}

const cli_command cli_serve = {"serve", "serve locks over HTTP, with a dashboard", help, run};
