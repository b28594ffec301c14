/* Seen by this file alone: the plain names are functions of their own here. */
#undef _FILE_OFFSET_BITS
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include "support/syscalls.h"

#include "support/countdown.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

static countdown calls;
static atomic_int which, last_error;
static const char *_Atomic last_name;

void syscall_fail(long n, bool for_ever, int variant)
{
    atomic_store(&which, for_ever ? 0 : variant);
    countdown_start(&calls, n, for_ever);
}

bool syscall_heal(void)
{
    return countdown_end(&calls);
}

const char *syscall_failed(int *error)
{
    *error = atomic_load(&last_error);
    return atomic_load(&last_name);
}

/* 0: it does not fail. `errors`: SYSCALL_VARIANTS of them. */
static int strike(const char *name, const int errors[], const void *caller)
{
    int error;

    if (!countdown_strikes(&calls, caller))
        return 0;
    error = errors[atomic_load(&which)];
    atomic_store(&last_name, name);
    atomic_store(&last_error, error);
    return error;
}

/* A function of the C library's with a failure in front. `a`, `b`, `c`: its errors. `told`: how it reports one. */
#define FAILING(type, name, parameters, arguments, failed, a, b, c)        \
    type name parameters;                                                  \
    type name parameters                                                   \
    {                                                                      \
        static type(*real) parameters;                                     \
        static const int errors[SYSCALL_VARIANTS] = {a, b, c};             \
        int error = strike(#name, errors, __builtin_return_address(0));    \
        if (!real)                                                         \
            real = (type(*) parameters)(uintptr_t)dlsym(RTLD_NEXT, #name); \
        if (error)                                                         \
            return failed;                                                 \
        return real arguments;                                             \
    }

#define MINUS_1 (errno = error, -1)

/* ---- Sockets ---------------------------------------------------------------------------------- */

FAILING(int, socket, (int domain, int type, int protocol), (domain, type, protocol), MINUS_1,
        EMFILE, ENOMEM, ENOBUFS)
FAILING(int, connect, (int fd, const struct sockaddr *to, socklen_t size), (fd, to, size), MINUS_1,
        ECONNREFUSED, ENETUNREACH, EINTR)
FAILING(int, setsockopt, (int fd, int level, int option, const void *value, socklen_t size),
        (fd, level, option, value, size), MINUS_1, ENOBUFS, ENOMEM, ENOBUFS)
FAILING(ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags),
        MINUS_1, ECONNRESET, EAGAIN, EINTR)
FAILING(ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags),
        MINUS_1, ECONNRESET, EAGAIN, EINTR)
FAILING(int, getaddrinfo,
        (const char *node, const char *service, const struct addrinfo *hints,
         struct addrinfo **out),
        (node, service, hints, out), error, EAI_MEMORY, EAI_FAIL, EAI_AGAIN)

/* ---- Events and threads ----------------------------------------------------------------------- */

FAILING(int, poll, (struct pollfd * fds, nfds_t count, int ms), (fds, count, ms), MINUS_1, ENOMEM,
        EINTR, ENOMEM)
FAILING(int, epoll_create1, (int flags), (flags), MINUS_1, EMFILE, ENOMEM, EMFILE)
FAILING(int, epoll_ctl, (int fd, int op, int of, struct epoll_event *e), (fd, op, of, e), MINUS_1,
        ENOMEM, ENOSPC, ENOMEM)
FAILING(int, epoll_wait, (int fd, struct epoll_event *events, int most, int ms),
        (fd, events, most, ms), MINUS_1, EINTR, EINTR, EINTR)
FAILING(int, eventfd, (unsigned value, int flags), (value, flags), MINUS_1, EMFILE, ENOMEM, ENFILE)
FAILING(int, timerfd_create, (int clock, int flags), (clock, flags), MINUS_1, EMFILE, ENOMEM,
        ENFILE)
FAILING(int, pipe, (int fds[2]), (fds), MINUS_1, EMFILE, ENFILE, EMFILE)
FAILING(int, inotify_init1, (int flags), (flags), MINUS_1, EMFILE, ENOMEM, EMFILE)
FAILING(int, inotify_add_watch, (int fd, const char *path, uint32_t mask), (fd, path, mask),
        MINUS_1, ENOSPC, ENOMEM, ENOSPC)
/* Only ours: libzookeeper ends the process when it gets no thread. */
int pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *data)
{
    typedef int (*create_fn)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static create_fn real;
    static const int errors[SYSCALL_VARIANTS] = {EAGAIN, EAGAIN, EAGAIN};
    const void *caller = __builtin_return_address(0);

    if (!real)
        real = (create_fn)(uintptr_t)dlsym(RTLD_NEXT, "pthread_create");
    if (countdown_is_ours(caller) && strike("pthread_create", errors, caller))
        return EAGAIN;
    return real(out, attributes, run, data);
}

/* ---- Files ------------------------------------------------------------------------------------ */

FAILING(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size), MINUS_1, EIO, EAGAIN,
        EINTR)
