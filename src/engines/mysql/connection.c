/* Connecting, and setting a session up.
 *
 * A session is UTC (else UNIX time would repeat an hour at the end of summer time), READ COMMITTED
 * (no gap locks; a statement sees what was committed before it), commits by itself, speaks bytes,
 * and has an sql_mode of its own, whatever the server's is. A client that is stopped inside a
 * transaction must not keep a row from all others: the server ends such a session after two
 * seconds. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/mysql/mysql.h"

#include <errmsg.h>
#include <errno.h>
#include <mysqld_error.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEY_NAME      40
#define SESSION_TEXT  640
#define LONGEST_PAUSE (16 * DIBS__MS)

const char dibs__my_session[] =
    "SET SESSION time_zone = '+00:00', autocommit = 1, "
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 1"
    "/*M!100300 , idle_transaction_timeout = 2, max_statement_time = 0 */; "
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
    "SELECT @@version, @@log_bin, @@binlog_format, @@max_allowed_packet";

/* The library's own state is set up by the first who comes. */
static pthread_once_t library_once = PTHREAD_ONCE_INIT;

/* It ignores SIGPIPE for the whole process, which is not ours: the library's sockets do without. */
static void start_library(void)
{
    struct sigaction before;
    bool known = sigaction(SIGPIPE, NULL, &before) == 0;

    mysql_library_init(0, NULL, NULL);
    if (known)
        sigaction(SIGPIPE, &before, NULL);
}

