/* One datagram to the socket in $NOTIFY_SOCKET; see the header. */
#define _GNU_SOURCE
#include "serve/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void serve_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    socklen_t size;
    int fd;

    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, path, strlen(path));
    if (path[0] == '@')
        to.sun_path[0] = '\0'; /* an abstract name */
    size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to, size) < 0)
        state = NULL; /* nobody listens: the service runs all the same */
    close(fd);
}
