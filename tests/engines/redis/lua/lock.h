/* The parts of test_lua: commands on a lock by chance, as the scripts read them, and the lock's whole
 * state as text, the same from the C machine and from a look of the scripts'. */
#ifndef DIBS_TESTS_LUA_LOCK_H
#define DIBS_TESTS_LUA_LOCK_H

#include "support/machine.h"

#include <hiredis/hiredis.h>

/* ---- Commands by chance (author.c) ----------------------------------------------------------- */

#define OWNERS 5

/* What makes a sequence: zero it, then set the first four. */
typedef struct lock_author {
    uint64_t seed;
    int64_t now;
    uint32_t capacity;
    bool breaks;            /* a lock that was broken once has a record of another form for ever */
    int attempt[OWNERS][2]; /* the last one made */
} lock_author;

uint64_t author_chance(lock_author *a, uint64_t below);

/* The next one, about this lock as it is now; time goes on. */
void author_next(lock_author *a, const tiny *lock, command *out);

/* ---- As the scripts read them (words.c) ------------------------------------------------------ */

#define WORD_SIZE 256
#define WORDS     12

/* The arguments of a script. */
typedef struct words {
    size_t count;
    char data[WORDS][WORD_SIZE];
    size_t length[WORDS];
} words;

void words_add(words *ws, const char *format, ...) __attribute__((format(printf, 2, 3)));

void words_add_command(words *ws, const command *c);

/* Appends a call of the script at that time, to be sent with others. */
void words_send(words *ws, redisContext *redis, const char *sha, const char *key, int64_t now);

/* ---- State as text (state.c) ----------------------------------------------------------------- */

/* To be freed. The second one sorts what the look brought. */
char *state_of_c(tiny t);
char *state_of_lua(const redisReply *look);

#endif
