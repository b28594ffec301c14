/* Starting one server: find its program and a port, put its command line together, run it under the
 * account that it wants, and wait until it answers what only a ready server answers. */
#ifndef DIBS_LAB_LAUNCH_H
#define DIBS_LAB_LAUNCH_H

#include <stdbool.h>
#include <sys/types.h>

#define LAB_ARGS_MAX 24
#define LAB_READY_MS 30000

/* The last file that fits the first pattern that any fits. */
bool lab_program_find(const char *const patterns[], char out[256]);
int lab_port_free(void); /* on the loopback interface; -1: none */

typedef struct lab_launch {
    const char *account; /* NULL: ours */
    int end;
    char folder[256], log[300];
    char text[LAB_ARGS_MAX][300];
    char *args[LAB_ARGS_MAX + 1];
} lab_launch;

/* `account` is borrowed, and only used when we are root; `end` is the signal that ends it at once. */
void lab_launch_init(lab_launch *l, const char *folder, const char *account, int end);
/* One more word of the command line. */
void lab_launch_add(lab_launch *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
pid_t lab_launch_spawn(const lab_launch *l); /* it ends with us. -1: errno */
bool lab_launch_once(const lab_launch *l);   /* to its end: did it go well? */

/* Asks once; `reply` (2048 bytes) is what came until `word` did. False: `word` did not. */
bool lab_port_ask(int port, const char *question, const char *word, char *reply);
/* Does it answer `question` (NULL: unasked) with something that has `word`, within LAB_READY_MS? */
bool lab_port_ready(int port, const char *question, const char *word);

#endif
