/* Private servers for a run: on free loopback ports, in a scratch folder, gone when we are.
 *
 * They end by pid when the run ends, also after Ctrl-C; should we be killed outright, they get a
 * signal from the kernel. Nothing is ever started through the system's services. */
#ifndef DIBS_LAB_SERVERS_H
#define DIBS_LAB_SERVERS_H

#include "lab.h"

/* Starts what of `needs` is empty in the site and can be found on this machine; what cannot be found
 * stays empty and is named in `missing`. False: one was found and did not start (`why`). */
bool lab_servers_start(lab_site *site, unsigned needs, char missing[256], char why[256]);
void lab_servers_stop(void);

#endif
