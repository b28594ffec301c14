/* Every public call that takes a dibs_error, in one list: what it leaves there is decided in one place.
 *
 * dibs_NAME is defined by DIBS__CALL_DEFINE alone, and is dibs__do_NAME between dibs__error_clear and
 * dibs__error_settle. After it err->status is what the call returned; the message is empty after
 * DIBS_OK, and says something after anything else. The second column is what to do after DIBS_UNKNOWN. */
#ifndef DIBS_CORE_CALLS_H
#define DIBS_CORE_CALLS_H

#include "dibs.h"

#define DIBS__CALL_DECLARE(name, unknown, parameters, arguments) \
    dibs_status dibs__do_##name parameters;

#define DIBS__CALL_DEFINE(name, unknown, parameters, arguments)                         \
    dibs_status dibs_##name parameters                                                  \
    {                                                                                   \
        dibs__error_clear(err);                                                         \
        return dibs__error_settle(err, dibs__do_##name arguments, DIBS_NEXT_##unknown); \
    }

#define DIBS__CALLS(X)                                                                             \
    X(open, REPEAT, (const char *url, const dibs_options *options, dibs **out, dibs_error *err),   \
      (url, options, out, err))                                                                    \
    X(url_read, REPEAT, (const char *path, char **out, dibs_error *err), (path, out, err))         \
    X(schema, REPEAT, (const char *url, char **out, dibs_error *err), (url, out, err))             \
    X(lock, REPEAT,                                                                                \
      (dibs * d, const char *name, const dibs_lock_options *options, dibs_grant **out,             \
       dibs_error *err),                                                                           \
      (d, name, options, out, err))                                                                \
    X(lock_many, REPEAT,                                                                           \
      (dibs * d, const char *const names[], size_t count, const dibs_lock_options *options,        \
       dibs_grant *out[], dibs_error *err),                                                        \
      (d, names, count, options, out, err))                                                        \
    X(unlock, NONE, (dibs_grant * *g, dibs_error * err), (g, err))                                 \
    X(renew, REPEAT, (dibs_grant * g, dibs_error * err), (g, err))                                 \
    X(grant_export, REPEAT, (const dibs_grant *g, char out[DIBS_GRANT_SIZE], dibs_error *err),     \
      (g, out, err))                                                                               \
    X(grant_adopt, REPEAT,                                                                         \
      (dibs * d, const char *text, const dibs_lock_options *options, dibs_grant **out,             \
       dibs_error *err),                                                                           \
      (d, text, options, out, err))                                                                \
    X(grant_detach, NONE, (dibs_grant * *g, dibs_error * err), (g, err))                           \
    X(start, REPEAT, (dibs * d, const dibs_request *r, uint64_t *id, dibs_error *err),             \
      (d, r, id, err))                                                                             \
    X(cell_read, REPEAT, (dibs * d, const char *name, dibs_value *out, dibs_error *err),           \
      (d, name, out, err))                                                                         \
    X(cell_swap, RESTART,                                                                          \
      (dibs * d, const char *name, uint64_t version, const void *data, size_t size,                \
       const dibs_cell_options *options, dibs_value *now, dibs_error *err),                        \
      (d, name, version, data, size, options, now, err))                                           \
    X(cell_delete, RESTART,                                                                        \
      (dibs * d, const char *name, uint64_t version, const dibs_cell_options *options,             \
       dibs_error *err),                                                                           \
      (d, name, version, options, err))                                                            \
    X(cell_pass, REPEAT,                                                                           \
      (dibs * d, const char *name, const dibs_cell_options *options, dibs_value *out,              \
       dibs_error *err),                                                                           \
      (d, name, options, out, err))                                                                \
    X(counter_get, REPEAT, (dibs * d, const char *name, int64_t *value, dibs_error *err),          \
      (d, name, value, err))                                                                       \
    X(counter_set, INSPECT,                                                                        \
      (dibs * d, const char *name, int64_t value, const dibs_counter_options *options,             \
       dibs_error *err),                                                                           \
      (d, name, value, options, err))                                                              \
    X(counter_add, INSPECT,                                                                        \
      (dibs * d, const char *name, int64_t n, const dibs_counter_options *options, int64_t *value, \
       dibs_error *err),                                                                           \
      (d, name, n, options, value, err))                                                           \
    X(counter_take, INSPECT,                                                                       \
      (dibs * d, const char *name, int64_t n, const dibs_counter_options *options, int64_t *value, \
       dibs_error *err),                                                                           \
      (d, name, n, options, value, err))                                                           \
    X(once_begin, REPEAT,                                                                          \
      (dibs * d, const char *key, const dibs_once_options *options, dibs_once **out,               \
       dibs_error *err),                                                                           \
      (d, key, options, out, err))                                                                 \
    X(once_wait, REPEAT, (dibs_once * o, int64_t wait_ms, dibs_error * err), (o, wait_ms, err))    \
    X(once_step, REPEAT,                                                                           \
      (dibs_once * o, const char *step, const void *data, size_t size, dibs_error *err),           \
      (o, step, data, size, err))                                                                  \
    X(once_finish, REPEAT,                                                                         \
      (dibs_once * o, const void *result, size_t size, int code, dibs_error *err),                 \
      (o, result, size, code, err))                                                                \
    X(once_rerun, REPEAT, (dibs_once * o, dibs_error * err), (o, err))                             \
    X(once_fail, REPEAT,                                                                           \
      (dibs_once * o, const void *result, size_t size, int code, dibs_error *err),                 \
      (o, result, size, code, err))                                                                \
    X(once_undo, REPEAT, (dibs_once * o, dibs_error * err), (o, err))                              \
    X(once_abandon, REPEAT, (dibs_once * o, dibs_error * err), (o, err))                           \
    X(once_list, REPEAT,                                                                           \
      (dibs * d, const char *prefix, const dibs_once_list_options *options,                        \
       dibs_once_report **out, dibs_error *err),                                                   \
      (d, prefix, options, out, err))                                                              \
    X(once_inspect, REPEAT,                                                                        \
      (dibs * d, const char *key, const dibs_once_inspect_options *options,                        \
       dibs_once_report **out, dibs_error *err),                                                   \
      (d, key, options, out, err))                                                                 \
    X(once_forget, INSPECT,                                                                        \
      (dibs * d, const char *key, const dibs_once_forget_options *options, dibs_error *err),       \
      (d, key, options, err))                                                                      \
    X(once_resolve, INSPECT,                                                                       \
      (dibs * d, const char *key, const dibs_once_resolve_options *options, dibs_error *err),      \
      (d, key, options, err))                                                                      \
    X(token_issue, REPEAT,                                                                         \
      (dibs * d, const dibs_token_options *options, char out[DIBS_TOKEN_SIZE], dibs_error *err),   \
      (d, options, out, err))                                                                      \
    X(token_redeem, INSPECT,                                                                       \
      (dibs * d, const char *token, const dibs_token_options *options, dibs_error *err),           \
      (d, token, options, err))                                                                    \
    X(token_reissue, REPEAT,                                                                       \
      (dibs * d, const char *token, const dibs_token_options *options, char out[DIBS_TOKEN_SIZE],  \
       dibs_error *err),                                                                           \
      (d, token, options, out, err))                                                               \
    X(lock_inspect, REPEAT, (dibs * d, const char *name, dibs_lock_report **out, dibs_error *err), \
      (d, name, out, err))                                                                         \
    X(lock_list, REPEAT,                                                                           \
      (dibs * d, const char *prefix, const dibs_lock_list_options *options,                        \
       dibs_lock_report **out, dibs_error *err),                                                   \
      (d, prefix, options, out, err))                                                              \
    X(fence_top, REPEAT, (dibs * d, uint64_t * out, dibs_error * err), (d, out, err))              \
    X(fence_check, REPEAT,                                                                         \
      (const char *kept, const char *shown, char out[DIBS_FENCE_SIZE], dibs_error *err),           \
      (kept, shown, out, err))                                                                     \
    X(fence_file, REPEAT,                                                                          \
      (const char *path, const char *shown, int64_t wait_ms, int *fd, dibs_error *err),            \
      (path, shown, wait_ms, fd, err))                                                             \
    X(examine, REPEAT,                                                                             \
      (const char *url, const dibs_options *options, dibs_findings **out, dibs_error *err),        \
      (url, options, out, err))                                                                    \
    X(lock_break, REPEAT,                                                                          \
      (dibs * d, const char *name, const dibs_lock_break_options *options, dibs_error *err),       \
      (d, name, options, err))

DIBS__CALLS(DIBS__CALL_DECLARE)

#endif
