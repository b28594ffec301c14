/* The makes of database that this build was made without: using one names the package. */
#include "transaction/sql.h"

#ifndef DIBS_HAVE_POSTGRESQL
const dibs__tx_driver dibs__tx_driver_pg = {.name = "postgresql", .missing = "libpq-dev"};
#endif

#ifndef DIBS_HAVE_MYSQL
const dibs__tx_driver dibs__tx_driver_mysql = {.name = "mysql", .missing = "libmariadb-dev"};
#endif

#ifndef DIBS_HAVE_SQLITE
const dibs__tx_driver dibs__tx_driver_sqlite = {.name = "sqlite", .missing = "libsqlite3-dev"};
#endif
