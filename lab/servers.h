/* Private servers for a run: on free loopback ports, in a scratch folder, gone when we are.
 *
 * They end by pid when the run ends, also after Ctrl-C; should we be killed outright, they get a
 * signal from the kernel. Nothing is ever started through the system's services. */
#ifndef DIBS_LAB_SERVERS_H
#define DIBS_LAB_SERVERS_H

#include "lab.h"

#include <sys/types.h>

/* Starts what of `needs` is empty in the site and can be found on this machine; what cannot be found
 * stays empty and is named in `missing`. False: one was found and did not start (`why`). */
bool lab_servers_start(lab_site *site, unsigned needs, char missing[256], char why[256]);
void lab_servers_stop(void); /* also when only nodes were started */

/* A folder for a server of an experiment's own; it goes with the others. False: why. */
bool lab_scratch_folder(const char *name, char out[256], char why[256]);

/* ---- One Redis at a time, for experiments that kill and restart them ------------------------- */

typedef struct lab_node {
    pid_t pid; /* 0: not running */
    int port;
    char folder[256], url[64];
} lab_node;

/* `extra`: options of redis-server, NULL-terminated; words with "=" before them go into its
 * environment. False: why. */
bool lab_node_new(lab_node *n, const char *const extra[], char why[256]);
bool lab_node_start(lab_node *n,
                    const char *const extra[]); /* again, on the same port and folder */
void lab_node_kill(lab_node *n);                /* -9 */

#endif
