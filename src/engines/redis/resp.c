/* Writing requests. */
#include "engines/redis/resp.h"

#include <string.h>

/* Decimal digits at the end of `out`; printf would cost more than all the rest of a request. */
static char *digits(uint64_t number, char *end)
{
    do {
        *--end = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    return end;
}

/* "*3\r\n" or "$12\r\n" */
static void add_count(dibs__bytes *b, char kind, size_t count)
{
    char text[24];
    char *end = text + sizeof text - 2;
    char *at = digits(count, end);

    *--at = kind;
    end[0] = '\r';
    end[1] = '\n';
    dibs__bytes_add(b, at, (size_t)(end + 2 - at));
}

void dibs__resp_begin(dibs__bytes *b, size_t words)
{
    add_count(b, '*', words);
}

void dibs__resp_word(dibs__bytes *b, const void *data, size_t length)
{
    add_count(b, '$', length);
    dibs__bytes_add(b, data, length);
    dibs__bytes_add(b, "\r\n", 2);
}

void dibs__resp_text(dibs__bytes *b, const char *text)
{
    dibs__resp_word(b, text, strlen(text));
}

void dibs__resp_number(dibs__bytes *b, int64_t number)
{
    char text[24];
    char *end = text + sizeof text;
    char *at = digits(number < 0 ? 0 - (uint64_t)number : (uint64_t)number, end);

    if (number < 0)
        *--at = '-';
    dibs__resp_word(b, at, (size_t)(end - at));
}
