/* An engine's URL, taken apart:
 * scheme:[//[user[:password]@]host[:port][,host[:port]…]][/path][?k=v&…] Every part is
 * percent-decoded. Parameters are taken one by one by the engine that knows them; what is left over
 * is an error, so that a misspelt parameter is never ignored. */
#ifndef DIBS_CORE_URL_H
#define DIBS_CORE_URL_H

#include "dibs.h"

#define DIBS__URL_MAX    4096
#define DIBS__HOSTS_MAX  16
#define DIBS__PARAMS_MAX 32

typedef struct dibs__url_host {
    const char *name; /* without the brackets of an IPv6 address; may be "" */
    int port;         /* 0: none given */
} dibs__url_host;

typedef struct dibs__url {
    char *scheme;
    char *user;     /* NULL: none given */
    char *password; /* NULL: none given */
    bool authority; /* there was a "//" */
    dibs__url_host host[DIBS__HOSTS_MAX];
    size_t host_count;
    char *path; /* with its leading slash, if it had one; "" if none */
    struct {
        char *key, *value;
        bool taken;
    } param[DIBS__PARAMS_MAX];
    size_t param_count;
    char *logins; /* hosts as they were written, with what stands before each @; NULL: none */
    char *text;   /* owns all of the above but that */
    size_t size;
} dibs__url;

/* `text` is copied. Errors never repeat a password. A failed parse leaves something that fini
 * accepts. */
dibs_status dibs__url_parse(dibs__url *url, const char *text, dibs_error *err);
void dibs__url_fini(dibs__url *url);

/* The URL that is meant when none is given; freed with dibs__url_forget, which NULL does not harm. */
dibs_status dibs__url_default(char **out, dibs_error *err);
void dibs__url_forget(char *text);

/* A host with a login of its own, for engines whose servers each have one:
 * [[user]:password@]host[:port]. */
typedef struct dibs__url_login {
    dibs__url_host at;
    const char *user, *password; /* NULL: none */
} dibs__url_login;

/* Reads the list of hosts so: a login counts for its own host and for those that follow, until
 * another comes ("@host" has none). `*room` owns the strings: free() it, also after a failure. */
dibs_status dibs__url_logins(const dibs__url *url, dibs__url_login out[DIBS__HOSTS_MAX],
                             size_t *count, char **room, dibs_error *err);

/* For url_logins.c: in place. `open`: errors may repeat the text. */
bool dibs__url_decode(char *text);
dibs_status dibs__url_parse_host(dibs__url_host *host, char *text, bool open, dibs_error *err);

/* The parameter's value, or NULL; marks it as known. */
const char *dibs__url_take(dibs__url *url, const char *key);

/* DIBS_INVALID when the value is no whole number in [low, high]; `out` is left alone when absent.
 */
dibs_status dibs__url_take_number(dibs__url *url, const char *key, int64_t low, int64_t high,
                                  int64_t *out, dibs_error *err);

/* DIBS_INVALID, naming the first parameter that nobody took and the ones that there are. */
dibs_status dibs__url_all_taken(const dibs__url *url, const char *known, dibs_error *err);

#endif
