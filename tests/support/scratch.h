/* A scratch folder of a test: made under $TMPDIR (else /tmp), removed with everything in it. */
#ifndef DIBS_TESTS_SCRATCH_H
#define DIBS_TESTS_SCRATCH_H

#include <stddef.h>

#define SCRATCH_MAX 256

typedef struct scratch {
    char path[SCRATCH_MAX];
} scratch;

/* 0, or -1 with errno. */
int scratch_make(scratch *s);

/* Removes it with all that is inside; harmless when it was never made. */
void scratch_remove(scratch *s);

/* "folder/name" into `out`, which is returned. */
char *scratch_file(const scratch *s, const char *name, char *out, size_t size);

#endif
