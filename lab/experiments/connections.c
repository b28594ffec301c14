/* D3: long holders use up the connections. Each waits for one row in a transaction of its own, and keeps
 * a connection all the while; when all are taken, even those who want another row are turned away. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>

#define LIMIT 12 /* of the account, so that no shared server is disturbed */

static bool limit_account(lab_sessions *x)
{
    if (x->server == LAB_MARIADB)
        return lab_a(x,
                     "CREATE OR REPLACE USER lab_few@'127.0.0.1' WITH MAX_USER_CONNECTIONS 12") &&
               lab_a(x, "GRANT ALL ON *.* TO lab_few@'127.0.0.1'");
    lab_a(x, "DROP ROLE IF EXISTS lab_few");
    return lab_a(x, "CREATE ROLE lab_few LOGIN CONNECTION LIMIT 12");
}

/* The same place, as the account that may have few connections. */
static bool url_of_few(const lab_site *site, lab_server server, lab_site *out)
{
    const char *url = site->url[server], *at = NULL, *rest = NULL;

    for (const char *c = url; *c; c++) {
        if (c[0] == ':' && c[1] == '/' && c[2] == '/')
            rest = c + 3;
        if (*c == '@')
            at = c + 1;
    }
    if (!rest)
        return false;
    *out = *site;
    snprintf(out->url[server], sizeof out->url[server], "%.*slab_few@%s", (int)(rest - url), url,
             at ? at : rest);
    return true;
}

static void use_up(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_sessions x;
    lab_site few;
    lab_sql *taken[LIMIT + 4] = {0};
    lab_buyer buyer = {.site = &few};
    int n = 0;

    if (!lab_sessions_open(&x, site, server) || !limit_account(&x) ||
        !url_of_few(site, server, &few)) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
        lab_sessions_close(&x);
        return;
    }
    while (n < LIMIT + 4 && (taken[n] = lab_sql_open(&buyer, server)) &&
           lab_sql_run(&buyer, taken[n], "BEGIN") >= 0)
        n++;
    if (n < LIMIT + 4)
        lab_found(out, LAB_SHOWN,
                  "%d holders keep %d connections; the next buyer, for any row, gets an error: %s",
                  n, n, buyer.note);
    else
        lab_found(out, LAB_NOT_RUN, "the account's limit of %d connections did not hold", LIMIT);
    for (int i = 0; i < LIMIT + 4; i++)
        lab_sql_close(taken[i]);
    lab_a(&x, server == LAB_MARIADB ? "DROP USER lab_few@'127.0.0.1'" : "DROP ROLE lab_few");
    lab_sessions_close(&x);
}

LAB_ON_BOTH(lab_connections, "D3", "connections", "long holders use up the connections", use_up);
