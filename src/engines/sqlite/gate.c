/* The gate: where writers of different processes queue before BEGIN, because SQLite's own busy
 * handler can only sleep and try again.
 *
 * It is a robust mutex in a page that all clients map: `gate` in the folder beside the database. A
 * process that dies inside leaves it to the next. It makes waiting cheap and nothing else:
 * exclusion is SQLite's own lock, so a gate that is missing, made by another C library, or stuck,
 * is passed by. The page is made afresh at each boot, under a file lock. A forked child does not
 * have it. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "engines/sqlite/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAGIC   0x6574616773626964u /* "dibsgate" */
#define PATIENT DIBS__SECOND        /* nobody is inside for that long, unless stopped */
#define SHUN    (10 * DIBS__SECOND) /* so long a stuck gate is passed by */
#ifdef __GLIBC__
#define LIBC 1u
#else
#define LIBC 2u
#endif
#define ABI (LIBC << 16 | (uint32_t)sizeof(pthread_mutex_t))

struct dibs__lite_gate_page {
    _Atomic uint64_t magic; /* written last */
    uint32_t abi;
    char boot[40];
    pthread_mutex_t mutex;
};

static bool is_ready(const dibs__lite *e, dibs__lite_gate_page *page)
{
    return atomic_load(&page->magic) == MAGIC && strcmp(page->boot, e->boot) == 0;
}

static bool make_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attr;
    bool made = false;

    if (pthread_mutexattr_init(&attr) != 0)
        return false;
    if (pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) == 0 &&
        pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0)
        made = pthread_mutex_init(mutex, &attr) == 0;
    pthread_mutexattr_destroy(&attr);
    return made;
}

/* Nobody of this boot uses a page that is not ready. */
static bool make_ready(dibs__lite *e, int fd, dibs__lite_gate_page *page, dibs__deadline until)
{
    while (!is_ready(e, page)) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (!is_ready(e, page)) {
                atomic_store(&page->magic, 0);
                memset(&page->mutex, 0, sizeof page->mutex);
                memcpy(page->boot, e->boot, sizeof page->boot);
                page->abi = ABI;
                if (make_mutex(&page->mutex))
                    atomic_store(&page->magic, MAGIC);
            }
            flock(fd, LOCK_UN);
            return is_ready(e, page) && page->abi == ABI;
        }
        if (errno != EWOULDBLOCK || dibs__now(e->base.env) >= until)
            return false;
        dibs__sleep(e->base.env, DIBS__MS);
    }
    return page->abi == ABI;
}

static int open_file(dibs__lite *e)
{
    int fd = openat(e->folder, "gate", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat st;

    if (fd >= 0)
        dibs__lite_location_share(e, fd);
    else
        fd = openat(e->folder, "gate", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_nlink > 1 ||
                    (st.st_size < (off_t)sizeof(dibs__lite_gate_page) &&
                     ftruncate(fd, sizeof(dibs__lite_gate_page)) < 0))) {
        close(fd);
        return -1;
    }
    return fd;
}

void dibs__lite_gate_open(dibs__lite *e, dibs__deadline until)
{
    size_t size = sizeof(dibs__lite_gate_page);
    int fd = open_file(e);
    dibs__lite_gate_page *page = MAP_FAILED;

    if (fd >= 0)
        page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED &&
        (madvise(page, size, MADV_DONTFORK) < 0 || !make_ready(e, fd, page, until))) {
        munmap(page, size);
        page = MAP_FAILED;
    }
    if (fd >= 0)
        close(fd);
    if (page != MAP_FAILED)
        e->gate.page = page;
    else
        e->base.sink->log(
            e->base.sink, DIBS_LOG_WARNING,
            "sqlite: %s: no gate between processes: waiting for each other will be slower",
            e->path);
}

void dibs__lite_gate_close(dibs__lite *e)
{
    if (e->gate.page)
        munmap(e->gate.page, sizeof *e->gate.page);
    e->gate.page = NULL;
}

static int wait_for_turn(dibs__lite *e, dibs__deadline until)
{
    int64_t left = until - dibs__now(e->base.env);
    int rc;

    if (left <= 0)
        return ETIMEDOUT;
    if (left > PATIENT)
        left = PATIENT;
    rc = dibs__mutex_lock_within(&e->gate.page->mutex, left);
    if (rc == ETIMEDOUT && dibs__now(e->base.env) < until)
        e->gate.skip_until = dibs__after(e->base.env, SHUN);
    return rc;
}

bool dibs__lite_gate_enter(dibs__lite *e, dibs__deadline until)
{
    int rc;

    if (!e->gate.page || (e->gate.skip_until && dibs__now(e->base.env) < e->gate.skip_until))
        return false;
    rc = pthread_mutex_trylock(&e->gate.page->mutex);
    if (rc == EBUSY)
        rc = wait_for_turn(e, until);
    if (rc == EOWNERDEAD)
        rc = pthread_mutex_consistent(&e->gate.page->mutex);
    return rc == 0;
}

void dibs__lite_gate_leave(dibs__lite *e)
{
    pthread_mutex_unlock(&e->gate.page->mutex);
}
