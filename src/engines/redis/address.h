/* The parts of a URL that both engines on Redis read alike: login, database, prefix, TLS. */
#ifndef DIBS_REDIS_ADDRESS_H
#define DIBS_REDIS_ADDRESS_H

#include "core/url.h"
#include "engines/redis/connection.h"
#include "engines/redis/key.h"

#define DIBS__REDIS_PORT 6379

/* Copies both; NULL or "" as `user` is the default user. */
dibs_status dibs__address_login(dibs__redis_address *address, const char *user,
                                const char *password, dibs_error *err);
dibs_status dibs__address_db(const char *text, int64_t *out, dibs_error *err);
/* prefix= of the URL, or "dibs". */
dibs_status dibs__address_prefix(dibs__url *url, char out[DIBS__REDIS_PREFIX_MAX + 1],
                                 dibs_error *err);
/* yes or no; no unless the URL says so. */
dibs_status dibs__address_flag(dibs__url *url, const char *key, bool *out, dibs_error *err);
/* ca=, cert= and key= of the URL. */
dibs_status dibs__address_tls(dibs__url *url, dibs__tls_context **out, dibs_error *err);

/* All but the TLS context, which several places may share. */
void dibs__address_fini(dibs__redis_address *address);

#endif
