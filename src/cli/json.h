/* Reports as JSON. A text that is valid UTF-8 is given as it is. One that is not is given with each
 * such byte as \xNN, and beside it `KEY_hex` has the exact bytes in hexadecimal: the output is
 * always valid JSON, and whoever needs the bytes has them. Out of memory ends the command. */
#ifndef DIBS_CLI_JSON_H
#define DIBS_CLI_JSON_H

#include "dibs.h"

#include <jansson.h>

json_t *cli_json_new(void);
void cli_json_put(json_t *object, const char *key, json_t *value);      /* takes the value */
void cli_json_text(json_t *object, const char *key, const char *bytes); /* NULL: null */
void cli_json_integer(json_t *object, const char *key, int64_t value);

/* Any bytes, of any length: as text when they are UTF-8, else null and `KEY_hex`. NULL: null. */
void cli_json_bytes(json_t *object, const char *key, const void *bytes, size_t size);

json_t *cli_json_runner(const dibs_party *p); /* of dibs_once_runner */

json_t *cli_json_party(const dibs_party *p, bool holder);

/* `waiters`: with everybody in the queue, which only dibs_lock_inspect tells. */
json_t *cli_json_lock(const dibs_lock_info *lock, bool waiters);
json_t *cli_json_list(const dibs_lock_report *report); /* {"locks": […]} */

/* A key of once; `whole`: with its steps and its result, which only dibs_once_inspect tells. */
json_t *cli_json_key(const dibs_once_info *i, bool whole);

/* Prints one document and a newline, and drops it; `indent` 0: on one line. Returns an exit code.
 */
int cli_json_print(json_t *document, int indent);

#endif
