/* etcd's own client, as an operator uses it. */
#ifndef DIBS_TESTS_ETCD_ETCDCTL_H
#define DIBS_TESTS_ETCD_ETCDCTL_H

#include "support/ensemble.h"

#include <stddef.h>

/* etcdctl's exit code; `line` is split at spaces. What it prints goes to `out`, if there is one. */
int etcdctl(const ensemble *e, char *out, size_t size, const char *line);
/* The same, or the case fails. */
void must(const ensemble *e, const char *line);

/* The number after `"FIELD":` in what `line` prints as JSON; the n-th such field, from 0. */
long long etcdctl_number(const ensemble *e, const char *line, const char *field, int n);

/* The lease of the n-th oldest entry of that lock (of tests/NAME/); and its end. */
long long lease_of(const ensemble *e, const char *name, int n);
void revoke_lease_of(const ensemble *e, const char *name, int n);

#endif
