/* D0: read, check, write, and no lock at all. Two buyers read the same number, and one sale is
 * forgotten. */
#include "strategies.h"

#define D0(server, word)                                                        \
    {                                                                           \
        .id = "D0", .name = "nothing-" word,                                    \
        .title = "read, check, write without a lock on " word, .stock = server, \
        .needs = LAB_NEED(server), .oversells = true, .buy = lab_sell           \
    }

const lab_strategy lab_d0_mariadb = D0(LAB_MARIADB, "mariadb");
const lab_strategy lab_d0_postgresql = D0(LAB_POSTGRESQL, "postgresql");
