/* Wake-ups as text, "attempt fence floor" or "attempt", and where they go. */
#include "families/rows/inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dibs__sql_notice_text(dibs__sql_notice *n)
{
    if (n->fence)
        snprintf(n->text, sizeof n->text, "%s %" PRIu64 " %" PRIu64, n->attempt, n->fence,
                 n->floor);
    else
        snprintf(n->text, sizeof n->text, "%s", n->attempt);
}

bool dibs__sql_is_ours(const dibs__sql *e, const char *wake)
{
    size_t size = strlen(e->id);

    return strncmp(wake, e->id, size) == 0 && (wake[size] == '\0' || wake[size] == '.');
}

void dibs__sql_notice_deliver(dibs__sql *e, const dibs__sql_notice *n)
{
    if (n->fence)
        dibs__sql_line_drop(e, n->attempt);
    if (n->fence)
        e->base.sink->granted(e->base.sink, n->attempt, n->fence, n->floor);
    else
        e->base.sink->check(e->base.sink, n->attempt);
}

/* Without memory it is left out: it finds out at its next keep-alive. */
void dibs__sql_mail_add(dibs__sql_mail *mail, const dibs__sql_notice *n)
{
    dibs__sql_notice *larger =
        dibs__sql_grown(mail->notice, mail->count, &mail->room, sizeof *mail->notice);

    if (!larger)
        return;
    mail->notice = larger;
    mail->notice[mail->count++] = *n;
}

void dibs__sql_mail_deliver(dibs__sql *e, dibs__sql_mail *mail)
{
    for (size_t i = 0; i < mail->count; i++)
        dibs__sql_notice_deliver(e, &mail->notice[i]);
    free(mail->notice);
}

void dibs__sql_cell_notice_arrived(dibs__sql *e, const char *text)
{
    uint64_t cell;

    if (sscanf(text, "%16" SCNx64, &cell) == 1)
        e->base.sink->changed(e->base.sink, cell);
}

void dibs__sql_notice_arrived(dibs__sql *e, const char *text)
{
    dibs__sql_notice n = {0};
    size_t size = strcspn(text, " ");
    int end = 0;

    if (size == 0 || size >= sizeof n.attempt)
        return;
    memcpy(n.attempt, text, size);
    if (text[size] &&
        (sscanf(text + size, " %" SCNu64 " %" SCNu64 "%n", &n.fence, &n.floor, &end) != 2 ||
         text[size + (size_t)end] != '\0'))
        return;
    dibs__sql_notice_deliver(e, &n);
}
