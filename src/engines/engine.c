/* The list of engines. */
#include "engines/engine.h"

#include <string.h>

extern const dibs__engine_class dibs__engine_sqlite;
extern const dibs__engine_class dibs__engine_memory;
extern const dibs__engine_class dibs__engine_redis;
extern const dibs__engine_class dibs__engine_postgresql;
extern const dibs__engine_class dibs__engine_mysql;
extern const dibs__engine_class dibs__engine_zookeeper;
extern const dibs__engine_class dibs__engine_etcd;

const dibs__engine_class *const dibs__engines[] = {
    &dibs__engine_sqlite,    &dibs__engine_redis, &dibs__engine_postgresql, &dibs__engine_mysql,
    &dibs__engine_zookeeper, &dibs__engine_etcd,  &dibs__engine_memory,     NULL,
};

const dibs__engine_class *dibs__engine_find(const char *scheme)
{
    for (size_t i = 0; dibs__engines[i]; i++)
        for (const char *const *s = dibs__engines[i]->schemes; *s; s++)
            if (strcmp(*s, scheme) == 0)
                return dibs__engines[i];
    return NULL;
}
