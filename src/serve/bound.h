/* What a client gets as the id of its grant or its run.
 *
 *     g10000~TEXT~TEXT   portable: the lease, and the exported texts of the locks. Any server on the engine can
 *                        take it up
 *     b~INSTANCE~SECRET~ADDRESS   bound to one process, which can be reached at ADDRESS (in hexadecimal) */
#ifndef DIBS_SERVE_BOUND_H
#define DIBS_SERVE_BOUND_H

#include "serve/sets.h"

bool serve_set_make_id(serve_set *set);
char *serve_bound_id(const serve *s); /* a new one; NULL: no memory */
bool serve_is_bound(const char *id);
/* The answer to a bound id that is not in this server's table: 421 with the right address, or 410. */
void serve_bound_refuse(http_exchange *x, const char *id, const char *what);
/* Splits a portable id, in place: the lease and up to SERVE_NAMES texts. 0: it is none. */
size_t serve_id_split(char *id, int64_t *lease_ms, char *texts[SERVE_NAMES]);

#endif
