/* The rows of `wake` that this handle has read and not deleted yet. They come back with every round
 * until they are deleted, which is done for many at a time. */
#include "engines/mysql/mysql.h"

#include <string.h>

bool dibs__my_seen_add(dibs__my_seen *s, const char *text)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->text[i], text) == 0)
            return false;
    if (s->count < DIBS__MY_SEEN && strlen(text) < sizeof s->text[0])
        strcpy(s->text[s->count++], text);
    return true;
}

void dibs__my_seen_list(dibs__my_seen *s, dibs__bytes *out)
{
    for (size_t i = 0; i < s->count; i++) {
        dibs__sql_value text = {.kind = DIBS__SQL_BYTES, .bytes = s->text[i]};
        text.size = strlen(text.bytes);
        dibs__my_add(out, i ? ", " : "(");
        dibs__my_add_value(out, &text);
    }
    dibs__my_add(out, ")");
    s->going = s->count;
}

void dibs__my_seen_gone(dibs__my_seen *s)
{
    s->count -= s->going;
    memmove(s->text[0], s->text[s->going], s->count * sizeof s->text[0]);
    s->going = 0;
}
