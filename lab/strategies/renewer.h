/* A thread that renews a hash lock again and again while its holder works: R8's and R9's.
 * It lives in the holder's process, and dies with it. */
#ifndef DIBS_LAB_RENEWER_H
#define DIBS_LAB_RENEWER_H

#include "lab/raw.h"

typedef struct lab_renewer lab_renewer;

lab_renewer *lab_renewer_new(lab_buyer *buyer,
                             int part); /* renews every 1/part of the lease; NULL: note */
void lab_renewer_free(lab_renewer *r);
/* A holder that comes in again starts it again, and stops it as often. */
bool lab_renewer_start(lab_renewer *r, lab_buyer *buyer);
void lab_renewer_stop(lab_renewer *r); /* returns when it renews no more */

#endif
