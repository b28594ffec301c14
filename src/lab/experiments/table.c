/* The table of experiments, in the order of the notes. */
#include "experiments.h"

const lab_experiment *const lab_experiments[] = {
    /* clang-format off: a line each */
    &lab_five_mariadb,
    &lab_five_postgresql,
    &lab_rows_update_mariadb,
    &lab_rows_update_postgresql,
    &lab_rows_read_mariadb,
    &lab_rows_read_postgresql,
    /* clang-format on */
    NULL,
};
