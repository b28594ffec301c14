/* The list of engines, and what those that run the C machine share. */
#include "engines/engine.h"

#include <stdlib.h>
#include <string.h>

extern const dibs__engine_class dibs__engine_sqlite;
extern const dibs__engine_class dibs__engine_memory;
extern const dibs__engine_class dibs__engine_redis;
extern const dibs__engine_class dibs__engine_redlock;
extern const dibs__engine_class dibs__engine_postgresql;
extern const dibs__engine_class dibs__engine_mysql;
extern const dibs__engine_class dibs__engine_zookeeper;
extern const dibs__engine_class dibs__engine_etcd;

const dibs__engine_class *const dibs__engines[] = {
    &dibs__engine_sqlite,     &dibs__engine_redis,  &dibs__engine_redlock,
    &dibs__engine_postgresql, &dibs__engine_mysql,  &dibs__engine_zookeeper,
    &dibs__engine_etcd,       &dibs__engine_memory, NULL,
};

const dibs__engine_class *dibs__engine_find(const char *scheme)
{
    for (size_t i = 0; dibs__engines[i]; i++)
        for (const char *const *s = dibs__engines[i]->schemes; *s; s++)
            if (strcmp(*s, scheme) == 0)
                return dibs__engines[i];
    return NULL;
}

bool dibs__cell_reply_of(const dibs__cell_command *command, const dibs__cell_answer *answer,
                         dibs__time now, dibs__cell_reply *out)
{
    const dibs__cell *c = &answer->cell;

    *out = (dibs__cell_reply){
        .verdict = answer->verdict,
        .version = c->version,
        .floor = c->floor,
        .number = c->number,
        .age = dibs__span(c->written, now.lease),
        .left = c->expires == INT64_MAX ? INT64_MAX : dibs__span(now.lease, c->expires),
    };
    if (!dibs__cell_shows_data(command->op, answer->verdict))
        return true;
    out->data = malloc(c->size + 1);
    if (!out->data)
        return false;
    if (c->size)
        memcpy(out->data, c->data, c->size);
    ((char *)out->data)[c->size] = '\0';
    out->size = c->size;
    return true;
}
