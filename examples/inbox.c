/* An idempotent consumer on PostgreSQL (an inbox): messages are delivered at least once, their effect
 * is there exactly once.
 *
 * Each line of the input is a message, "ID ACCOUNT AMOUNT", as a broker would deliver it; "ack ID" on
 * the output tells the broker that it need not come again. The message's key and its effect are
 * written in one transaction: whenever this program dies, either both are there and a second delivery
 * finds the key, or neither is and the second delivery does the work.
 *
 * Usage: inbox CONNINFO <messages */
#include <dibs.h>
#include <dibs_sql.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PGconn *pg;

static bool run(const char *sql)
{
    PGresult *r = PQexec(pg, sql);
    bool good = PQresultStatus(r) == PGRES_COMMAND_OK;

    if (!good)
        fprintf(stderr, "%s", PQresultErrorMessage(r));
    PQclear(r);
    return good;
}

/* The effect: some money comes to an account. */
static bool book(const char *account, const char *amount)
{
    const char *v[] = {account, amount};
    PGresult *r = PQexecParams(pg,
                               "INSERT INTO account (name, balance) VALUES ($1, $2) "
                               "ON CONFLICT (name) DO UPDATE SET balance = account.balance + "
                               "excluded.balance",
                               2, NULL, v, NULL, NULL, 0);
    bool good = PQresultStatus(r) == PGRES_COMMAND_OK;

    if (!good)
        fprintf(stderr, "%s", PQresultErrorMessage(r));
    PQclear(r);
    return good;
}

/* One delivery. DIBS_OK, DIBS_ALREADY: it may be acknowledged. DIBS_RESTART, DIBS_BUSY:
 * to be tried again. All else is an error. */
static dibs_status consume(const char *id, const char *account, const char *amount, dibs_error *err)
{
    char what[128];
    dibs_sql_once_options options = {.scope = "inbox", .fingerprint = what, .wait_ms = 10000};
    dibs_status status;

    /* The same id for another message is a mistake of the sender's: it is refused, not swallowed. */
    options.fingerprint_size = (size_t)snprintf(what, sizeof what, "%.60s %.60s", account, amount);
    if (!run("BEGIN"))
        return DIBS_UNAVAILABLE;
    status = dibs_sql_once(dibs_sql_pg(pg), id, &options, NULL, err);
    if (status == DIBS_OK && !book(account, amount))
        status = DIBS_ENGINE_FAILED;
    if (status == DIBS_OK && !run("COMMIT"))
        return DIBS_UNAVAILABLE; /* it may be there or not: the next delivery will find out */
    if (status != DIBS_OK)
        run("ROLLBACK");
    return status;
}

static bool again(dibs_status status)
{
    return status == DIBS_RESTART || status == DIBS_BUSY;
}

static bool deliver(char *line)
{
    char *id = strtok(line, " \n"), *account = strtok(NULL, " \n"), *amount = strtok(NULL, " \n");
    dibs_error err = {0};
    dibs_status status = DIBS_INVALID;

    if (!amount)
        return fprintf(stderr, "a message is ID ACCOUNT AMOUNT\n"), false;
    do
        status = consume(id, account, amount, &err);
    while (again(status));
    if (status != DIBS_OK && status != DIBS_ALREADY) {
        fprintf(stderr, "%s: %s\n", id, err.message);
        return false;
    }
    printf("ack %s (%s)\n", id, status == DIBS_OK ? "booked" : "was booked before");
    return true;
}

int main(int argc, char **argv)
{
    char line[256];
    dibs_error err = {0};
    bool good = true;

    setvbuf(stdout, NULL, _IOLBF, 0);
    pg = argc == 2 ? PQconnectdb(argv[1]) : NULL;
    if (!pg || PQstatus(pg) != CONNECTION_OK) {
        fprintf(stderr, "usage: inbox CONNINFO <messages\n%s", pg ? PQerrorMessage(pg) : "");
        return 64;
    }
    if (dibs_sql_prepare(dibs_sql_pg(pg), &err) != DIBS_OK ||
        !run("SET client_min_messages = warning") ||
        !run("CREATE TABLE IF NOT EXISTS account (name text PRIMARY KEY, balance bigint)")) {
        fprintf(stderr, "%s\n", err.message);
        return 69;
    }
    while (good && fgets(line, sizeof line, stdin))
        good = deliver(line);
    PQfinish(pg);
    return good ? 0 : 1;
}
