/* Locks in an event loop of your own: epoll. Usage: epoll [URL] */
#include "printer.h"

#include <sys/epoll.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    printer p = {0};
    struct epoll_event event = {.events = EPOLLIN};
    int status = printer_open(&p, argc > 1 ? argv[1] : NULL), loop;

    if (status)
        return status;
    loop = epoll_create1(EPOLL_CLOEXEC);
    if (loop < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, dibs_fd(p.d), &event) != 0)
        return 71;
    while (printer_take(&p))
        epoll_wait(loop, &event, 1, -1); /* a server has its sockets in the same set */
    close(loop);
    return printer_close(&p);
}