static void set_tls(MYSQL *m, const dibs__my_address *address)
{
    my_bool yes = 1, verify = address->verify;

    if (!address->tls)
        return;
    mysql_ssl_set(m, address->key, address->cert, address->ca, address->ca_path, NULL);
    mysql_options(m, MYSQL_OPT_SSL_ENFORCE, &yes);
    mysql_options(m, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
}

MYSQL *dibs__my_new(const dibs__my_address *address)
{
    unsigned protocol = address->socket ? MYSQL_PROTOCOL_SOCKET : MYSQL_PROTOCOL_TCP, no = 0;
    MYSQL *m;

    pthread_once(&library_once, start_library);
    m = mysql_init(NULL);
    if (!m)
        return NULL;
    if (mysql_options(m, MYSQL_OPT_NONBLOCK, 0) != 0) {
        mysql_close(m);
        return NULL;
    }
    mysql_options(m, MYSQL_OPT_PROTOCOL, &protocol);
    mysql_options(m, MYSQL_OPT_LOCAL_INFILE, &no);
    mysql_options(m, MYSQL_SET_CHARSET_NAME, "binary");
    mysql_options4(m, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", "dibs");
    set_tls(m, address);
    return m;
}

/* Is that a server which we can work with, and which of the two is it? */
static dibs_status read_server(const dibs__my *e, dibs__my_conn *c, MYSQL_ROW row, dibs_error *err)
{
    c->mariadb = c->prepares = row[0] && strstr(row[0], "MariaDB") != NULL;
    c->packet_max = row[3] ? strtoull(row[3], NULL, 10) : 0;
    if (row[1] && row[2] && strcmp(row[1], "0") != 0 && strcasecmp(row[2], "STATEMENT") == 0)
        return dibs__fail(
            err, DIBS_UNSUPPORTED,
            "mysql: %s: the binary log is in STATEMENT format, in which times differ on "
            "a replica: set binlog_format to MIXED or ROW on the server",
            e->address.label);
    return DIBS_OK;
}

static dibs_status failed(dibs__my *e, MYSQL *m, bool late, const char *doing, dibs_error *err)
{
    bool again;

    if (late)
        return dibs__my_late(e, doing, err);
    if (mysql_errno(m) == ER_CON_COUNT_ERROR || mysql_errno(m) == ER_TOO_MANY_USER_CONNECTIONS)
        atomic_store(&e->full, true);
    return dibs__my_fault(e, m, doing, &again, err);
}

/* The name of the lock by which this session is found when it was given up. */
static void key_name(uint64_t key, char out[KEY_NAME])
{
    snprintf(out, KEY_NAME, "dibs:session:%016llx", (unsigned long long)key);
}

/* Reads the answers to dibs__my_session, and to the lock of its own after it. */
static dibs_status set_up(dibs__my *e, dibs__my_conn *c, dibs__deadline until, dibs_error *err)
{
    MYSQL *m = c->m;
    const dibs__env *env = e->base.base.env;
    uint64_t key = dibs__sql_stray_key(env);
    char name[KEY_NAME], text[SESSION_TEXT];
    bool late, more = true;
    dibs_status status = DIBS_OK;

    key_name(key, name);
    snprintf(text, sizeof text, "%s; SELECT GET_LOCK('%s', 0)", dibs__my_session, name);
    late = dibs__my_query(m, text, strlen(text), env, until) < 0;

    while (!late && more && status == DIBS_OK && mysql_errno(m) == 0) {
        MYSQL_RES *result = NULL;
        MYSQL_ROW row;
        late = dibs__my_store(m, &result, env, until) < 0;
        row = result ? mysql_fetch_row(result) : NULL;
        if (row && mysql_num_fields(result) > 1)
            status = read_server(e, c, row, err);
        else if (row && row[0] && strcmp(row[0], "1") == 0)
            c->base.key = key;
        mysql_free_result(result);
        if (!late && mysql_errno(m) == 0)
            late = dibs__my_next(m, &more, env, until) < 0;
    }
    if (late || mysql_errno(m) != 0)
        return failed(e, m, late, "setting the session up", err);
    return status;
}

/* ---- Sessions that were given up ------------------------------------------------------------- */

/* The server has said why not, and will say it again. (What passes is unavailable: see error.c.) */
static bool is_refused(const dibs__my_conn *c, dibs_status status)
{
    return !c->base.broken && mysql_errno(c->m) != 0 &&
           (status == DIBS_DENIED || status == DIBS_ENGINE_FAILED || status == DIBS_UNSUPPORTED);
}

/* One of them: killed until there is none. A session lets go of its lock when all else of it is over. */
static dibs_status end_stray(dibs__my_conn *c, uint64_t key, dibs__deadline until, dibs_error *err)
{
    char name[KEY_NAME], text[KEY_NAME + 64];
    const dibs__env *env = c->base.e->base.env;
    int64_t pause = DIBS__MS;

    key_name(key, name);
    snprintf(text, sizeof text, "KILL CONNECTION IS_USED_LOCK('%s')", name);
    for (;;) {
        dibs_status status = dibs__my_do(c, text, until, err);
        if (status != DIBS_OK && !c->base.broken && mysql_errno(c->m) == ER_NO_SUCH_THREAD)
            return DIBS_OK;
        if (status != DIBS_OK)
            return is_refused(c, status) ? DIBS_DENIED : status;
        if (dibs__now(env) >= until)
            return dibs__my_late((dibs__my *)c->base.e, "ending a session", err);
        dibs__sleep(env, pause);
        pause = dibs__longer(pause, DIBS__MS, LONGEST_PAUSE);
    }
}

dibs_status dibs__my_end_strays(dibs__sql_conn *base, const uint64_t keys[], size_t count,
                                dibs__deadline until, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    for (size_t i = 0; i < count && status == DIBS_OK; i++)
        status = end_stray((dibs__my_conn *)base, keys[i], until, err);
    return status;
}

/* ---- Connecting ------------------------------------------------------------------------------ */

static dibs_status check_tls(const dibs__my *e, MYSQL *m, dibs_error *err)
{
    if (e->address.tls && !mysql_get_ssl_cipher(m))
        return dibs__fail(
            err, DIBS_DENIED,
            "mysql: %s: TLS is required and the server does not support it: refusing to "
            "connect in plain text",
            e->address.label);
    return DIBS_OK;
}

/* TLS 1.3 tells nobody why: to the client the handshake is over when the server looks at its
 * certificate. */
static dibs_status hung_up(const dibs__my *e, dibs_error *err)
{
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "mysql: %s: the server closed the connection: check that it accepts the "
                      "certificate in ssl_cert, and that it is running",
                      e->address.label);
}

/* Fills in `m`; it stays NULL when there is no memory or no time. `late`: the latter. */
static void dial(dibs__my *e, dibs__deadline until, MYSQL **m, bool *late)
{
    const dibs__env *env = e->base.base.env;

    *late = false;
    if (e->address.detached) {
        dibs__my_dial *d = dibs__my_dial_start(&e->address, until - dibs__now(env), -1);
        if (d) {
            dibs__my_dial_wait(d, env, until);
            *m = dibs__my_dial_end(d);
            *late = !*m;
        }
    } else if ((*m = dibs__my_new(&e->address)) != NULL) {
        *late = dibs__my_connect(*m, &e->address, env, until) < 0;
    }
}

static dibs_status reach(dibs__my *e, dibs__my_conn *c, dibs__deadline until, dibs_error *err)
{
    dibs_status status;
    bool late;

    dial(e, until, &c->m, &late);
    if (!c->m && !late)
        return dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory or threads");
    if (!late && e->address.cert && mysql_errno(c->m) == CR_SERVER_LOST)
        return hung_up(e, err);
    if (late || mysql_errno(c->m) != 0)
        return failed(e, c->m, late, "connecting", err);
    status = check_tls(e, c->m, err);
    return status == DIBS_OK ? set_up(e, c, until, err) : status;
}

dibs_status dibs__my_conn_open(dibs__sql *base, dibs__deadline until, dibs__sql_conn **out,
                               dibs_error *err)
{
    dibs__my *e = (dibs__my *)base;
    dibs__my_conn *c = calloc(1, sizeof *c);
    dibs_status status;

    if (!c)
        return dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
    c->base.e = base;
    c->binary = c->hands_out = true;
    c->row_wait = DIBS__MY_ROW_MS;
    status = reach(e, c, until, err);
    if (status != DIBS_OK) {
        dibs__my_conn_close(&c->base);
        return status;
    }
    *out = &c->base;
    return DIBS_OK;
}

static void free_conn(dibs__my_conn *c)
{
    dibs__bytes_fini(&c->text);
    free(c->statement);
    free(c->forecast);
    free(c->cells);
    free(c->watcher);
    dibs__sql_batch_fini(&c->notifying);
    free(c);
}

void dibs__my_conn_close(dibs__sql_conn *base)
{
    static const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    dibs__my_conn *c = (dibs__my_conn *)base;

    if (c->m && base->broken) /* what the kernel has not sent yet shall not go out later */
        setsockopt(mysql_get_socket(c->m), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (c->m)
        dibs__my_close(c->m);
    dibs__my_quick_fini(c);
    free_conn(c);
}

/* The library would say goodbye on the parent's connection: only the descriptor is closed. */
void dibs__my_conn_abandon(dibs__sql_conn *base)
{
    close(mysql_get_socket(((dibs__my_conn *)base)->m));
}

/* Between exchanges the server has nothing to say: what can be read is its goodbye. */
bool dibs__my_conn_usable(dibs__sql_conn *base)
{
    char byte;
    ssize_t n =
        recv(mysql_get_socket(((dibs__my_conn *)base)->m), &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}
