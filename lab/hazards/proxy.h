/* A proxy that can swallow an answer: it passes everything on until it is armed; then the next answer of
 * the server is dropped and that connection is cut. Whatever the request asked for has been done. */
#ifndef DIBS_LAB_PROXY_H
#define DIBS_LAB_PROXY_H

#include "lab/lab.h"

#include <stdatomic.h>
#include <sys/types.h>

typedef struct lab_proxy {
    pid_t pid;
    int port;
    atomic_int *armed; /* shared with its process; counts down to 0 when it struck */
} lab_proxy;

/* In front of the server that `url` names (one host); `out` gets the URL that leads through the proxy.
 * False: why. */
bool lab_proxy_start(lab_proxy *p, const char *url, char out[512], char why[256]);
void lab_proxy_arm(lab_proxy *p);
bool lab_proxy_struck(const lab_proxy *p);
void lab_proxy_stop(lab_proxy *p);

#endif
