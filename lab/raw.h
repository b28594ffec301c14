/* The engines' own client libraries, with just enough around them that a scheme reads like the text
 * that it comes from. Nothing here locks, retries or waits by itself. */
#ifndef DIBS_LAB_RAW_H
#define DIBS_LAB_RAW_H

#include "dibs_sql.h"
#include "lab.h"

/* ---- URLs ------------------------------------------------------------------------------------ */

#define LAB_CONNECT_S 5 /* a server that does not answer is told, not waited for */

typedef struct lab_url {
    char user[256], password[256], host[512], path[256]; /* empty: not given; decoded */
    int port;
} lab_url;

/* `port`: the default. False: buyer->note says what is wrong. */
bool lab_url_read(lab_buyer *buyer, const char *scheme, const char *url, int port, lab_url *out);

/* ---- Redis ----------------------------------------------------------------------------------- */

struct redisContext;
struct redisReply;

/* NULL: buyer->note says why. `url` is redis://[user:password@]host[:port][/db]. */
struct redisContext *lab_redis_open(lab_buyer *buyer, const char *url);

/* One command, words separated by spaces, %s for a word, %b for bytes with their size: as hiredis.
 * INT64_MIN: failed (note). Nil is -1, a status is 1, text is its number. */
int64_t lab_redis(lab_buyer *buyer, struct redisContext *r, const char *format, ...);
/* The reply itself, to be freed; NULL: failed (note). */
struct redisReply *lab_redis_reply(lab_buyer *buyer, struct redisContext *r, const char *format,
                                   ...);

/* What most Redis schemes keep: buyer->own points at one of these. */
typedef struct lab_holder {
    struct redisContext *redis;
    char id[64]; /* who: unique to this buyer */
    int64_t lease_ms;
    void *more; /* the scheme's */
} lab_holder;

bool lab_holder_open(lab_buyer *buyer); /* `lease_ms` is the pace's, else 30,000 */
void lab_holder_close(lab_buyer *buyer);

static inline lab_holder *lab_holder_of(lab_buyer *buyer)
{
    return buyer->own;
}

/* Asks until it is ours (1), with a pause between two tries, as long as the buyer has patience. -1 from
 * `ask`: failed. */
bool lab_spin(lab_buyer *buyer, int64_t pause_us, int (*ask)(lab_buyer *buyer));

#define LAB_PAUSE_US (50 * 1000) /* as most texts have it */

/* ---- SQL: MariaDB, PostgreSQL and SQLite through one pair of calls --------------------------- */

typedef struct lab_sql lab_sql;

typedef enum lab_sql_trouble {
    LAB_SQL_FINE,
    LAB_SQL_DUPLICATE, /* a unique key is taken */
    LAB_SQL_DEADLOCK,
    LAB_SQL_TIMEOUT, /* waited for a lock too long */
    LAB_SQL_OTHER,
} lab_sql_trouble;

lab_sql *lab_sql_open(lab_buyer *buyer, lab_server server); /* NULL: note */
void lab_sql_close(lab_sql *sql);

/* One statement, printf's formats (the texts are ours: nothing a user typed). Returns the rows that it
 * changed, or -1: buyer->note, lab_sql_trouble_of. */
int64_t lab_sql_run(lab_buyer *buyer, lab_sql *sql, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Up to `count` numbers of the first row. 1, 0: no row, -1: failed. */
int lab_sql_read(lab_buyer *buyer, lab_sql *sql, int64_t *out, int count, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* All of the answer as text, columns separated by tabs: for reports. To be freed; NULL: note. */
char *lab_sql_text(lab_buyer *buyer, lab_sql *sql, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
dibs_sql lab_sql_handle(const lab_sql *sql); /* for dibs_sql.h, in the same transaction */
lab_sql_trouble lab_sql_trouble_of(const lab_sql *sql);

#endif
