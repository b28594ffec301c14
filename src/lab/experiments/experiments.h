/* Every experiment by name, for the table. */
#ifndef DIBS_LAB_EXPERIMENTS_H
#define DIBS_LAB_EXPERIMENTS_H

#include "lab/finding.h"

extern const lab_experiment lab_five_mariadb, lab_five_postgresql;
extern const lab_experiment lab_rows_update_mariadb, lab_rows_update_postgresql;
extern const lab_experiment lab_rows_read_mariadb, lab_rows_read_postgresql;

#endif
