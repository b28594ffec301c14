/* Every strategy by name, for the table. */
#ifndef DIBS_LAB_STRATEGIES_H
#define DIBS_LAB_STRATEGIES_H

#include "lab/lab.h"

extern const lab_strategy lab_d0_mariadb, lab_d0_postgresql;
extern const lab_strategy lab_d1_mutex_mariadb, lab_d1_mutex_postgresql;
extern const lab_strategy lab_d1_each_mariadb, lab_d1_each_postgresql;
extern const lab_strategy lab_d1_in_tx_mariadb, lab_d1_in_tx_postgresql;
extern const lab_strategy lab_d1_around_tx_mariadb, lab_d1_around_tx_postgresql;
extern const lab_strategy lab_d2_mariadb, lab_d2_postgresql;
extern const lab_strategy lab_d3_mariadb, lab_d3_postgresql;
extern const lab_strategy lab_d4_mariadb, lab_d4_postgresql;
extern const lab_strategy lab_d4_once_mariadb, lab_d4_once_postgresql;
extern const lab_strategy lab_d5_mariadb, lab_d5_postgresql;
extern const lab_strategy lab_d6_mariadb, lab_d6_postgresql;
extern const lab_strategy lab_d7_mariadb, lab_d7_postgresql;
extern const lab_strategy lab_d8_mariadb, lab_d8_postgresql;
extern const lab_strategy lab_r1, lab_r1a, lab_r2, lab_r3, lab_r4, lab_r5, lab_r5_sha, lab_r6,
    lab_r7, lab_r8, lab_r8_service, lab_r9, lab_r10, lab_r10_processes, lab_r10_lease,
    lab_r10_fenced;
extern const lab_strategy lab_dibs_sqlite, lab_dibs_redis, lab_dibs_redis_processes,
    lab_dibs_redis_unfenced, lab_dibs_mariadb, lab_dibs_postgresql;

extern const lab_strategy lab_dibs_redlock, lab_dibs_zookeeper, lab_dibs_etcd;
extern const lab_strategy lab_r12a, lab_z1;

#endif
