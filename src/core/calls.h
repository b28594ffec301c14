/* Every public call that takes a dibs_error, in one list: what it leaves there is decided in one place.
 *
 * dibs_NAME is defined by DIBS__CALL_DEFINE alone, and is dibs__do_NAME between dibs__error_clear and
 * dibs__error_settle. After it err->status is what the call returned; the message is empty after
 * DIBS_OK, and says something after anything else. */
#ifndef DIBS_CORE_CALLS_H
#define DIBS_CORE_CALLS_H

#include "dibs.h"

#define DIBS__CALL_DECLARE(name, parameters, arguments) dibs_status dibs__do_##name parameters;

#define DIBS__CALL_DEFINE(name, parameters, arguments)             \
    dibs_status dibs_##name parameters                             \
    {                                                              \
        dibs__error_clear(err);                                    \
        return dibs__error_settle(err, dibs__do_##name arguments); \
    }

#define DIBS__CALLS(X)                                                                             \
    X(open, (const char *url, const dibs_options *options, dibs **out, dibs_error *err),           \
      (url, options, out, err))                                                                    \
    X(url_read, (const char *path, char **out, dibs_error *err), (path, out, err))                 \
    X(schema, (const char *url, char **out, dibs_error *err), (url, out, err))                     \
    X(lock,                                                                                        \
      (dibs * d, const char *name, const dibs_lock_options *options, dibs_grant **out,             \
       dibs_error *err),                                                                           \
      (d, name, options, out, err))                                                                \
    X(lock_many,                                                                                   \
      (dibs * d, const char *const names[], size_t count, const dibs_lock_options *options,        \
       dibs_grant *out[], dibs_error *err),                                                        \
      (d, names, count, options, out, err))                                                        \
    X(renew, (dibs_grant * g, dibs_error * err), (g, err))                                         \
    X(lock_start,                                                                                  \
      (dibs * d, const char *name, const dibs_lock_options *options, dibs_ticket_fn done,          \
       void *data, dibs_ticket **out, dibs_error *err),                                            \
      (d, name, options, done, data, out, err))                                                    \
    X(cell_read, (dibs * d, const char *name, dibs_value *out, dibs_error *err),                   \
      (d, name, out, err))                                                                         \
    X(cell_swap,                                                                                   \
      (dibs * d, const char *name, uint64_t version, const void *data, size_t size,                \
       const dibs_cell_options *options, dibs_value *now, dibs_error *err),                        \
      (d, name, version, data, size, options, now, err))                                           \
    X(cell_delete,                                                                                 \
      (dibs * d, const char *name, uint64_t version, const dibs_cell_options *options,             \
       dibs_error *err),                                                                           \
      (d, name, version, options, err))                                                            \
    X(fence_pass,                                                                                  \
      (dibs * d, const char *cell, uint64_t fence, uint64_t floor, dibs_value *out,                \
       dibs_error *err),                                                                           \
      (d, cell, fence, floor, out, err))                                                           \
    X(counter_get, (dibs * d, const char *name, int64_t *value, dibs_error *err),                  \
      (d, name, value, err))                                                                       \
    X(counter_set,                                                                                 \
      (dibs * d, const char *name, int64_t value, const dibs_counter_options *options,             \
       dibs_error *err),                                                                           \
      (d, name, value, options, err))                                                              \
    X(counter_add,                                                                                 \
      (dibs * d, const char *name, int64_t n, const dibs_counter_options *options, int64_t *value, \
       dibs_error *err),                                                                           \
      (d, name, n, options, value, err))                                                           \
    X(counter_take,                                                                                \
      (dibs * d, const char *name, int64_t n, const dibs_counter_options *options, int64_t *value, \
       dibs_error *err),                                                                           \
      (d, name, n, options, value, err))                                                           \
    X(once_begin,                                                                                  \
      (dibs * d, const char *key, const dibs_once_options *options, dibs_once **out,               \
       dibs_error *err),                                                                           \
      (d, key, options, out, err))                                                                 \
    X(once_wait, (dibs_once * o, int64_t wait_ms, dibs_error * err), (o, wait_ms, err))            \
    X(once_step,                                                                                   \
      (dibs_once * o, const char *step, const void *data, size_t size, dibs_error *err),           \
      (o, step, data, size, err))                                                                  \
    X(once_finish, (dibs_once * o, const void *result, size_t size, int code, dibs_error *err),    \
      (o, result, size, code, err))                                                                \
    X(once_fail,                                                                                   \
      (dibs_once * o, bool final, const void *result, size_t size, int code, dibs_error *err),     \
      (o, final, result, size, code, err))                                                         \
    X(once_abandon, (dibs_once * o, dibs_error * err), (o, err))                                   \
    X(token_issue,                                                                                 \
      (dibs * d, const dibs_token_options *options, char out[DIBS_TOKEN_SIZE], dibs_error *err),   \
      (d, options, out, err))                                                                      \
    X(token_redeem, (dibs * d, const char *scope, const char *token, dibs_error *err),             \
      (d, scope, token, err))                                                                      \
    X(token_reissue,                                                                               \
      (dibs * d, const dibs_token_options *options, const char *token, char out[DIBS_TOKEN_SIZE],  \
       dibs_error *err),                                                                           \
      (d, options, token, out, err))                                                               \
    X(inspect, (dibs * d, const char *name, dibs_report **out, dibs_error *err),                   \
      (d, name, out, err))                                                                         \
    X(list, (dibs * d, const char *prefix, bool idle, dibs_report **out, dibs_error *err),         \
      (d, prefix, idle, out, err))                                                                 \
    X(fence_top, (dibs * d, uint64_t * out, dibs_error * err), (d, out, err))                      \
    X(examine,                                                                                     \
      (const char *url, const dibs_options *options, dibs_findings **out, dibs_error *err),        \
      (url, options, out, err))                                                                    \
    X(break,                                                                                       \
      (dibs * d, const char *name, const char *by, bool now, int64_t wait_ms, dibs_error *err),    \
      (d, name, by, now, wait_ms, err))

DIBS__CALLS(DIBS__CALL_DECLARE)

#endif
