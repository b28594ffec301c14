/* Locks as a table, a line each: for `dibs ls` and the live view of `dibs watch`. */
#ifndef DIBS_CLI_TABLE_H
#define DIBS_CLI_TABLE_H

#include "dibs.h"

#include <stdio.h>

/* Prints the heading and the locks. `columns` and `lines` bound it (0: they do not); what does not
 * fit is cut, and a last line says how many more there are. Ends every line with "\n". */
void cli_table_print(FILE *to, const dibs_lock_report *report, size_t columns, size_t lines);

#endif
