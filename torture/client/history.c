/* The history: a folder with meta.json, worker-NNNN.jsonl per worker process, resource.jsonl and
 * faults.jsonl. Each line is one event and is written by one write to a file opened for appending: what a
 * killed process has written is there, and threads do not mix their lines. */
#define _GNU_SOURCE
#include "torture.h"

#include "cli/cli.h"
#include "cli/text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t torture_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * TORTURE_SECOND + now.tv_nsec;
}

void torture_sleep(int64_t nanoseconds)
{
    struct timespec left = {nanoseconds / TORTURE_SECOND, nanoseconds % TORTURE_SECOND};

    while (nanoseconds > 0 && nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

uint64_t torture_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15U);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

int64_t torture_between(uint64_t *state, int64_t low, int64_t high)
{
    return high <= low ? low : low + (int64_t)(torture_random(state) % (uint64_t)(high - low + 1));
}

bool torture_chance(uint64_t *state, int percent)
{
    return torture_between(state, 1, 100) <= percent;
}

int torture_history_open(const char *folder, const char *name)
{
    char path[4096];

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void give_up(const char *why)
{
    cli_say("cannot write the history: %s", why);
    _exit(CLI_EXIT_OUTPUT);
}

const char *torture_text(const char *message)
{
    static char shown[2048];

    cli_escape(shown, sizeof shown, message);
    return shown;
}

void torture_note(int fd, int64_t t, const char *event, const char *format, ...)
{
    char line[8192];
    json_t *all = json_pack("{s:I,s:s}", "t", (json_int_t)t, "ev", event), *more;
    json_error_t err;
    va_list args;
    size_t size;

    va_start(args, format);
    more = json_vpack_ex(&err, 0, format, args);
    va_end(args);
    if (!all || !more || json_object_update(all, more) != 0)
        give_up(more ? "out of memory" : err.text);
    size = json_dumpb(all, line, sizeof line - 1, JSON_COMPACT);
    if (size == 0 || size >= sizeof line)
        give_up("an event is too long");
    line[size++] = '\n';
    if (write(fd, line, size) != (ssize_t)size)
        give_up(strerror(errno));
    json_decref(all);
    json_decref(more);
}
