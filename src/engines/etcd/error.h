/* What the end of a call means to the caller, and what to do about it. */
#ifndef DIBS_ETCD_ERROR_H
#define DIBS_ETCD_ERROR_H

#include "dibs.h"
#include "engines/etcd/h2.h"

/* `rpc` is not DIBS__RPC_OK. UNKNOWN where etcd may have done it. */
dibs_status dibs__etcd_refusal(int rpc, const char *text, dibs_error *err);

/* The token is too old or the member has forgotten it: surely not done, come again with a new one.
 */
bool dibs__etcd_token_is_over(int rpc, const char *text);

/* The member cannot serve now, another may. */
bool dibs__etcd_member_is_lost(int rpc, const char *text, bool *surely_not_done);

/* A key was put under a lease that the cluster does not have (any more). */
bool dibs__etcd_lease_is_gone(int rpc, const char *text);

#endif
