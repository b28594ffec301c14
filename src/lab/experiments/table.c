/* The table of experiments, in the order of the notes. */
#include "experiments.h"

const lab_experiment *const lab_experiments[] = {
    /* clang-format off: a line each */
    &lab_five_mariadb,
    &lab_five_postgresql,
    &lab_f3a,
    &lab_f3b,
    &lab_f3c,
    &lab_f3d,
    &lab_f3e,
    &lab_dedupe_mariadb,
    &lab_dedupe_postgresql,
    &lab_rows_update_mariadb,
    &lab_rows_update_postgresql,
    &lab_rows_read_mariadb,
    &lab_rows_read_postgresql,
    &lab_deadlock_mariadb,
    &lab_deadlock_postgresql,
    &lab_snapshot_mariadb,
    &lab_snapshot_postgresql,
    &lab_plan_mariadb,
    &lab_plan_postgresql,
    &lab_connections_mariadb,
    &lab_connections_postgresql,
    &lab_aba_mariadb,
    &lab_aba_postgresql,
    &lab_insert_again_mariadb,
    &lab_insert_again_postgresql,
    &lab_insert_polls_mariadb,
    &lab_insert_polls_postgresql,
    &lab_insert_order_mariadb,
    &lab_insert_order_postgresql,
    &lab_insert_twice_mariadb,
    &lab_insert_twice_postgresql,
    &lab_method_waits_mariadb,
    &lab_method_waits_postgresql,
    &lab_method_connections_mariadb,
    &lab_method_connections_postgresql,
    &lab_method_overloads_mariadb,
    &lab_method_overloads_postgresql,
    &lab_failover,
    &lab_split_votes,
    &lab_lost_node,
    &lab_clock_jump,
    &lab_drift,
#ifdef DIBS_HAVE_ZOOKEEPER
    &lab_node_types,
    &lab_herd_size,
#endif
    &lab_partition_redis,
#ifdef DIBS_HAVE_ZOOKEEPER
    &lab_partition_zookeeper,
#endif
    &lab_partition_etcd,
    /* clang-format on */
    NULL,
};
