/* Every strategy by name, for the table. */
#ifndef DIBS_LAB_STRATEGIES_H
#define DIBS_LAB_STRATEGIES_H

#include "lab/lab.h"

extern const lab_strategy lab_d0_mariadb, lab_d0_postgresql;
extern const lab_strategy lab_r1, lab_r1a, lab_r2, lab_r3, lab_r4, lab_r5, lab_r5_sha, lab_r6,
    lab_r7, lab_r8, lab_r9;
extern const lab_strategy lab_dibs_sqlite, lab_dibs_redis, lab_dibs_mariadb, lab_dibs_postgresql;

#endif
