/* JSON as text; see the header.
 *
 * Writing: json_dumps looks for loops by writing the address of every object with snprintf, which takes longer than all
 * the rest of an answer. What is written here was made here and has no loops; the bytes are the same. Reading: json_loadb
 * takes a hundred instructions for each byte. What is not plain is left to it, and so are the words for what is wrong. */
#define _GNU_SOURCE
#include "http/json.h"

#include "http/buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_integer(http_buffer *t, json_int_t value)
{
    char digits[24], *at = digits + sizeof digits;
    unsigned long long left = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;

    do
        *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0)
        *--at = '-';
    http_buffer_add(t, at, (size_t)(digits + sizeof digits - at));
}

static bool is_plain(unsigned char c)
{
    return c >= ' ' && c != '"' && c != '\\';
}

static void put_escape(http_buffer *t, unsigned char c)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char code[6] = "\\u00";

    for (size_t i = 0; i < sizeof named - 1; i += 2)
        if ((unsigned char)named[i] == c) {
            http_buffer_add(t, (const char[]){'\\', named[i + 1]}, 2);
            return;
        }
    code[4] = "0123456789ABCDEF"[c >> 4];
    code[5] = "0123456789ABCDEF"[c & 15];
    http_buffer_add(t, code, sizeof code);
}

static void put_string(http_buffer *t, const char *string, size_t size)
{
    size_t from = 0;

    http_buffer_add(t, "\"", 1);
    for (size_t i = 0; i < size; i++)
        if (!is_plain((unsigned char)string[i])) {
            http_buffer_add(t, string + from, i - from);
            put_escape(t, (unsigned char)string[i]);
            from = i + 1;
        }
    http_buffer_add(t, string + from, size - from);
    http_buffer_add(t, "\"", 1);
}

static void put_value(http_buffer *t, const json_t *value);

static void put_object(http_buffer *t, const json_t *object)
{
    const char *key, *comma = "{";
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        http_buffer_add(t, comma, 1);
        put_string(t, key, strlen(key));
        http_buffer_add(t, ":", 1);
        put_value(t, value);
        comma = ",";
    }
    http_buffer_add(t, *comma == '{' ? "{}" : "}", *comma == '{' ? 2 : 1);
}

static void put_array(http_buffer *t, const json_t *array)
{
    size_t count = json_array_size(array);

    http_buffer_add(t, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            http_buffer_add(t, ",", 1);
        put_value(t, json_array_get(array, i));
    }
    http_buffer_add(t, "]", 1);
}

/* How a real number is written, only jansson knows. */
static void put_real(http_buffer *t, const json_t *value)
{
    char *to = http_buffer_reserve(t, 64);

    if (to)
        t->to += json_dumpb(value, to, 64, JSON_ENCODE_ANY);
}

static void put_value(http_buffer *t, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        put_object(t, value);
        break;
    case JSON_ARRAY:
        put_array(t, value);
        break;
    case JSON_STRING:
        put_string(t, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        put_integer(t, json_integer_value(value));
        break;
    case JSON_REAL:
        put_real(t, value);
        break;
    case JSON_TRUE:
        http_buffer_add(t, "true", 4);
        break;
    case JSON_FALSE:
        http_buffer_add(t, "false", 5);
        break;
    default:
        http_buffer_add(t, "null", 4);
    }
}

char *http_json_text(const json_t *value, size_t *size)
{
    http_buffer t = {0};

    if (value)
        put_value(&t, value);
    if (!value || !http_buffer_reserve(&t, 0)) {
        http_buffer_free(&t);
        return NULL;
    }
    *size = http_buffer_size(&t);
    t.data[t.to] = '\0'; /* a real number has none */
    return t.data;
}

/* ---- Reading --------------------------------------------------------------------------------- */

typedef struct input {
    const char *at, *end;
} input;

/* NUL: the end; inside of a text it is nothing plain. */
static char peek(const input *in)
{
    return in->at < in->end ? *in->at : '\0';
}

static char skip_space(input *in)
{
    while (in->at < in->end &&
           (*in->at == ' ' || *in->at == '\n' || *in->at == '\t' || *in->at == '\r'))
        in->at++;
    return peek(in);
}

static bool take(input *in, char c)
{
    if (skip_space(in) != c)
        return false;
    in->at++;
    return true;
}

static bool take_text(input *in, const char **text, size_t *size)
{
    if (!take(in, '"'))
        return false;
    *text = in->at;
    while (peek(in) >= ' ' && peek(in) < 0x7f && peek(in) != '"' && peek(in) != '\\')
        in->at++;
    *size = (size_t)(in->at - *text);
    return peek(in) == '"' && in->at++ < in->end;
}

static bool take_number(input *in, json_int_t *number)
{
    const char *from = in->at + (*in->at == '-'), *at = from;
    bool negative = at > in->at;

    for (*number = 0; at < in->end && *at >= '0' && *at <= '9' && at - from < 16; at++)
        *number = *number * 10 + (*at - '0');
    if (at == from || at - from > 15 || (*from == '0' && at - from > 1))
        return false;
    if (negative)
        *number = -*number;
    in->at = at;
    return true;
}

static bool take_word(input *in, const char *word)
{
    size_t size = strlen(word);

    if ((size_t)(in->end - in->at) < size || memcmp(in->at, word, size) != 0)
        return false;
    in->at += size;
    return true;
}

static bool take_value(input *in, http_json_member *m)
{
    switch (skip_space(in)) {
    case '"':
        m->type = JSON_STRING;
        return take_text(in, &m->text, &m->size);
    case 't':
        m->type = JSON_TRUE;
        return take_word(in, "true");
    case 'f':
        m->type = JSON_FALSE;
        return take_word(in, "false");
    case 'n':
        m->type = JSON_NULL;
        return take_word(in, "null");
    default:
        m->type = JSON_INTEGER;
        return in->at < in->end && take_number(in, &m->number);
    }
}

static bool is_new(const http_json_member members[], size_t count, const http_json_member *m)
{
    for (size_t i = 0; i < count; i++)
        if (members[i].name_size == m->name_size &&
            memcmp(members[i].name, m->name, m->name_size) == 0)
            return false;
    return true;
}

bool http_json_plain(const char *text, size_t size, http_json_member out[], size_t most,
                     size_t *count)
{
    input in = {text, text + size};

    *count = 0;
    if (!take(&in, '{'))
        return false;
    if (skip_space(&in) != '}')
        do {
            http_json_member m = {0};
            if (*count == most || !take_text(&in, &m.name, &m.name_size) || !take(&in, ':') ||
                !take_value(&in, &m) || !is_new(out, *count, &m))
                return false;
            out[(*count)++] = m;
        } while (take(&in, ','));
    return take(&in, '}') && skip_space(&in) == '\0' && in.at == in.end;
}
