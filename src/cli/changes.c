/* What changed between two lists. Both are sorted by name and a holder is known by its fence, which
 * is never used twice, so one walk through both finds everything. */
#include "changes.h"
#include "json.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const dibs_lock_info nothing;

static int64_t wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- One event ------------------------------------------------------------------------------- */

static void print_json(const char *event, const dibs_lock_info *lock, const dibs_party *holder)
{
    json_t *o = cli_json_new();

    cli_json_put(o, "time_ms", json_integer(wall_ms()));
    cli_json_text(o, "event", event);
    cli_json_text(o, "name", lock->name);
    cli_json_put(o, "waiter_count", json_integer((json_int_t)lock->waiter_count));
    if (holder)
        cli_json_put(o, "holder", cli_json_party(holder, true));
    cli_json_print(o, 0);
}

static void print_text(const char *event, const dibs_lock_info *lock, const dibs_party *holder)
{
    char now[32], name[CLI_SHOWN_SIZE], owner[CLI_SHOWN_SIZE], host[CLI_SHOWN_SIZE];

    cli_escape(name, sizeof name, lock->name);
    printf("%s  %s  %s", cli_format_time(now, wall_ms()), name, event);
    if (holder) {
        cli_escape(owner, sizeof owner, holder->owner);
        cli_escape(host, sizeof host, holder->host);
        printf(" by %s (host %s, pid %" PRId64 "), fence %" PRIu64, owner, host, holder->pid,
               holder->fence);
    } else {
        printf(": %zu", lock->waiter_count);
    }
    putchar('\n');
}

static void report(bool json, const char *event, const dibs_lock_info *lock,
                   const dibs_party *holder)
{
    (json ? print_json : print_text)(event, lock, holder);
}

/* ---- One lock -------------------------------------------------------------------------------- */

/* Who has given the lock back is no holder any more, although min_hold keeps it taken. */
static const dibs_party *find(const dibs_lock_info *lock, uint64_t fence)
{
    for (size_t i = 0; i < lock->holder_count; i++)
        if (lock->holders[i]->fence == fence && !lock->holders[i]->released)
            return lock->holders[i];
    return NULL;
}

static void compare(const dibs_lock_info *before, const dibs_lock_info *after, bool json)
{
    const dibs_lock_info *named = after->name ? after : before;
    dibs_lock_info now = *after;
    const dibs_party *p, *old;

    now.name = named->name;
    for (size_t i = 0; i < before->holder_count; i++) {
        p = before->holders[i];
        if (!p->released && !find(after, p->fence))
            report(json, "released", &now, p);
    }
    for (size_t i = 0; i < after->holder_count; i++) {
        p = after->holders[i];
        old = find(before, p->fence);
        if (!p->released && !old)
            report(json, "held", &now, p);
        if (!p->released && p->breaking && (!old || !old->breaking))
            report(json, "breaking", &now, p);
    }
    if (before->waiter_count != after->waiter_count)
        report(json, "waiting", &now, NULL);
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const dibs_lock_info *at(const dibs_lock_report *report, size_t i)
{
    return report && i < dibs_lock_report_count(report) ? dibs_lock_report_at(report, i) : NULL;
}

void cli_changes_print(const dibs_lock_report *before, const dibs_lock_report *after, bool json)
{
    size_t i = 0, k = 0;
    const dibs_lock_info *a, *b;
    int order;

    for (;;) {
        a = at(before, i);
        b = at(after, k);
        if (!a && !b)
            return;
        order = !a ? 1 : !b ? -1 : strcmp(a->name, b->name);
        compare(order <= 0 ? a : &nothing, order >= 0 ? b : &nothing, json);
        i += order <= 0;
        k += order >= 0;
    }
}
