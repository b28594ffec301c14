/* `dibs lab shop`: one strategy over HTTP, until a signal ends it. */
#include "cli/json.h"
#include "lab/command.h"
#include "shop.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_PORT 8080

/* ---- Open hours ------------------------------------------------------------------------------ */

static void take_signals(sigset_t *ending)
{
    sigemptyset(ending);
    sigaddset(ending, SIGINT);
    sigaddset(ending, SIGTERM);
    sigaddset(ending, SIGHUP);
    pthread_sigmask(SIG_BLOCK, ending, NULL);
    signal(SIGPIPE, SIG_IGN); /* buyers go away as they like */
}

static void print_tally(const lab_request *r, const lab_shop *shop, const lab_tally *t)
{
    if (r->json)
        cli_json_print(lab_shop_json(shop, t), 2);
    else
        printf("sold %" PRId64 ", sold out %" PRId64 ", failed %" PRId64 "; left %" PRId64
               " of %" PRId64 ", oversold %" PRId64 "\n",
               t->sold, t->sold_out, t->failed, t->left, t->stock, t->oversold);
}

/* Returns the exit code. A second signal while it closes ends it at once. */
static int trade(const lab_request *r, lab_shop *shop, int socket, int64_t port)
{
    char why[256] = "";
    sigset_t ending;
    lab_shop_http *http;
    lab_tally tally;
    int number;

    take_signals(&ending);
    http =
        lab_shop_http_start(shop, r->site.url[r->chosen[0]->stock], r->plan.threads, socket, why);
    if (!http) {
        cli_say("%s", why);
        return CLI_EXIT_SYSTEM;
    }
    cli_say("http://127.0.0.1:%" PRId64 "/ sells %" PRId64 " pieces with %s; Ctrl-C closes it",
            port, r->plan.stock, r->chosen[0]->name);
    while (sigwait(&ending, &number) != 0)
        continue;
    pthread_sigmask(SIG_UNBLOCK, &ending, NULL);
    lab_shop_http_stop(http);
    if (lab_shop_tally(shop, &tally, why))
        print_tally(r, shop, &tally);
    else
        cli_say("the stock record cannot be read: %s", why);
    return CLI_EXIT_SIGNAL + number;
}

/* The socket comes first: when another shop has the port, its books are left alone. */
static int keep_shop(lab_request *r, int64_t port)
{
    char why[256] = "";
    lab_shop *shop;
    int socket, code;

    if (!lab_request_can(r, r->chosen[0]))
        return CLI_EXIT_USAGE;
    socket = lab_shop_http_listen(&port, why);
    if (socket < 0) {
        cli_say("%s", why);
        return CLI_EXIT_SYSTEM;
    }
    shop = lab_shop_open(r->chosen[0], &r->site, r->plan.threads, r->plan.stock, why);
    if (!shop) {
        close(socket);
        cli_say("%s", why);
        return dibs_status_exit_code(DIBS_UNAVAILABLE);
    }
    code = trade(r, shop, socket, port);
    lab_shop_close(shop);
    return code;
}

int lab_verb_shop(const cli_command *self, int argc, char **argv)
{
    const char *name = NULL, *url = NULL;
    int64_t port = DEFAULT_PORT;
    const cli_option more[] = {{"strategy", CLI_TEXT, &name, 0, 0, 0},
                               CLI_URL_OPTIONS(&url),
                               {"port", CLI_NUMBER, &port, 0, 65535, 0},
                               {0}};
    lab_request r = {0};
    cli_option options[LAB_OPTIONS_MAX];
    cli_words words;
    int code;

    lab_request_options(&r, options, more);
    code = cli_parse(self, options, argc, argv, &words);
    if (code < 0 && words.count > 0)
        code = cli_misused(self, "shop takes no operands, but got '%s'", words.word[0]);
    if (code < 0 && !name)
        code = cli_misused(self, "shop needs --strategy NAME: dibs lab list names them");
    if (code < 0)
        code = lab_request_choose_one(&r, self, name);
    if (code < 0)
        code = lab_request_place_url(&r, self, url);
    if (code < 0)
        code = lab_request_open(&r);
    if (code >= 0)
        return code;
    code = keep_shop(&r, port);
    lab_request_close(&r);
    return cli_finish(code);
}
