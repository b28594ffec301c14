/* See etcdctl.h. */
#define _GNU_SOURCE
#include "etcdctl.h"

#include "engines/entries/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 24

int etcdctl(const ensemble *e, char *out, size_t size, const char *line)
{
    char text[512], endpoint[160], *save = NULL;
    const char *words[WORDS_MAX] = {"env", "ETCDCTL_API=3", "etcdctl", endpoint};
    size_t n = 4;

    snprintf(endpoint, sizeof endpoint, "--endpoints=%s", e->hosts);
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &save); w && n + 1 < WORDS_MAX;
         w = strtok_r(NULL, " ", &save))
        words[n++] = w;
    return run_program(out, size, words);
}

void must(const ensemble *e, const char *line)
{
    if (etcdctl(e, NULL, 0, line) != 0)
        fail_msg("etcdctl %s", line);
}

long long etcdctl_number(const ensemble *e, const char *line, const char *field, int n)
{
    char answer[16384], wanted[64];
    const char *at = answer;

    assert_int_equal(etcdctl(e, answer, sizeof answer, line), 0);
    snprintf(wanted, sizeof wanted, "\"%s\":", field);
    for (int i = 0; i <= n; i++) {
        at = strstr(at, wanted);
        assert_non_null(at);
        at += strlen(wanted);
    }
    return strtoll(at, NULL, 10);
}

long long lease_of(const ensemble *e, const char *name, int n)
{
    char line[128];

    snprintf(line, sizeof line, "get --prefix tests/%s/ --sort-by=CREATE --order=ASCEND -w json",
             name);
    return etcdctl_number(e, line, "lease", n);
}

void revoke_lease_of(const ensemble *e, const char *name, int n)
{
    char line[64];

    snprintf(line, sizeof line, "lease revoke %llx", (unsigned long long)lease_of(e, name, n));
    must(e, line);
}
