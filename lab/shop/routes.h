/* What the shop answers:
 *
 *   GET /                 the form, the switches and the log
 *   POST /buy             the form: 303 to the order, or why not (403, 409, 422, 503)
 *   GET /orders/N         an order
 *   GET /live             the stock and the log, as HTML; pages ask for it twice a second
 *   POST /guards          the switches
 *   POST /order           one piece, no guard, for load generators: 200 sold, 409 sold out, 503 failed (and why)
 *   GET /stock            what was sold and what the books say, as JSON
 *   POST /reset?stock=N   the shelf filled again
 *
 * A browser gets pages, any other client one line of text. */
#ifndef DIBS_LAB_SHOP_ROUTES_H
#define DIBS_LAB_SHOP_ROUTES_H

#include "form.h"
#include "pages.h"

/* A request that has come in whole. */
typedef struct lab_call {
    const lab_premises *at;
    struct MHD_Connection *connection;
    const lab_input *input;
    const char *path;
} lab_call;

typedef struct lab_answer {
    unsigned status;
    const char *type;
    const char *allow; /* of a 405 */
    char location[40]; /* of a 303 */
    bool replayed;
    char *body; /* malloc'ed; NULL: no memory for it */
} lab_answer;

extern const char lab_plain[], lab_html[]; /* types */

const char *lab_header(const lab_call *c, const char *name); /* NULL: there is none */
/* One line of text. */
lab_answer lab_say(unsigned status, const char *format, ...) __attribute__((format(printf, 2, 3)));
lab_answer lab_route(const lab_call *c, const char *method);

#endif
