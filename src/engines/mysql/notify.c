/* A cell has changed: waking the handles that wait for it (await.c).
 *
 * The change itself only reads their marks, in its transaction; mostly there are none, and that
 * was all. If there are, a second exchange follows once the change is on record: it turns each
 * mark around and rings the wake signals, like the wake-ups of a lock. So does a change that is asked for
 * again because its answer was lost, and one that was refused: the woken have a look, and wait on.
 * A client that dies in between has told nobody: they look by themselves, within a second.
 *
 * A hand-over to another handle than was expected goes the same way: its message has woken nobody, and the new holder
 * would find out by its next keep-alive. */
#include "engines/mysql/mysql.h"

#include <stdlib.h>
#include <string.h>

static bool read_text(const dibs__sql_value *cell, char *out, size_t size)
{
    if (cell->kind != DIBS__SQL_BYTES || cell->size >= size)
        return false;
    memcpy(out, cell->bytes, cell->size);
    out[cell->size] = '\0';
    return true;
}

static bool reserve(dibs__my_conn *c)
{
    size_t room = c->watcher_room ? c->watcher_room * 2 : 8;
    dibs__my_watcher *larger;

    if (c->watcher_count < c->watcher_room)
        return true;
    larger = realloc(c->watcher, room * sizeof *larger);
    if (!larger)
        return false;
    c->watcher = larger;
    c->watcher_room = room;
    return true;
}

void dibs__my_watcher_add(dibs__my_conn *c, const dibs__sql_value *cells)
{
    dibs__my_watcher *w;

    if (!reserve(c))
        return;
    w = &c->watcher[c->watcher_count];
    if (read_text(&cells[0], w->text, sizeof w->text) &&
        read_text(&cells[1], w->handle, sizeof w->handle))
        c->watcher_count++;
}

void dibs__my_handed(dibs__my_conn *c, const dibs__sql_value *cells)
{
    dibs__my_watcher *w;
    dibs__sql_notice n = {.fence = (uint64_t)cells[3].number, .floor = (uint64_t)cells[3].number};

    c->hands_out =
        !read_text(&cells[1], n.wake, sizeof n.wake) || strcmp(n.wake, c->base.e->id) != 0;
    if (!c->hands_out || c->wakes || !reserve(c) ||
        !read_text(&cells[2], n.attempt, sizeof n.attempt))
        return;
    dibs__sql_notice_text(&n);
    w = &c->watcher[c->watcher_count++];
    memcpy(w->handle, n.wake, sizeof w->handle);
    memcpy(w->text, n.text, sizeof w->text);
}

void dibs__my_watchers_notify(dibs__my_conn *c, dibs__deadline until)
{
    dibs__sql_batch *b = &c->notifying;

    if (c->watcher_count == 0 || c->base.broken)
        return;
    dibs__sql_batch_reset(b, DIBS__SQL_WHOLE);
    for (size_t i = 0; i < c->watcher_count; i++) {
        dibs__sql_add(b, DIBS__SQL_NOTIFY);
        dibs__sql_text(b, c->watcher[i].handle);
        dibs__sql_text(b, c->watcher[i].text);
    }
    c->base.row_wait = (until - dibs__now(c->base.e->base.env)) / 2; /* whatever the change did */
    dibs__my_exchange(&c->base, b, until, NULL);
}
