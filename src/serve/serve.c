/* `dibs serve`: the subcommand. Opens the engine and the HTTP server, and ends both in order. */
#include "serve/serve.h"

#include "serve/dashboard.h"
#include "serve/metrics.h"

#include "cli/cli.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "usage: dibs serve [--listen ADDRESS]... [--url URL] [OPTION...]\n"
    "Serves locks, once, tokens, counters and cells over HTTP, and a dashboard.\n"
    "Any number of servers may run on one engine.\n\n"
    "  --listen ADDRESS  HOST:PORT or unix:PATH (default 127.0.0.1:8200)\n"
    "  --url URL         engine, or --url-file FILE (default: see dibs help)\n\n"
    "SIGTERM drains.\n";

static const char *const no_address[] = {"127.0.0.1:8200", NULL};

static const http_route *const routes[] = {serve_look_routes, serve_dashboard_routes, NULL};

static int open_engine(serve *s, const char *url)
{
    dibs_error err;

    if (dibs_open(url, NULL, &s->d, &err) != DIBS_OK)
        return cli_failed(&err);
    s->engine = dibs_engine_of(s->d);
    s->metrics = serve_metrics_new();
    s->dashboard = serve_dashboard_new(s);
    return s->metrics && s->dashboard ? 0 : CLI_EXIT_SYSTEM;
}

static void on_ended(void *context, const http_route *route, const char *method, int status,
                     int64_t us)
{
    serve_metrics_exchange(((serve *)context)->metrics, route, method, status, us);
}

static int open_http(serve *s, const cli_texts *listen)
{
    const char *addresses[33] = {0};
    http_options o = {.routes = routes, .context = s, .listen = no_address, .on_ended = on_ended};
    dibs_error err = {0};

    for (size_t i = 0; i < listen->count && i < 32; i++)
        addresses[i] = listen->text[i];
    if (listen->count > 0)
        o.listen = addresses;
    if (http_server_open(&o, &s->http, &err) != DIBS_OK)
        return cli_failed(&err);
    if (!http_server_watch(s->http, dibs_fd(s->d), serve_take, s))
        return CLI_EXIT_SYSTEM;
    for (size_t i = 0; http_server_address(s->http, i); i++)
        fprintf(stderr, "dibs: serving %s at %s\n", dibs_engine_name(s->d),
                http_server_address(s->http, i));
    return 0;
}

static int run(const cli_command *self, int argc, char **argv)
{
    const char *url = NULL;
    cli_texts listen = {0};
    const cli_option options[] = {
        CLI_URL_OPTIONS(&url), {"listen", CLI_TEXTS, &listen, 0, 0, 0}, {0}};
    serve s = {0};
    cli_words words;
    int code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    if (words.count > 0)
        return cli_misused(self, "unexpected operand '%s'", words.word[0]);
    code = open_engine(&s, url);
    if (code == 0)
        code = open_http(&s, &listen);
    if (code == 0)
        http_server_run(s.http);
    http_server_close(s.http);
    serve_dashboard_free(s.dashboard);
    serve_metrics_free(s.metrics);
    dibs_close(s.d);
    return code;
}

const cli_command cli_serve = {"serve", "serve locks over HTTP, with a dashboard", help, run};
