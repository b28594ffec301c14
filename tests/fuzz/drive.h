/* An engine whose server is the fuzzer's, and so is its clock, which moves only when somebody would have to wait.
 *
 * The program is linked with --wrap for what leaves the process or takes time (see meson.build): sockets (net.c), poll
 * and threads (alone.c, or the simulation's sched.c and posix.c for an engine with a thread of its own). */
#ifndef DIBS_TESTS_FUZZ_DRIVE_H
#define DIBS_TESTS_FUZZ_DRIVE_H

#include "core/env.h"
#include "fuzz/fuzz.h"

#define DRIVE_SECRET "hunter2" /* the password in every URL */
#define DRIVE_CALLS  12

/* The server's part. `number` counts the connections of this run, from 0. */
typedef struct drive_peer {
    /* The engine has sent this. Answers with drive_say. */
    void (*heard)(size_t number, const uint8_t *data, size_t size);
} drive_peer;

/* The engine will read this. */
void drive_say(size_t number, const void *data, size_t size);
void drive_hang_up(size_t number); /* after what was said */

/* Opens the engine, makes the calls that the input's first bytes ask for, and checks every answer against engine.h.
 * The rest of `in` is the peer's. */
void drive(const char *url, const dibs__env *env, fuzz_input *in);

#endif
