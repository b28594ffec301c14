/* What the tests of the Redis engine's scripts share. A state machine that exists in C and in Lua is run
 * by both, with the same commands in simulated time; they must agree, and a script in which one line
 * was changed must be noticed. */
#ifndef DIBS_TESTS_LUA_TWIN_H
#define DIBS_TESTS_LUA_TWIN_H

#include "support/server.h"

#include <hiredis/hiredis.h>
#include <stdint.h>

#define SHA_SIZE 41

/* ---- Numbers as the scripts' struct.unpack reads them: big-endian ---------------------------- */

/* Both return what comes behind. */
char *add_whole(char *at, uint64_t value, int bytes);
char *add_double(char *at, double number);

/* Both move on. */
uint64_t take_whole(const char **at, int bytes);
double take_double(const char **at);

/* ---- Scripts --------------------------------------------------------------------------------- */

typedef struct change {
    const char *from, *to;
} change;

/* `text`, which is taken, with the first such place changed; `count` grows by one if there is one. */
char *changed(char *text, const change *c, int *count);

/* The script as it is shipped, but with a clock of the caller's: its last two arguments are
 * microseconds and seconds. */
char *script_with_clock(int script);

/* Takes `text`. */
void script_load(redisContext *redis, char *text, char sha[SHA_SIZE]);

/* ---- Runs ------------------------------------------------------------------------------------ */

/* Runs so many commands on both, or until they differ. How many it was; `difference` says how they
 * differ, "" if they do not, until the next run. `wrong`: the line to be changed, or NULL. */
typedef int twin_run(const server *s, uint64_t seed, int commands, const change *wrong,
                     const char **difference);

/* A case each. The seed is $DIBS_TEST_SEED or the time, and $DIBS_TEST_COMMANDS replaces `commands`. */
void expect_same(twin_run *run, int commands);
void expect_noticed(twin_run *run, int commands, const change wrong[], size_t count);

#endif
