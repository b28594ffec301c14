/* Filling templates; see the header. */
#include "fill.h"

#include <stdbool.h>
#include <string.h>

static void escape(FILE *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&#39;", out);
            break;
        default:
            fputc(*text, out);
        }
}

static const char *look_up(const lab_value values[], const char *name, size_t size)
{
    for (; values->name; values++)
        if (strlen(values->name) == size && memcmp(values->name, name, size) == 0)
            return values->text;
    return "";
}

void lab_fill(FILE *out, const char *page, const lab_value values[])
{
    const char *mark, *end;

    while ((mark = strstr(page, "{{")) && (end = strstr(mark, "}}"))) {
        bool html = mark[2] == '{';
        const char *name = mark + (html ? 3 : 2);
        const char *text = look_up(values, name, (size_t)(end - name));
        fwrite(page, 1, (size_t)(mark - page), out);
        if (html)
            fputs(text, out);
        else
            escape(out, text);
        page = end + (html ? 3 : 2);
    }
    fputs(page, out);
}
