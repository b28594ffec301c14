/* Three servers that decide together, for experiments that stop some of them: ZooKeeper or etcd. They end
 * with us, like all private servers. */
#ifndef DIBS_LAB_ENSEMBLE_H
#define DIBS_LAB_ENSEMBLE_H

#include "lab.h"

#include <sys/types.h>

#define LAB_MEMBERS 3

typedef struct lab_member {
    pid_t pid; /* 0: not running */
    int port, peers, election;
    char folder[256];
} lab_member;

typedef struct lab_ensemble {
    lab_server kind; /* LAB_ZOOKEEPER or LAB_ETCD */
    lab_member member[LAB_MEMBERS];
} lab_ensemble;

/* Until all of them serve. False: why; lab_ensemble_stop is due all the same. */
bool lab_ensemble_start(lab_ensemble *e, lab_server kind, char why[256]);
void lab_ensemble_stop(lab_ensemble *e);

int lab_ensemble_leader(const lab_ensemble *e); /* its number; -1: nobody says so */
/* dibs' URL of the member `one`, or of the `others`. */
void lab_ensemble_url(const lab_ensemble *e, int one, bool others, char out[512]);
/* SIGSTOP and SIGCONT: to everybody else, a member that is stopped is one that is cut off. */
void lab_ensemble_signal(const lab_ensemble *e, int one, bool others, int signal);

#endif
