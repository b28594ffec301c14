/* The commands of locks and cells as Lua scripts: their text, their names (SHA-1) and how to ask for them.
 *
 * Servers from 7 on can be told by a first line that a script may run when the memory is full: then
 * a full server still lets go of locks. Older ones do not know that line. Which kind the server is,
 * is found out when the scripts are loaded. */
#ifndef DIBS_REDIS_SCRIPT_H
#define DIBS_REDIS_SCRIPT_H

#include "dibs.h"
#include "engines/redis/resp.h"

#include <stdatomic.h>

typedef enum dibs__redis_script {
    DIBS__SCRIPT_ENTER,
    DIBS__SCRIPT_KEEP,
    DIBS__SCRIPT_RELEASE,
    DIBS__SCRIPT_CANCEL,
    DIBS__SCRIPT_BREAK,
    DIBS__SCRIPT_LOOK,
    DIBS__SCRIPT_CELL,
    DIBS__SCRIPT_CHANGE,
    DIBS__SCRIPT_AWAIT,
    DIBS__REDIS_SCRIPTS,
} dibs__redis_script;

extern const char *const dibs__redis_lua[DIBS__REDIS_SCRIPTS];

typedef struct dibs__scripts {
    struct {
        char *text;
        size_t length;
        char sha[41];
    } of[2][DIBS__REDIS_SCRIPTS]; /* [1]: with flags */
    atomic_bool flags;            /* the server knows them */
} dibs__scripts;

bool dibs__scripts_init(dibs__scripts *s); /* false: out of memory */
void dibs__scripts_fini(dibs__scripts *s);

/* SCRIPT LOAD of all of them: as many replies as there are scripts. */
void dibs__scripts_load(const dibs__scripts *s, bool flags, dibs__bytes *out);

/* "EVALSHA sha 1 key", or with the script itself when `whole`; `words` arguments must follow. */
void dibs__script_begin(const dibs__scripts *s, dibs__redis_script script, bool whole,
                        const char *key, size_t words, dibs__bytes *out);

#endif
