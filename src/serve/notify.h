/* Tells systemd what becomes of the service (sd_notify(3)), if it was started by it. */
#ifndef DIBS_SERVE_NOTIFY_H
#define DIBS_SERVE_NOTIFY_H

void serve_notify(const char *state); /* "READY=1" */

#endif
