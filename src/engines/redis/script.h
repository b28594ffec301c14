/* A set of commands as Lua scripts: their text, their names (SHA-1) and how to ask for them.
 *
 * Servers from 7 on can be told by a first line that a script may run when the memory is full: then
 * a full server still lets go of locks. Older ones do not know that line. Which kind a server is,
 * is found out when the scripts are loaded. */
#ifndef DIBS_REDIS_SCRIPT_H
#define DIBS_REDIS_SCRIPT_H

#include "dibs.h"
#include "engines/redis/resp.h"

#define DIBS__SCRIPTS_MAX 11

/* Those of the Redis engine; Redlock has its own. */
typedef enum dibs__redis_script {
    DIBS__SCRIPT_ENTER, /* these two begin something: refused when the memory is full */
    DIBS__SCRIPT_CELL,
    DIBS__SCRIPT_KEEP,
    DIBS__SCRIPT_RELEASE,
    DIBS__SCRIPT_CANCEL,
    DIBS__SCRIPT_BREAK,
    DIBS__SCRIPT_INSPECT,
    DIBS__SCRIPT_CHANGE,
    DIBS__SCRIPT_AWAIT,
    DIBS__SCRIPT_INDEX,
    DIBS__SCRIPT_MARK,
    DIBS__REDIS_SCRIPTS,
} dibs__redis_script;

extern const char *const dibs__redis_lua[DIBS__REDIS_SCRIPTS];

typedef struct dibs__scripts {
    size_t count;
    struct {
        char *text;
        size_t length;
        char sha[41];
    } of[2][DIBS__SCRIPTS_MAX]; /* [1]: with flags */
} dibs__scripts;

/* The first `needy` of `lua` take memory and are refused when there is none. false: out of memory.
 */
bool dibs__scripts_init(dibs__scripts *s, const char *const lua[], size_t count, size_t needy);
void dibs__scripts_fini(dibs__scripts *s);

/* SCRIPT LOAD of all of them: as many replies as there are scripts. */
void dibs__scripts_load(const dibs__scripts *s, bool flags, dibs__bytes *out);

/* How a script is asked for. */
typedef struct dibs__script_call {
    size_t script;
    bool flags; /* the server knows them */
    bool whole; /* with its text: the server has forgotten it */
    size_t words;
    size_t more_keys; /* beside the first */
} dibs__script_call;

/* "EVALSHA sha 1 key"; as many keys as `more_keys` and arguments as `words` must follow. */
void dibs__script_begin(const dibs__scripts *s, dibs__script_call call, const char *key,
                        dibs__bytes *out);

#endif
