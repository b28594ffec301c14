/* What the server's errors are to a caller, by SQLSTATE. */
#include "engines/postgresql/postgresql.h"

#include "core/error.h"

#include <string.h>

static bool starts(const char *state, const char *with)
{
    return strncmp(state, with, strlen(with)) == 0;
}

/* Worth doing again at once: nothing was done, and it was nobody's fault. */
static bool worth_again(const char *state)
{
    static const char *const states[] = {
        "40001", /* serialization_failure */
        "40P01", /* deadlock_detected */
        "26000", /* a prepared statement that the server does not have (any more) */
        "25P03", /* idle_in_transaction_session_timeout: we were stopped in the middle */
        "57P01", /* admin_shutdown: the next connection may work */
        "57P02", /* crash_shutdown */
        "42P05", /* a prepared statement that the server has already */
        "23505", /* a waiter who was put there after JOIN had looked: it sees it now */
    };

    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(state, states[i]) == 0)
            return true;
    return false;
}

static dibs_status status_of(const char *state)
{
    if (starts(state, "28") || starts(state, "42501") || starts(state, "0L") || starts(state, "0P"))
        return DIBS_DENIED;
    if (starts(state, "08") || starts(state, "53") || starts(state, "57") || starts(state, "40") ||
        starts(state, "55P03") || starts(state, "25P03") || starts(state, "25006"))
        return DIBS_UNAVAILABLE;
    if (starts(state, "3D000"))
        return DIBS_INVALID;
    return DIBS_ENGINE_FAILED;
}

static const char *advice_for(const char *state)
{
    if (starts(state, "55P03"))
        return ": another session keeps the lock's row locked";
    if (starts(state, "25006"))
        return ": this is a standby or a read-only session; name the primary";
    if (starts(state, "42P01"))
        return ": the tables are gone; open a new handle to create them again";
    if (starts(state, "42501"))
        return ": the account needs SELECT, INSERT, UPDATE and DELETE on the tables";
    return "";
}

/* The first line of what libpq says, without "FATAL:  " and the like. */
static void first_line(const char *text, char *out, size_t size)
{
    size_t n;

    text += strspn(text, " \n");
    n = strcspn(text, "\n");
    if (n >= size)
        n = size - 1;
    memcpy(out, text, n);
    out[n] = '\0';
}

dibs_status dibs__pg_fault(const PGresult *res, bool *again, dibs_error *err)
{
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

    if (!state)
        state = "08006";
    *again = worth_again(state);
    dibs__fail(err, status_of(state), "postgresql: %.300s (SQLSTATE %.5s)%s",
               message ? message : "no answer", state, advice_for(state));
    dibs__error_code(err, "%.5s", state);
    return status_of(state);
}

bool dibs__pg_is_locked(const PGresult *res)
{
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

    return state && strcmp(state, "55P03") == 0;
}

/* libpq gives no SQLSTATE for a failed start: its words must do. */
static dibs_status status_of_start(const char *text)
{
    static const char *const denied[] = {"password authentication failed",
                                         "authentication failed",
                                         "no pg_hba.conf entry",
                                         "no password supplied",
                                         "role \"",
                                         "permission denied for database",
                                         "certificate",
                                         "private key",
                                         "SSL",
                                         "fe_sendauth"};

    if (strstr(text, "database \"") && strstr(text, "does not exist"))
        return DIBS_INVALID;
    if (strstr(text, "Connection refused") || strstr(text, "timeout expired") ||
        strstr(text, "received invalid response"))
        return DIBS_UNAVAILABLE;
    if (strstr(text, "invalid ") && strstr(text, "value:"))
        return DIBS_INVALID;
    for (size_t i = 0; i < sizeof denied / sizeof denied[0]; i++)
        if (strstr(text, denied[i]))
            return DIBS_DENIED;
    return DIBS_UNAVAILABLE;
}

dibs_status dibs__pg_fault_connecting(PGconn *pg, const char *label, dibs_error *err)
{
    dibs_status status = status_of_start(PQerrorMessage(pg));
    char line[400];
    size_t n;

    first_line(PQerrorMessage(pg), line, sizeof line);
    n = strlen(line);
    while (n > 0 &&
           strchr(": ", line[n - 1])) /* a peer that says nothing leaves libpq without words */
        line[--n] = '\0';
    dibs__fail(err, status, "postgresql: cannot connect to %s: %s%s", label,
               n ? line : "no answer in time",
               status == DIBS_UNAVAILABLE ? "; does PostgreSQL listen there?" : "");
    dibs__error_code(err, "%s", status == DIBS_DENIED ? "28000" : "08001");
    return status;
}

dibs_status dibs__pg_fault_lost(PGconn *pg, dibs_status status, dibs_error *err)
{
    char line[300];

    first_line(PQerrorMessage(pg), line, sizeof line);
    dibs__fail(err, status, "postgresql: %s", *line ? line : "the connection was lost");
    dibs__error_code(err, "08006");
    return status;
}
