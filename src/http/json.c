/* JSON as text. json_dumps looks for loops by writing the address of every object with snprintf, which takes longer than
 * all the rest of an answer. What is written here was made here and has no loops; the bytes are the same. */
#define _GNU_SOURCE
#include "http/json.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct text {
    char *at;
    size_t size, room;
    bool failed;
} text;

static char *reserve(text *t, size_t more)
{
    if (t->size + more > t->room) {
        size_t room = (t->size + more) * 2;
        char *at = realloc(t->at, room);
        if (!at) {
            t->failed = true;
            return NULL;
        }
        t->at = at;
        t->room = room;
    }
    return t->at + t->size;
}

static void put(text *t, const char *bytes, size_t size)
{
    char *to = reserve(t, size);

    if (to) {
        memcpy(to, bytes, size);
        t->size += size;
    }
}

static void put_integer(text *t, json_int_t value)
{
    char digits[24], *at = digits + sizeof digits;
    unsigned long long left = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;

    do
        *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0)
        *--at = '-';
    put(t, at, (size_t)(digits + sizeof digits - at));
}

static bool is_plain(unsigned char c)
{
    return c >= ' ' && c != '"' && c != '\\';
}

static void put_escape(text *t, unsigned char c)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char code[6] = "\\u00";

    for (size_t i = 0; i < sizeof named - 1; i += 2)
        if ((unsigned char)named[i] == c) {
            put(t, (const char[]){'\\', named[i + 1]}, 2);
            return;
        }
    code[4] = "0123456789ABCDEF"[c >> 4];
    code[5] = "0123456789ABCDEF"[c & 15];
    put(t, code, sizeof code);
}

static void put_string(text *t, const char *string, size_t size)
{
    size_t from = 0;

    put(t, "\"", 1);
    for (size_t i = 0; i < size; i++)
        if (!is_plain((unsigned char)string[i])) {
            put(t, string + from, i - from);
            put_escape(t, (unsigned char)string[i]);
            from = i + 1;
        }
    put(t, string + from, size - from);
    put(t, "\"", 1);
}

static void put_value(text *t, const json_t *value);

static void put_object(text *t, const json_t *object)
{
    const char *key, *comma = "{";
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        put(t, comma, 1);
        put_string(t, key, strlen(key));
        put(t, ":", 1);
        put_value(t, value);
        comma = ",";
    }
    put(t, *comma == '{' ? "{}" : "}", *comma == '{' ? 2 : 1);
}

static void put_array(text *t, const json_t *array)
{
    size_t count = json_array_size(array);

    put(t, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            put(t, ",", 1);
        put_value(t, json_array_get(array, i));
    }
    put(t, "]", 1);
}

/* How a real number is written, only jansson knows. */
static void put_real(text *t, const json_t *value)
{
    char *to = reserve(t, 64);

    if (to)
        t->size += json_dumpb(value, to, 64, JSON_ENCODE_ANY);
}

static void put_value(text *t, const json_t *value)
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
        put(t, "true", 4);
        break;
    case JSON_FALSE:
        put(t, "false", 5);
        break;
    default:
        put(t, "null", 4);
    }
}

char *http_json_text(const json_t *value, size_t *size)
{
    text t = {.room = 512, .at = malloc(512)};

    t.failed = !t.at;
    if (value && !t.failed) {
        put_value(&t, value);
        put(&t, "", 1);
    }
    if (!value || t.failed) {
        free(t.at);
        return NULL;
    }
    *size = t.size - 1;
    return t.at;
}