FAILING(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), MINUS_1, EIO,
        ENOSPC, EINTR)
FAILING(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at),
        MINUS_1, EIO, EINTR, EIO)
FAILING(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at),
        (fd, data, size, at), MINUS_1, ENOSPC, EIO, EINTR)
FAILING(int, fdatasync, (int fd), (fd), MINUS_1, EIO, ENOSPC, EIO)
FAILING(int, fsync, (int fd), (fd), MINUS_1, EIO, ENOSPC, EIO)
FAILING(int, ftruncate64, (int fd, off64_t size), (fd, size), MINUS_1, EIO, ENOSPC, EIO)
FAILING(int, flock, (int fd, int how), (fd, how), MINUS_1, ENOLCK, EINTR, ENOLCK)
FAILING(int, lstat64, (const char *path, struct stat64 *out), (path, out), MINUS_1, EIO, ENOMEM,
        EIO)
FAILING(int, fstat64, (int fd, struct stat64 *out), (fd, out), MINUS_1, EIO, ENOMEM, EIO)
FAILING(int, mkdir, (const char *path, mode_t mode), (path, mode), MINUS_1, ENOSPC, EIO, ENOSPC)
FAILING(int, link, (const char *from, const char *to), (from, to), MINUS_1, ENOSPC, EIO, ENOSPC)
FAILING(int, unlink, (const char *path), (path), MINUS_1, EIO, EIO, EIO)
FAILING(void *, mmap64, (void *at, size_t size, int protection, int flags, int fd, off64_t from),
        (at, size, protection, flags, fd, from), (errno = error, MAP_FAILED), ENOMEM, ENODEV,
        ENOMEM)

/* libzookeeper ends the process when it cannot read what it has opened there, and does without when it cannot open it. */
static bool is_random(const char *path)
{
    return atomic_load(&calls.at) != 0 && strcmp(path, "/dev/urandom") == 0;
}

/* The third argument is there only with O_CREAT; passing on what is not there does no harm. */
#define FAILING_OPEN(name, parameters, passed)                                                     \
    int name parameters                                                                            \
    {                                                                                              \
        static int(*real) parameters;                                                              \
        static const int errors[SYSCALL_VARIANTS] = {EMFILE, EIO, EINTR};                          \
        int error = is_random(path) ? EMFILE : strike(#name, errors, __builtin_return_address(0)); \
        va_list rest;                                                                              \
        mode_t mode;                                                                               \
        if (!real)                                                                                 \
            real = (int(*) parameters)(uintptr_t)dlsym(RTLD_NEXT, #name);                          \
        if (error)                                                                                 \
            return MINUS_1;                                                                        \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
        return real passed;                                                                        \
    }

FAILING_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
FAILING_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
FAILING_OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

/* Only what can fail: taking locks, not giving them back, and copies of descriptors. Locks fail alone: SQLite takes
 * every failure for "locked by another" and tries for ten seconds by itself, whatever deadline its caller has. */
static bool can_fail(int command, const void *argument)
{
    if (command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK)
        return !atomic_load(&calls.on) && ((const struct flock *)argument)->l_type != F_UNLCK;
    return command == F_DUPFD_CLOEXEC;
}

int fcntl64(int fd, int command, ...)
{
    static int (*real)(int, int, ...);
    static const int locks[SYSCALL_VARIANTS] = {ENOLCK, EAGAIN, EINTR},
                     copies[SYSCALL_VARIANTS] = {EMFILE, EMFILE, EMFILE};
    va_list rest;
    void *argument;
    int error = 0;

    va_start(rest, command);
    argument = va_arg(rest, void *);
    va_end(rest);
    if (can_fail(command, argument))
        error = strike("fcntl", command == F_DUPFD_CLOEXEC ? copies : locks,
                       __builtin_return_address(0));
    if (!real)
        real = (int (*)(int, int, ...))(uintptr_t)dlsym(RTLD_NEXT, "fcntl64");
    return error ? MINUS_1 : real(fd, command, argument);
}

/* Only ours: for each that fails SQLite keeps one more descriptor, until the last handle of the process is
 * closed. */
int stat64(const char *path, struct stat64 *out)
{
    static int (*real)(const char *, struct stat64 *);
    static const int errors[SYSCALL_VARIANTS] = {EIO, ENOMEM, EIO};
    const void *caller = __builtin_return_address(0);
    int error = countdown_is_ours(caller) ? strike("stat64", errors, caller) : 0;

    if (!real)
        real = (int (*)(const char *, struct stat64 *))(uintptr_t)dlsym(RTLD_NEXT, "stat64");
    return error ? MINUS_1 : real(path, out);
}

/* It is closed all the same, as on Linux: whoever closes it again closes another's. */
int close(int fd)
{
    static int (*real)(int);
    static const int errors[SYSCALL_VARIANTS] = {EIO, EINTR, ENOSPC};
    int error = strike("close", errors, __builtin_return_address(0)), result;

    if (!real)
        real = (int (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "close");
    result = real(fd);
    return error ? MINUS_1 : result;
}
