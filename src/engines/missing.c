/* Engines that this build was made without: they are listed, and opening one names the package. */
#include "engines/capabilities.h"

/* Declared here and in engine.c only: the engines' own files are not compiled. */
#ifndef DIBS_HAVE_SQLITE
extern const dibs__engine_class dibs__engine_sqlite;
const dibs__engine_class dibs__engine_sqlite = {
    .scheme = "sqlite",
    .schemes = (const char *const[]){"sqlite", NULL},
    .missing = "libsqlite3-dev",
    .can = DIBS__SQLITE_CAN,
};
#endif

#ifndef DIBS_HAVE_REDIS
extern const dibs__engine_class dibs__engine_redis;
const dibs__engine_class dibs__engine_redis = {
    .scheme = "redis",
    .schemes = (const char *const[]){"redis", "rediss", "redis+unix", "redis+sentinel",
                                     "redis+cluster", NULL},
    .missing = "libhiredis-dev and libssl-dev",
    .can = DIBS__SERVER_CAN,
};
#endif

#ifndef DIBS_HAVE_REDIS
extern const dibs__engine_class dibs__engine_redlock;
const dibs__engine_class dibs__engine_redlock = {
    .scheme = "redlock",
    .schemes = (const char *const[]){"redlock", NULL},
    .missing = "libhiredis-dev and libssl-dev",
    .can = DIBS__REDLOCK_CAN,
};
#endif

#ifndef DIBS_HAVE_POSTGRESQL
extern const dibs__engine_class dibs__engine_postgresql;
const dibs__engine_class dibs__engine_postgresql = {
    .scheme = "postgresql",
    .schemes = (const char *const[]){"postgresql", "postgres", NULL},
    .missing = "libpq-dev",
    .can = DIBS__SERVER_CAN,
};
#endif

#ifndef DIBS_HAVE_MYSQL
extern const dibs__engine_class dibs__engine_mysql;
const dibs__engine_class dibs__engine_mysql = {
    .scheme = "mysql",
    .schemes = (const char *const[]){"mysql", "mariadb", NULL},
    .missing = "libmariadb-dev",
    .can = DIBS__SERVER_CAN,
};
#endif

#ifndef DIBS_HAVE_ZOOKEEPER
extern const dibs__engine_class dibs__engine_zookeeper;
const dibs__engine_class dibs__engine_zookeeper = {
    .scheme = "zookeeper",
    .schemes = (const char *const[]){"zookeeper", "zookeepers", NULL},
    .missing = "libzookeeper-mt-dev",
    .can = DIBS__ZOOKEEPER_CAN,
};
#endif

#ifndef DIBS_HAVE_ETCD
extern const dibs__engine_class dibs__engine_etcd;
const dibs__engine_class dibs__engine_etcd = {
    .scheme = "etcd",
    .schemes = (const char *const[]){"etcd", "etcds", NULL},
    .missing = "libnghttp2-dev, libprotobuf-c-dev, protobuf-c-compiler and libssl-dev",
    .can = DIBS__ETCD_CAN,
};
#endif
