/* Scripts and their names. */
#define _GNU_SOURCE
#include "engines/redis/script.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool add_script(dibs__scripts *s, bool flags, size_t i, const char *in_flight,
                       const char *lua)
{
    char *text = NULL;
    int n = asprintf(&text, "%s%s", in_flight, lua);

    if (n < 0)
        return false;
    s->of[flags][i].text = text;
    s->of[flags][i].length = (size_t)n;
    return name_script(text, (size_t)n, s->of[flags][i].sha);
}

/* All but entering must go on when the memory is full. */
bool dibs__scripts_init(dibs__scripts *s, const char *const lua[], size_t count, size_t needy)
{
    memset(s, 0, sizeof *s);
    s->count = count;
    for (size_t i = 0; i < count; i++) {
        const char *in_flight = i >= needy ? "#!lua flags=allow-oom\n" : "";
        if (!add_script(s, false, i, "", lua[i]) || !add_script(s, true, i, in_flight, lua[i])) {
            dibs__scripts_fini(s);
            return false;
        }
    }
    return true;
}

void dibs__scripts_fini(dibs__scripts *s)
{
    for (int flags = 0; flags < 2; flags++)
        for (size_t i = 0; i < s->count; i++)
            free(s->of[flags][i].text);
    memset(s, 0, sizeof *s);
}

void dibs__scripts_load(const dibs__scripts *s, bool flags, dibs__bytes *out)
{
    for (size_t i = 0; i < s->count; i++) {
        dibs__resp_begin(out, 3);
        dibs__resp_text(out, "SCRIPT");
        dibs__resp_text(out, "LOAD");
        dibs__resp_word(out, s->of[flags][i].text, s->of[flags][i].length);
    }
}

void dibs__script_begin(const dibs__scripts *s, dibs__script_call call, const char *key,
                        dibs__bytes *out)
{
    dibs__resp_begin(out, 4 + call.more_keys + call.words);
    if (call.whole) {
        dibs__resp_text(out, "EVAL");
        dibs__resp_word(out, s->of[call.flags][call.script].text,
                        s->of[call.flags][call.script].length);
    } else {
        dibs__resp_text(out, "EVALSHA");
        dibs__resp_word(out, s->of[call.flags][call.script].sha, 40);
    }
    dibs__resp_number(out, 1 + (int64_t)call.more_keys);
    dibs__resp_text(out, key);
}
