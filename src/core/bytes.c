/* See bytes.h. */
#include "core/bytes.h"

#include <stdlib.h>

#define FIRST_ROOM 512

bool dibs__bytes_grow(dibs__bytes *b, size_t more)
{
    size_t room = b->room ? b->room : FIRST_ROOM;
    char *data;

    while (room - b->length < more)
        room *= 2;
    data = b->failed ? NULL : realloc(b->data, room);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->room = room;
    return true;
}

void dibs__bytes_fini(dibs__bytes *b)
{
    free(b->data);
    *b = (dibs__bytes){0};
}
