/* Text that grows: literals, and patterns with their values filled in. */
#include "engines/mysql/mysql.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(dibs__my_text *t, size_t more)
{
    size_t room = t->room ? t->room : 1024;
    char *larger;

    if (t->failed || t->size + more <= t->room)
        return !t->failed;
    while (room < t->size + more)
        room *= 2;
    larger = realloc(t->at, room);
    if (!larger) {
        t->failed = true;
        return false;
    }
    t->at = larger;
    t->room = room;
    return true;
}

void dibs__my_add_bytes(dibs__my_text *t, const char *bytes, size_t size)
{
    if (reserve(t, size)) {
        memcpy(t->at + t->size, bytes, size);
        t->size += size;
    }
}

void dibs__my_add(dibs__my_text *t, const char *text)
{
    dibs__my_add_bytes(t, text, strlen(text));
}

void dibs__my_text_fini(dibs__my_text *t)
{
    free(t->at);
    memset(t, 0, sizeof *t);
}

/* The session's character set is `binary` and its sql_mode is ours: bytes are bytes, and a
 * backslash escapes. */
static void add_quoted(dibs__my_text *t, const char *bytes, size_t size)
{
    if (!reserve(t, 2 * size + 2))
        return;
    t->at[t->size++] = '\'';
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\'' || bytes[i] == '\\')
            t->at[t->size++] = '\\';
        t->at[t->size++] = bytes[i];
    }
    t->at[t->size++] = '\'';
}

void dibs__my_add_value(dibs__my_text *t, const dibs__sql_value *v)
{
    char number[24];

    switch (v->kind) {
    case DIBS__SQL_NULL:
        dibs__my_add(t, "NULL");
        return;
    case DIBS__SQL_NUMBER:
        dibs__my_add_bytes(t, number,
                           (size_t)snprintf(number, sizeof number, "%" PRId64, v->number));
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

static void add_question_marks(dibs__my_text *t, const dibs__sql_value *v)
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
static void add_plain_value(dibs__my_text *t, const dibs__sql_value *v, bool *first)
{
    size_t count = v->kind == DIBS__SQL_LIST ? v->size : 1;

    for (size_t i = 0; i < count; i++) {
        dibs__my_add(t, *first ? "" : ", ");
        dibs__my_add_value(t, v->kind == DIBS__SQL_LIST ? &v->items[i] : v);
        *first = false;
    }
}

static const char *add_table(dibs__my_text *t, const char *prefix, const char *at)
{
    const char *end = strchr(at, '}');

    dibs__my_add(t, "`");
    dibs__my_add(t, prefix);
    dibs__my_add_bytes(t, at + 1, (size_t)(end - at - 1));
    dibs__my_add(t, "`");
    return end + 1;
}

static void walk(dibs__my_text *t, const char *prefix, const char *at, const dibs__sql_value *args,
                 manner how)
{
    bool first = true;

    while (*at) {
        size_t plain = strcspn(at, how == NO_PATTERN ? "$" : "${");
        if (how != NO_PATTERN)
            dibs__my_add_bytes(t, at, plain);
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

void dibs__my_add_pattern(dibs__my_text *t, const char *prefix, const char *pattern,
                          const dibs__sql_value *args)
{
    walk(t, prefix, pattern, args, LITERAL);
}

void dibs__my_add_template(dibs__my_text *t, const char *prefix, const char *pattern,
                           const dibs__sql_value *args)
{
    walk(t, prefix, pattern, args, QUESTION_MARK);
}

void dibs__my_add_values(dibs__my_text *t, const char *pattern, const dibs__sql_value *args)
{
    walk(t, "", pattern, args, NO_PATTERN);
}
