/* What the server's and the library's error numbers are to a caller: a status, and what to do. */
#include "core/error.h"
#include "engines/mysql/mysql.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <string.h>

#define AGAIN true

static const struct {
    unsigned number;
    dibs_status status;
    bool again;
    const char *advice;
} faults[] = {
    {ER_LOCK_DEADLOCK, DIBS_UNAVAILABLE, AGAIN, "deadlocks kept coming"},
    {ER_LOCK_WAIT_TIMEOUT, DIBS_UNAVAILABLE, false,
     "another client keeps the row locked; look for a transaction that stays open"},
    {ER_STATEMENT_TIMEOUT, DIBS_UNAVAILABLE, false,
     "another client keeps the row locked; look for a transaction that stays open"},
    {ER_CHECKREAD, DIBS_UNAVAILABLE, AGAIN, "the row changed meanwhile"},
    {ER_QUERY_INTERRUPTED, DIBS_UNAVAILABLE, AGAIN, "the query was killed"},
    {ER_CON_COUNT_ERROR, DIBS_UNAVAILABLE, false, "raise max_connections or close some"},
    {ER_TOO_MANY_USER_CONNECTIONS, DIBS_UNAVAILABLE, false, "raise max_user_connections"},
    {ER_USER_LIMIT_REACHED, DIBS_UNAVAILABLE, false, "raise the account's limit"},
    {ER_SERVER_SHUTDOWN, DIBS_UNAVAILABLE, false, "wait until it is back"},
    {ER_NORMAL_SHUTDOWN, DIBS_UNAVAILABLE, false, "wait until it is back"},
    {ER_OPTION_PREVENTS_STATEMENT, DIBS_UNAVAILABLE, false,
     "it is read-only: connect to the primary"},
    {ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, DIBS_UNAVAILABLE, false,
     "it is read-only: connect to the primary"},
    {ER_ACCESS_DENIED_ERROR, DIBS_DENIED, false, "check user and password in the URL"},
    {ER_ACCESS_DENIED_NO_PASSWORD_ERROR, DIBS_DENIED, false, "check user and password in the URL"},
    {ER_DBACCESS_DENIED_ERROR, DIBS_DENIED, false, "grant the account this database"},
    {ER_HOST_NOT_PRIVILEGED, DIBS_DENIED, false, "grant the account for this host"},
    {ER_HOST_IS_BLOCKED, DIBS_DENIED, false, "run FLUSH HOSTS on the server"},
    {ER_ACCOUNT_HAS_BEEN_LOCKED, DIBS_DENIED, false, "unlock the account"},
    {ER_MUST_CHANGE_PASSWORD_LOGIN, DIBS_DENIED, false, "set a new password"},
    {ER_TABLEACCESS_DENIED_ERROR, DIBS_DENIED, false,
     "grant SELECT, INSERT, UPDATE and DELETE on the tables"},
    {ER_COLUMNACCESS_DENIED_ERROR, DIBS_DENIED, false,
     "grant SELECT, INSERT, UPDATE and DELETE on the tables"},
    {ER_SPECIFIC_ACCESS_DENIED_ERROR, DIBS_DENIED, false, "grant what it asks for"},
    {ER_BAD_DB_ERROR, DIBS_INVALID, false, "create the database or name another"},
    {ER_NO_SUCH_TABLE, DIBS_ENGINE_FAILED, false,
     "the tables are gone: open it again to have them made"},
    {ER_BAD_FIELD_ERROR, DIBS_ENGINE_FAILED, false,
     "the tables are not ours, or of another version: choose another table_prefix"},
    {ER_BINLOG_STMT_MODE_AND_ROW_ENGINE, DIBS_UNSUPPORTED, false,
     "set binlog_format to MIXED or ROW on the server"},
    {ER_OUTOFMEMORY, DIBS_UNAVAILABLE, false, "the server is out of memory"},
    {ER_RECORD_FILE_FULL, DIBS_ENGINE_FAILED, false, "make room on the server"},
    {ER_DISK_FULL, DIBS_ENGINE_FAILED, false, "make room on the server"},
    {CR_OUT_OF_MEMORY, DIBS_NO_MEMORY, false, "out of memory"},
    {CR_SSL_CONNECTION_ERROR, DIBS_DENIED, false,
     "TLS was requested and could not be established; check the certificates, or the server's TLS"},
    {CR_AUTH_PLUGIN_CANNOT_LOAD, DIBS_UNSUPPORTED, false,
     "the client library lacks what this account logs in with"},
    {CR_UNKNOWN_HOST, DIBS_UNAVAILABLE, false, "check the host in the URL"},
    {CR_CONN_HOST_ERROR, DIBS_UNAVAILABLE, false, "check host and port, and that the server runs"},
    {CR_CONNECTION_ERROR, DIBS_UNAVAILABLE, false,
     "check host and port, or the socket, and that the server runs"},
    {CR_SERVER_GONE_ERROR, DIBS_UNAVAILABLE, AGAIN, "the connection had gone"},
    {CR_SERVER_LOST, DIBS_UNAVAILABLE, false, "the connection broke"},
    {CR_SERVER_LOST_EXTENDED, DIBS_UNAVAILABLE, false, "the connection broke"},
    {ER_CONNECTION_KILLED, DIBS_UNAVAILABLE, false, "the connection was killed"},
};

/* Perhaps it was never the right server. */
static const char *doubt(const char *doing)
{
    return strcmp(doing, "connecting") == 0 ? ", and that MariaDB or MySQL listens there" : "";
}

dibs_status dibs__my_fault(const dibs__my *e, MYSQL *m, const char *doing, bool *again,
                           dibs_error *err)
{
    unsigned number = mysql_errno(m);
    dibs_status status = DIBS_ENGINE_FAILED;
    const char *advice = "see the server's log, or report this";

    *again = false;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        if (faults[i].number == number) {
            status = faults[i].status;
            *again = faults[i].again;
            advice = faults[i].advice;
        }
    }
    dibs__fail(err, status, "mysql: %s: %s: %.*s (%u): %s%s", e->address.label, doing,
               DIBS__MY_MESSAGE, mysql_error(m), number, advice,
               status == DIBS_UNAVAILABLE ? doubt(doing) : "");
    dibs__error_code(err, "%u", number);
    return status;
}

bool dibs__my_fatal(unsigned number)
{
    return (number >= CR_MIN_ERROR && number <= CR_MAX_ERROR) || number > 5000 ||
           number == ER_CONNECTION_KILLED || number == ER_SERVER_SHUTDOWN ||
           number == ER_NORMAL_SHUTDOWN || number == ER_OPTION_PREVENTS_STATEMENT;
}

dibs_status dibs__my_late(const dibs__my *e, const char *doing, dibs_error *err)
{
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "mysql: %s: %s: no answer in time: check that the server is reachable%s",
                      e->address.label, doing, doubt(doing));
}
