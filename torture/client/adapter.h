/* The lock library of another project, behind a program that speaks lines: see adapter.c. */
#ifndef DIBS_TORTURE_ADAPTER_H
#define DIBS_TORTURE_ADAPTER_H

#include "torture.h"

/* Starts the program; DIBS_UNAVAILABLE: it does not greet. */
dibs_status torture_adapter_open(torture_worker *w, dibs_error *err);
void torture_adapter_close(torture_worker *w);

/* `fenced`: whether the lock gave a fence. */
dibs_status torture_adapter_lock(torture_worker *w, const char *name, int64_t wait_ms, bool *fenced,
                                 uint64_t *fence, dibs_error *err);
bool torture_adapter_held(torture_worker *w, const char *name);
dibs_status torture_adapter_unlock(torture_worker *w, const char *name);

#endif
