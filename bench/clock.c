/* What time it is, and what processes have used of time and memory. */
#include "bench.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

double bench_cpu(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/* Kilobytes of this process; what it shares with others counts in parts. */
double bench_memory(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    double kb = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %lf", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb;
}

/* Ticks, from /proc/PID/stat; what its children that ended had used too. 0 when it is not (a child
 * of) `server`. */
static double ticks(const char *pid, int server)
{
    double own = 0, system = 0, ended = 0, ended_system = 0;
    char path[300], line[1024] = "";
    int parent = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    f = fopen(path, "r");
    if (!f)
        return 0;
    const char *rest = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    if (!rest || sscanf(rest, ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lf %lf %lf %lf",
                        &parent, &own, &system, &ended, &ended_system) != 5)
        return 0;
    if (atoi(pid) == server)
        return own + system + ended + ended_system;
    return parent == server ? own + system : 0;
}

double bench_server_cpu(int pid)
{
    DIR *all = pid ? opendir("/proc") : NULL;
    const struct dirent *entry;
    double sum = 0;

    while (all && (entry = readdir(all)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]))
            sum += ticks(entry->d_name, pid);
    if (all)
        closedir(all);
    return sum / (double)sysconf(_SC_CLK_TCK);
}
