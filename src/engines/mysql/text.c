/* SQL text: literals, and patterns with their values filled in. */
#include "engines/mysql/mysql.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dibs__my_add(dibs__bytes *t, const char *text)
{
    dibs__bytes_add(t, text, strlen(text));
}

/* The session's character set is `binary` and its sql_mode is ours: bytes are bytes, and a
 * backslash escapes. */
static void add_quoted(dibs__bytes *t, const char *bytes, size_t size)
{
    char *to = dibs__bytes_room(t, 2 * size + 2);

    if (!to)
        return;
    *to++ = '\'';
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\'' || bytes[i] == '\\')
            *to++ = '\\';
        *to++ = bytes[i];
    }
    *to++ = '\'';
    t->length = (size_t)(to - t->data);
}

void dibs__my_add_value(dibs__bytes *t, const dibs__sql_value *v)
{
    char number[24];

    switch (v->kind) {
    case DIBS__SQL_NULL:
        dibs__my_add(t, "NULL");
        return;
    case DIBS__SQL_NUMBER:
        dibs__bytes_add(t, number, (size_t)snprintf(number, sizeof number, "%" PRId64, v->number));
        return;
    case DIBS__SQL_BYTES:
        add_quoted(t, v->bytes, v->size);
        return;
    case DIBS__SQL_LIST:
        for (size_t i = 0; i < v->size; i++) {
            dibs__my_add(t, i ? ", " : "(");
            dibs__my_add_value(t, &v->items[i]);
        }
        dibs__my_add(t, ")");
    }
}

/* ---- Patterns ----------------------------------------------------------------------------------
 */

/* What becomes of $n. */
typedef enum manner { LITERAL, QUESTION_MARK, NO_PATTERN } manner;

static void add_question_marks(dibs__bytes *t, const dibs__sql_value *v)
{
    if (v->kind != DIBS__SQL_LIST) {
        dibs__my_add(t, "?");
        return;
    }
    for (size_t i = 0; i < v->size; i++)
        dibs__my_add(t, i ? ", ?" : "(?");
    dibs__my_add(t, ")");
}

/* Without brackets, and after a comma unless it is the first. */
static void add_plain_value(dibs__bytes *t, const dibs__sql_value *v, bool *first)
{
    size_t count = v->kind == DIBS__SQL_LIST ? v->size : 1;

    for (size_t i = 0; i < count; i++) {
        dibs__my_add(t, *first ? "" : ", ");
        dibs__my_add_value(t, v->kind == DIBS__SQL_LIST ? &v->items[i] : v);
        *first = false;
    }
}

static const char *add_table(dibs__bytes *t, const char *prefix, const char *at)
{
    const char *end = strchr(at, '}');

    dibs__my_add(t, "`");
    dibs__my_add(t, prefix);
    dibs__bytes_add(t, at + 1, (size_t)(end - at - 1));
    dibs__my_add(t, "`");
    return end + 1;
}

static void walk(dibs__bytes *t, const char *prefix, const char *at, const dibs__sql_value *args,
                 manner how)
{
    bool first = true;

    while (*at) {
        size_t plain = strcspn(at, how == NO_PATTERN ? "$" : "${");
        if (how != NO_PATTERN)
            dibs__bytes_add(t, at, plain);
        at += plain;
        if (*at == '{') {
            at = add_table(t, prefix, at);
        } else if (*at == '$') {
            const dibs__sql_value *v = &args[at[1] <= '9' ? at[1] - '1' : at[1] - 'a' + 9];
            if (how == LITERAL)
                dibs__my_add_value(t, v);
            else if (how == QUESTION_MARK)
                add_question_marks(t, v);
            else
                add_plain_value(t, v, &first);
            at += 2;
        }
    }
}

void dibs__my_add_pattern(dibs__bytes *t, const char *prefix, const char *pattern,
                          const dibs__sql_value *args)
{
    walk(t, prefix, pattern, args, LITERAL);
}

void dibs__my_add_template(dibs__bytes *t, const char *prefix, const char *pattern,
                           const dibs__sql_value *args)
{
    walk(t, prefix, pattern, args, QUESTION_MARK);
}

void dibs__my_add_values(dibs__bytes *t, const char *pattern, const dibs__sql_value *args)
{
    walk(t, "", pattern, args, NO_PATTERN);
}
