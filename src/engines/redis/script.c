/* Scripts and their names. */
#define _GNU_SOURCE
#include "engines/redis/script.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All but what begins something must go on when the memory is full. */
static const char *first_line(dibs__redis_script script, bool flags)
{
    bool begins = script == DIBS__SCRIPT_ENTER || script == DIBS__SCRIPT_CELL;

    return flags && !begins ? "#!lua flags=allow-oom\n" : "";
}

/* False: OpenSSL ran out of memory. A wrong name would be another script's. */
static bool name_script(const char *text, size_t length, char out[41])
{
    unsigned char digest[SHA_DIGEST_LENGTH];

    if (!SHA1((const unsigned char *)text, length, digest))
        return false;
    for (int i = 0; i < SHA_DIGEST_LENGTH; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
    return true;
}

bool dibs__scripts_init(dibs__scripts *s)
{
    memset(s, 0, sizeof *s);
    for (int flags = 0; flags < 2; flags++) {
        for (int i = 0; i < DIBS__REDIS_SCRIPTS; i++) {
            const char *line = first_line((dibs__redis_script)i, flags);
            int n = asprintf(&s->of[flags][i].text, "%s%s", line, dibs__redis_lua[i]);
            if (n < 0)
                s->of[flags][i].text = NULL;
            if (n < 0 || !name_script(s->of[flags][i].text, (size_t)n, s->of[flags][i].sha)) {
                dibs__scripts_fini(s);
                return false;
            }
            s->of[flags][i].length = (size_t)n;
        }
    }
    atomic_init(&s->flags, true);
    return true;
}

void dibs__scripts_fini(dibs__scripts *s)
{
    for (int flags = 0; flags < 2; flags++)
        for (int i = 0; i < DIBS__REDIS_SCRIPTS; i++)
            free(s->of[flags][i].text);
    memset(s->of, 0, sizeof s->of);
}

void dibs__scripts_load(const dibs__scripts *s, bool flags, dibs__bytes *out)
{
    for (int i = 0; i < DIBS__REDIS_SCRIPTS; i++) {
        dibs__resp_begin(out, 3);
        dibs__resp_text(out, "SCRIPT");
        dibs__resp_text(out, "LOAD");
        dibs__resp_word(out, s->of[flags][i].text, s->of[flags][i].length);
    }
}

void dibs__script_begin(const dibs__scripts *s, dibs__redis_script script, bool whole,
                        const char *key, size_t words, dibs__bytes *out)
{
    bool flags = atomic_load_explicit(&s->flags, memory_order_relaxed);

    dibs__resp_begin(out, 4 + words);
    if (whole) {
        dibs__resp_text(out, "EVAL");
        dibs__resp_word(out, s->of[flags][script].text, s->of[flags][script].length);
    } else {
        dibs__resp_text(out, "EVALSHA");
        dibs__resp_word(out, s->of[flags][script].sha, 40);
    }
    dibs__resp_word(out, "1", 1);
    dibs__resp_text(out, key);
}
