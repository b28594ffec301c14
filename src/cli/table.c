/* Locks as a table; see the header. */
#include "table.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_SIZE (CLI_SHOWN_SIZE * 3)

/* "exclusive", "shared by 3", "2 of 5", "idle" */
static void format_state(char *out, size_t size, const dibs_lock_info *lock)
{
    if (lock->holder_count == 0)
        snprintf(out, size, "idle");
    else if (lock->holders[0]->released)
        snprintf(out, size, "given back");
    else if (lock->slots)
        snprintf(out, size, "%" PRIu32 " of %" PRIu32, lock->used, lock->slots);
    else if (lock->holders[0]->shared)
        snprintf(out, size, "shared by %zu", lock->holder_count);
    else
        snprintf(out, size, "exclusive");
}

/* Cut before the character that would be beyond `columns`. */
static void put_line(FILE *to, const char *line, size_t columns)
{
    const char *end = line;
    size_t used = 0;

    while (*end && (columns == 0 || (used += cli_columns(end)) <= columns))
        end += cli_utf8_length(end) ? cli_utf8_length(end) : 1;
    while (end > line && end[-1] == ' ')
        end--;
    fprintf(to, "%.*s\n", (int)(end - line), line);
}

static int64_t wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void print_lock(FILE *to, const dibs_lock_info *lock, int name_width, size_t columns)
{
    char line[LINE_SIZE], name[CLI_SHOWN_SIZE], state[32], age[24] = "", left[24] = "";
    char owner[CLI_SHOWN_SIZE] = "", host[CLI_SHOWN_SIZE] = "", holder[CLI_SHOWN_SIZE] = "";
    size_t width = cli_escape(name, sizeof name, lock->name);
    int padding = name_width > (int)width ? name_width - (int)width : 0;
    const dibs_party *p = lock->holder_count ? lock->holders[0] : NULL;

    format_state(state, sizeof state, lock);
    if (p) {
        cli_escape(owner, sizeof owner, p->owner);
        cli_escape(host, sizeof host, p->host);
        cli_format_span(age, wall_ms() - p->since_ms);
        cli_format_span(left, p->left_ms);
        snprintf(holder, sizeof holder, "%.600s:%" PRId64 " %.600s", host, p->pid, owner);
    }
    snprintf(line, sizeof line, "%s%*s  %-11s %7s %7s %7zu  %-16" PRIu64 "  %s", name, padding, "",
             state, age, left, lock->waiter_count, lock->fence, holder);
    put_line(to, line, columns);
}

/* The widest name decides, within reason: one long name should not push everything off the screen.
 */
static int width_of_names(const dibs_lock_report *report)
{
    char name[CLI_SHOWN_SIZE];
    size_t widest = 4, width;

    for (size_t i = 0; i < dibs_lock_report_count(report); i++) {
        width = cli_escape(name, sizeof name, dibs_lock_report_at(report, i)->name);
        if (width > widest && width <= 40)
            widest = width;
    }
    return (int)widest;
}

void cli_table_print(FILE *to, const dibs_lock_report *report, size_t columns, size_t lines)
{
    size_t count = dibs_lock_report_count(report), shown = count;
    int width = width_of_names(report);
    char line[256];

    if (lines && count + 1 > lines)
        shown = lines > 2 ? lines - 2 : 0;
    snprintf(line, sizeof line, "%-*s  %-11s %7s %7s %7s  %-16s  %s", width, "NAME", "STATE",
             "SINCE", "LEFT", "WAITERS", "FENCE", "HOLDER");
    put_line(to, line, columns);
    for (size_t i = 0; i < shown; i++)
        print_lock(to, dibs_lock_report_at(report, i), width, columns);
    if (shown < count)
        fprintf(to, "... and %zu more\n", count - shown);
}
