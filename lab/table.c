/* The table of strategies, in the order of the rows. A new one is a file in strategies/ and a line
 * here. */
#include "lab.h"
#include "strategies/strategies.h"

#include <string.h>

const lab_strategy *const lab_strategies[] = {
    /* clang-format off: a line each */
    &lab_d0_mariadb,
    &lab_d0_postgresql,
    &lab_d1_mutex_mariadb,
    &lab_d1_mutex_postgresql,
    &lab_d1_each_mariadb,
    &lab_d1_each_postgresql,
    &lab_d1_in_tx_mariadb,
    &lab_d1_in_tx_postgresql,
    &lab_d1_around_tx_mariadb,
    &lab_d1_around_tx_postgresql,
    &lab_d2_mariadb,
    &lab_d2_postgresql,
    &lab_d3_mariadb,
    &lab_d3_postgresql,
    &lab_d4_mariadb,
    &lab_d4_postgresql,
    &lab_d4_once_mariadb,
    &lab_d4_once_postgresql,
    &lab_d5_mariadb,
    &lab_d5_postgresql,
    &lab_d6_mariadb,
    &lab_d6_postgresql,
    &lab_d7_mariadb,
    &lab_d7_postgresql,
    &lab_d8_mariadb,
    &lab_d8_postgresql,
    &lab_r1,
    &lab_r1a,
    &lab_r2,
    &lab_r3,
    &lab_r4,
    &lab_r5,
    &lab_r5_sha,
    &lab_r6,
    &lab_r7,
    &lab_r8,
    &lab_r8_service,
    &lab_r9,
    &lab_r10,
    &lab_r10_processes,
    &lab_r10_lease,
    &lab_r10_fenced,
    &lab_r12a,
#ifdef DIBS_HAVE_ZOOKEEPER
    &lab_z1,
#endif
    &lab_dibs_sqlite,
    &lab_dibs_redis,
    &lab_dibs_redis_processes,
    &lab_dibs_redis_unfenced,
    &lab_dibs_mariadb,
    &lab_dibs_postgresql,
    &lab_dibs_redlock,
    &lab_dibs_zookeeper,
    &lab_dibs_etcd,
    /* clang-format on */
    NULL,
};

const lab_strategy *lab_find(const char *word, const lab_strategy *from)
{
    bool past = from == NULL;

    for (size_t i = 0; lab_strategies[i]; i++) {
        const lab_strategy *s = lab_strategies[i];
        if (past && (strcmp(s->name, word) == 0 || strcmp(s->id, word) == 0))
            return s;
        past |= s == from;
    }
    return NULL;
}
