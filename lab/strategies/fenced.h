/* The books as a resource that checks: who presents an older fence than somebody before him is refused.
 * Raise, then read, then write under the same check. */
#ifndef DIBS_LAB_FENCED_H
#define DIBS_LAB_FENCED_H

#include "lab/lab.h"

typedef struct lab_fenced lab_fenced;

lab_fenced *lab_fenced_open(lab_buyer *buyer); /* NULL: note */
void lab_fenced_close(lab_fenced *f);
lab_sale lab_fenced_sell(lab_buyer *buyer, lab_fenced *f, uint64_t fence);

#endif
