/* Waiting for another to change a cell.
 *
 * The waiter marks the cell, so that the change is followed by a NOTIFY: cells that nobody waits for
 * cost nothing. The notice arrives on the connection that also brings the locks' wake-ups. The
 * handle's keeper may not run, so the waiting threads read it themselves: whoever finds something
 * there hands it out to all.
 *
 * Without that connection (a pooler, no connection left) a wait is a short pause before the next look. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/postgresql/postgresql.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PAUSE (100 * DIBS__MS)

struct dibs__pg_awaiting {
    char text[DIBS__SQL_TELL_SIZE]; /* what is told when it changes */
    int fd;                         /* readable: have a look */
    struct dibs__pg_awaiting *next;
};

typedef struct dibs__pg_awaiting awaiting;

static void come(dibs__pg *e, awaiting *a)
{
    pthread_mutex_lock(&e->await_mutex);
    a->next = e->awaiting;
    e->awaiting = a;
    pthread_mutex_unlock(&e->await_mutex);
}

static void go(dibs__pg *e, const awaiting *a)
{
    struct dibs__pg_awaiting **at = &e->awaiting;

    pthread_mutex_lock(&e->await_mutex);
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    pthread_mutex_unlock(&e->await_mutex);
    close(a->fd);
}

void dibs__pg_await_tell(dibs__pg *e, const char *text)
{
    const uint64_t one = 1;

    pthread_mutex_lock(&e->await_mutex);
    for (const awaiting *a = e->awaiting; a; a = a->next)
        if (!text || strcmp(a->text, text) == 0)
            (void)!write(a->fd, &one, sizeof one);
    pthread_mutex_unlock(&e->await_mutex);
}

static bool listens(dibs__pg *e)
{
    bool so;

    pthread_mutex_lock(&e->listen_mutex);
    so = e->listener != NULL;
    pthread_mutex_unlock(&e->listen_mutex);
    return so;
}

/* Until told, or `until`. */
static void sit(dibs__pg *e, const awaiting *a, dibs__deadline until)
{
    struct pollfd fds[2] = {{.fd = a->fd, .events = POLLIN}, {.fd = e->epoll, .events = POLLIN}};

    for (;;) {
        int ms = dibs__poll_ms(e->sql.base.env, until);
        int ready = poll(fds, listens(e) ? 2 : 1, ms);
        if (ready > 0 && fds[1].revents)
            dibs__pg_events(&e->sql.base);
        if ((ready > 0 && fds[0].revents) || ms == 0)
            return;
        fds[0].revents = fds[1].revents = 0;
    }
}

dibs_status dibs__pg_cell_wait(dibs__engine *base, const char *key, uint64_t version,
                               dibs__deadline until, dibs_error *err)
{
    dibs__pg *e = (dibs__pg *)base;
    awaiting a = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    bool same = false;
    dibs_status status;

    if (a.fd < 0)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: no descriptor left for waiting");
    dibs__sql_cell_text(key, a.text);
    come(e, &a);
    dibs__pg_listen(&e->sql, until);
    status = dibs__sql_cell_mark(&e->sql, key, version, until, &same, err);
    if (status == DIBS_OK && same)
        sit(e, &a, listens(e) ? until : dibs__sooner(until, dibs__after(base->env, PAUSE)));
    go(e, &a);
    return status;
}
