/* D0: read, check, write, and no lock at all. Two buyers read the same number, and one sale is
 * forgotten. */
#include "sql_buyer.h"

LAB_TWINS(lab_d0, "D0", "nothing", "read, check, write without a lock", .oversells = true,
          .buy = lab_sell);
