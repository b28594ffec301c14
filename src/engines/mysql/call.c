/* One call of libmariadb at a time, for somebody who never waits: it is started, says what it waits
 * for, and is continued when its socket is ready. */
#include "engines/mysql/mysql.h"

#include <sys/socket.h>

int dibs__my_call_start(dibs__my_call *c, const dibs__my_address *p)
{
    int waits_for;

    switch (c->step) {
    case DIBS__MY_CONNECT:
        c->connected = NULL;
        waits_for =
            mysql_real_connect_start(&c->connected, c->m, p->host, p->user, p->password,
                                     p->database, p->port, p->socket, CLIENT_MULTI_STATEMENTS);
        if (waits_for)
            dibs__my_close_on_exec(c->m);
        return waits_for;
    case DIBS__MY_QUERY:
        return mysql_real_query_start(&c->failed, c->m, c->text.data, c->text.length);
    case DIBS__MY_STORE:
        return mysql_store_result_start(&c->result, c->m);
    case DIBS__MY_NEXT:
        break;
    }
    return mysql_next_result_start(&c->failed, c->m);
}

int dibs__my_call_go_on(dibs__my_call *c, int ready)
{
    int waits_for;

    switch (c->step) {
    case DIBS__MY_CONNECT:
        waits_for = mysql_real_connect_cont(&c->connected, c->m, ready);
        if (waits_for)
            dibs__my_close_on_exec(c->m);
        return waits_for;
    case DIBS__MY_QUERY:
        return mysql_real_query_cont(&c->failed, c->m, ready);
    case DIBS__MY_STORE:
        return mysql_store_result_cont(&c->result, c->m, ready);
    case DIBS__MY_NEXT:
        break;
    }
    return mysql_next_result_cont(&c->failed, c->m, ready);
}

void dibs__my_call_end(dibs__my_call *c)
{
    if (!c->m)
        return;
    if (c->waits_for)
        shutdown(mysql_get_socket(c->m), SHUT_RDWR);
    while (c->waits_for)
        c->waits_for = dibs__my_call_go_on(c, MYSQL_WAIT_TIMEOUT);
    mysql_free_result(c->result);
    c->result = NULL;
    dibs__my_close(c->m);
    c->m = NULL;
}
