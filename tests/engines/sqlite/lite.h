/* What the tests of the SQLite engine share: one store in a scratch folder, fixtures at it, and a
 * connection that reads and changes the file by hand. */
#ifndef DIBS_TESTS_LITE_H
#define DIBS_TESTS_LITE_H

#include "fixture.h"
#include "support/env.h"
#include "support/scratch.h"

extern scratch lite_folder;
extern char lite_path[SCRATCH_MAX + 16], lite_url[SCRATCH_MAX + 32];

int lite_setup(void **state);
int lite_setup_booted(void **state); /* the same, in the boot "first" of the case's own making */
int lite_teardown(void **state);

/* After lite_setup_booted: the machine has been started anew since the last call. */
void lite_boot(const char *id);

/* They return `d`, or the case fails. `sim` NULL: the system's clocks. */
fixture *lite_open(fixture *d);
fixture *lite_open_in(fixture *d, const sim_env *sim);
/* A fixture at what the disk (disk.h) had when it was last synced, in another boot. `round` names them. */
fixture *lite_open_after_power_cut(fixture *d, const sim_env *sim, int round);

void lite_run(const char *sql);
int64_t lite_ask(const char *sql); /* the first value; -1: no row */

#endif
