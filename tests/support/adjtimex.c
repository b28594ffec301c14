/* The kernel's word about this machine's clock, as a test wants it: a library to preload. The real flag is one for the
 * whole machine. $DIBS_TEST_CLOCK is `synchronised` or `unsynchronised`. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>

__attribute__((visibility("default"))) int adjtimex(struct timex *t)
{
    const char *clock = getenv("DIBS_TEST_CLOCK");
    int good = clock && strcmp(clock, "synchronised") == 0;

    memset(t, 0, sizeof *t);
    t->status = good ? 0 : STA_UNSYNC;
    return good ? TIME_OK : TIME_ERROR;
}
