/* Locks of the runs around us; see the header.
 *
 * DIBS_HELD has an entry PID:FENCE:NAME for each, separated by spaces. NAME is percent-encoded. Whether it
 * is the same lock, and not one of that name in another store, is decided by its holder: the same process
 * with the same fence. */
#define _GNU_SOURCE
#include "nested.h"
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE  "DIBS_HELD"
#define NAME_SIZE (DIBS_NAME_MAX * 3 + 1)

static void encode(const char *name, char out[NAME_SIZE])
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/:";
    size_t n = 0;

    for (; *name && n + 3 < NAME_SIZE; name++) {
        if (strchr(plain, *name))
            out[n++] = *name;
        else
            n += (size_t)snprintf(out + n, NAME_SIZE - n, "%%%02X", (unsigned char)*name);
    }
    out[n] = '\0';
}

char *cli_nested_entry(dibs_grant *const grants[], int count)
{
    const char *outer = getenv(VARIABLE);
    char *text = NULL, name[NAME_SIZE];
    size_t size;
    FILE *f = open_memstream(&text, &size);

    if (!f)
        return NULL;
    fprintf(f, VARIABLE "=%s", outer ? outer : "");
    for (int i = 0; i < count; i++) {
        encode(dibs_grant_name(grants[i]), name);
        fprintf(f, "%s%ld:%" PRIu64 ":%s", i > 0 || (outer && *outer) ? " " : "", (long)getpid(),
                dibs_grant_fence(grants[i]), name);
    }
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

/* Is that holder one of the list? */
static bool is_outer(const char *list, const char *name, const dibs_party *p)
{
    char entry[NAME_SIZE + 64];
    size_t n =
        (size_t)snprintf(entry, sizeof entry, "%" PRId64 ":%" PRIu64 ":%s", p->pid, p->fence, name);

    for (const char *at = list; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strcspn(at, " ") == n && strncmp(at, entry, n) == 0)
            return true;
    return false;
}

/* `taken` is what the runs around us have of it. Nobody overtakes: whoever waits for them holds us up too. */
static bool never_comes(const dibs_lock_info *lock, const dibs_lock_options *o, uint64_t taken,
                        bool shared)
{
    const dibs_party *first = lock->waiter_count && lock->waiters ? lock->waiters[0] : NULL;

    if (lock->slots)
        return taken + (o->weight ? o->weight : 1) > lock->slots ||
               (first && taken + first->weight > lock->slots);
    return !shared || !o->shared || (first && !first->shared);
}

int cli_nested_check(dibs *d, const char *name, const dibs_lock_options *options)
{
    const char *list = getenv(VARIABLE);
    const dibs_party *outer = NULL;
    const dibs_lock_info *lock;
    dibs_lock_report *report = NULL;
    char encoded[NAME_SIZE];
    uint64_t taken = 0;
    int code = -1;

    encode(name, encoded);
    if (!list || !strstr(list, encoded) || dibs_lock_inspect(d, name, &report, NULL) != DIBS_OK)
        return -1;
    lock = dibs_lock_report_at(report, 0);
    for (size_t i = 0; i < lock->holder_count; i++)
        if (!lock->holders[i]->released && is_outer(list, encoded, lock->holders[i])) {
            outer = lock->holders[i];
            taken += outer->weight;
        }
    if (outer && never_comes(lock, options, taken, outer->shared)) {
        cli_say("'%s' is held by the dibs run (pid %" PRId64
                ") that this command runs under, so waiting "
                "for it would never end: remove one of the two, or use another name",
                name, outer->pid);
        code = CLI_EXIT_USAGE;
    }
    dibs_lock_report_free(report);
    return code;
}
