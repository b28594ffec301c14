/* Every experiment by name, for the table. */
#ifndef DIBS_LAB_EXPERIMENTS_H
#define DIBS_LAB_EXPERIMENTS_H

#include "lab/finding.h"

extern const lab_experiment lab_five_mariadb, lab_five_postgresql;
extern const lab_experiment lab_dedupe_mariadb, lab_dedupe_postgresql;
extern const lab_experiment lab_rows_update_mariadb, lab_rows_update_postgresql;
extern const lab_experiment lab_rows_read_mariadb, lab_rows_read_postgresql;
extern const lab_experiment lab_deadlock_mariadb, lab_deadlock_postgresql;
extern const lab_experiment lab_snapshot_mariadb, lab_snapshot_postgresql;
extern const lab_experiment lab_plan_mariadb, lab_plan_postgresql;
extern const lab_experiment lab_connections_mariadb, lab_connections_postgresql;
extern const lab_experiment lab_aba_mariadb, lab_aba_postgresql;
extern const lab_experiment lab_insert_again_mariadb, lab_insert_again_postgresql;
extern const lab_experiment lab_insert_polls_mariadb, lab_insert_polls_postgresql;
extern const lab_experiment lab_insert_order_mariadb, lab_insert_order_postgresql;
extern const lab_experiment lab_insert_twice_mariadb, lab_insert_twice_postgresql;
extern const lab_experiment lab_method_waits_mariadb, lab_method_waits_postgresql;
extern const lab_experiment lab_method_connections_mariadb, lab_method_connections_postgresql;
extern const lab_experiment lab_method_overloads_mariadb, lab_method_overloads_postgresql;
extern const lab_experiment lab_crowd_processes_mariadb, lab_crowd_processes_postgresql;
extern const lab_experiment lab_crowd_versions_mariadb, lab_crowd_versions_postgresql;
extern const lab_experiment lab_mostly_read_mariadb, lab_mostly_read_postgresql;
extern const lab_experiment lab_value_before_mariadb, lab_value_before_postgresql;
extern const lab_experiment lab_same_second_mariadb, lab_same_second_postgresql;
extern const lab_experiment lab_getset_flaws, lab_manners;
extern const lab_experiment lab_token_dibs, lab_nodes_down, lab_restart_dibs;
extern const lab_experiment lab_f3a, lab_f3b, lab_f3c, lab_f3d, lab_f3e;
extern const lab_experiment lab_failover, lab_failover_dibs, lab_partition_dibs;
extern const lab_experiment lab_split_votes, lab_lost_node, lab_clock_jump, lab_drift;
extern const lab_experiment lab_partition_redis, lab_partition_zookeeper, lab_partition_etcd;
extern const lab_experiment lab_node_types, lab_herd_size;

#endif
