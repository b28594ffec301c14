/* libFuzzer on URLs, as text and in a file: parts in range, the same parts when they are written again with
 * escapes, and no message that repeats a login. A byte 0xff of the input becomes the SECRET: where that stands
 * before an @, it belongs to a login. */
#define _GNU_SOURCE
#include "core/url.h"
#include "fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#define SECRET "hunter2"
#define ROOM   (DIBS__URL_MAX + 600)

static void make_text(fuzz_input *in, char out[ROOM])
{
    size_t n = 0;

    for (; in->left && n < ROOM - sizeof SECRET; in->left--, in->at++) {
        if (*in->at == 0xff)
            n += (size_t)sprintf(out + n, "%s", SECRET);
        else if (*in->at)
            out[n++] = (char)*in->at;
    }
    out[n] = '\0';
}

/* Everywhere between the scheme and the last @, and nowhere else. */
static bool is_login(const char *text)
{
    const char *colon = strchr(text, ':'), *at = strrchr(text, '@'), *from = text;

    for (const char *s; (s = strstr(from, SECRET)); from = s + 1)
        if (!at || s > at || (colon && s < colon))
            return false;
    return from != text;
}

static void check_failure(const char *text, const dibs_error *err, dibs_status status)
{
    fuzz_check_message(err, status);
    must(!is_login(text) || !strstr(err->message, SECRET), "a message has the login");
}

/* ---- Written again --------------------------------------------------------------------------- */

static char *escape(char *to, const char *part)
{
    for (; *part; part++)
        to += sprintf(to, "%%%02X", (unsigned char)*part);
    return to;
}

/* Brackets keep a host together that has colons in it. */
static char *write_hosts(char *to, const dibs__url *u)
{
    for (size_t i = 0; i < u->host_count; i++) {
        to = stpcpy(to, i ? ",[" : "[");
        to = stpcpy(escape(to, u->host[i].name), "]");
        if (u->host[i].port)
            to += sprintf(to, ":%d", u->host[i].port);
    }
    return to;
}

static void write_url(const dibs__url *u, char *to)
{
    to = stpcpy(stpcpy(to, u->scheme), ":");
    if (u->authority) {
        to = stpcpy(to, "//");
        if (u->user) {
            to = escape(to, u->user);
            if (u->password)
                to = escape(stpcpy(to, ":"), u->password);
            to = stpcpy(to, "@");
        }
        to = write_hosts(to, u);
    }
    to = *u->path == '/' ? escape(stpcpy(to, "/"), u->path + 1) : escape(to, u->path);
    for (size_t i = 0; i < u->param_count; i++) {
        to = escape(stpcpy(to, i ? "&" : "?"), u->param[i].key);
        to = escape(stpcpy(to, "="), u->param[i].value);
    }
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static void check_round_trip(const dibs__url *u)
{
    static char text[8 * ROOM];
    dibs__url v;

    write_url(u, text);
    if (strlen(text) <= DIBS__URL_MAX) {
        must(dibs__url_parse(&v, text, NULL) == DIBS_OK, "not read when written again");
        must(same(u->user, v.user) && same(u->password, v.password) && same(u->path, v.path) &&
                 same(u->scheme, v.scheme) && u->host_count == v.host_count &&
                 u->param_count == v.param_count,
             "another URL when written again");
        for (size_t i = 0; i < u->host_count; i++)
            must(same(u->host[i].name, v.host[i].name) && u->host[i].port == v.host[i].port,
                 "another host when written again");
        for (size_t i = 0; i < u->param_count; i++)
            must(same(u->param[i].key, v.param[i].key) && same(u->param[i].value, v.param[i].value),
                 "another parameter when written again");
        dibs__url_fini(&v);
    }
}

/* ---- Parts ----------------------------------------------------------------------------------- */

static void check_parts(const dibs__url *u)
{
    must(u->scheme && *u->scheme, "no scheme");
    must(u->host_count <= DIBS__HOSTS_MAX && u->param_count <= DIBS__PARAMS_MAX, "too many parts");
    must(u->authority == (u->host_count > 0), "hosts without //, or the other way round");
    for (size_t i = 0; i < u->host_count; i++)
        must(u->host[i].port >= 0 && u->host[i].port <= 65535, "a port out of range");
}

static void check_logins(const dibs__url *u, const char *text)
{
    dibs__url_login login[DIBS__HOSTS_MAX];
    dibs_error err = {0};
    size_t count;
    char *room;
    dibs_status status = dibs__url_logins(u, login, &count, &room, &err);

    check_failure(text, &err, status);
    must(count <= DIBS__HOSTS_MAX, "too many logins");
    for (size_t i = 0; status == DIBS_OK && i < count; i++) {
        must(login[i].at.port >= 0 && login[i].at.port <= 65535, "a port out of range");
        must(strlen(login[i].at.name) <= strlen(text), "a host that is not in the text");
        must(!login[i].user || *login[i].user, "an empty user");
    }
    free(room);
}

static void check_params(dibs__url *u, const char *text)
{
    int64_t number = -7;
    dibs_error err = {0};
    dibs_status status = dibs__url_take_number(u, "n", -5, 1000, &number, &err);

    check_failure(text, &err, status);
    must(number >= (status == DIBS_OK && dibs__url_take(u, "n") ? -5 : -7) && number <= 1000,
         "a number out of range");
    err = (dibs_error){0};
    status = dibs__url_all_taken(u, "n", &err);
    check_failure(text, &err, status);
    must((status == DIBS_OK) == (u->param_count == (dibs__url_take(u, "n") != NULL)),
         "a parameter that nobody knows");
}

/* ---- In a file ------------------------------------------------------------------------------- */

static void check_file(const char *text)
{
    char path[64], *out;
    dibs_error err = {0};
    dibs_status status;
    int fd = memfd_create("url", 0);

    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "no file");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    status = dibs_url_read(path, &out, &err);
    fuzz_check_message(&err, status);
    must(!strstr(err.message, SECRET), "a message has what is in the file");
    must((status == DIBS_OK) == (out != NULL), "a text without success");
    must(!out || (strlen(out) <= DIBS__URL_MAX && !strpbrk(out, "\r\n") &&
                  strncmp(out, text, strlen(out)) == 0),
         "another text than the file's first line");
    dibs__url_forget(out);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[ROOM];
    fuzz_input in = {data, size};
    bool file = fuzz_number(&in, 1) == 'f';
    dibs_error err = {0};
    dibs__url url;
    dibs_status status;

    make_text(&in, text);
    if (file)
        check_file(text);
    status = dibs__url_parse(&url, text, &err);
    check_failure(text, &err, status);
    if (status == DIBS_OK) {
        check_parts(&url);
        check_round_trip(&url);
        check_logins(&url, text);
        check_params(&url, text);
    }
    dibs__url_fini(&url);
    return 0;
}
