/* Where the server is, from the URL: its parts and its parameters are libpq's own, and ours beside
 * them. */
#define _GNU_SOURCE
#include "engines/postgresql/postgresql.h"

#include "core/error.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CONNECTIONS 4
#define DEFAULT_WAKE_DB     "postgres" /* every server has it, and mostly nobody works in it */

/* ---- Keywords -------------------------------------------------------------------------------- */

static dibs_status add(dibs__pg_address *p, const char *keyword, const char *value, dibs_error *err)
{
    char *text;

    if (p->count + 1 >= DIBS__PG_KEYWORDS)
        return dibs__fail(err, DIBS_INVALID, "postgresql: too many parameters in the URL");
    text = malloc(strlen(keyword) + strlen(value) + 2);
    if (!text)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    strcpy(text, keyword);
    strcpy(text + strlen(keyword) + 1, value);
    p->text[p->count] = text;
    p->keyword[p->count] = text;
    p->value[p->count++] = text + strlen(keyword) + 1;
    return DIBS_OK;
}

static const char *given(const dibs__pg_address *p, const char *keyword)
{
    for (size_t i = 0; i < p->count; i++)
        if (strcmp(p->keyword[i], keyword) == 0)
            return p->value[i];
    return NULL;
}

/* Those of libpq's that would make something else of the connection. */
static bool refused(const char *keyword)
{
    return strcmp(keyword, "replication") == 0 || strcmp(keyword, "client_encoding") == 0 ||
           strcmp(keyword, "fallback_application_name") == 0;
}

static dibs_status take_libpq_parameters(dibs__pg_address *p, dibs__url *url, dibs_error *err)
{
    PQconninfoOption *known = PQconndefaults();
    dibs_status status = DIBS_OK;

    if (!known)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    for (PQconninfoOption *o = known; o->keyword && status == DIBS_OK; o++) {
        const char *value = refused(o->keyword) ? NULL : dibs__url_take(url, o->keyword);
        if (!value)
            continue;
        if (given(p, o->keyword))
            status = dibs__fail(err, DIBS_INVALID,
                                "postgresql: '%s' is in the URL twice, before and after the '?'",
                                o->keyword);
        else
            status = add(p, o->keyword, value, err);
    }
    PQconninfoFree(known);
    return status;
}

/* ---- The parts of the URL -------------------------------------------------------------------- */

static dibs_status add_hosts(dibs__pg_address *p, const dibs__url *url, dibs_error *err)
{
    char hosts[DIBS__URL_MAX] = "", ports[DIBS__HOSTS_MAX * 8] = "";
    bool some_host = false, some_port = false;
    dibs_status status = DIBS_OK;

    for (size_t i = 0; i < url->host_count; i++) {
        size_t h = strlen(hosts), n = strlen(ports);
        snprintf(hosts + h, sizeof hosts - h, "%s%s", i ? "," : "", url->host[i].name);
        if (url->host[i].port)
            snprintf(ports + n, sizeof ports - n, "%s%d", i ? "," : "", url->host[i].port);
        else
            snprintf(ports + n, sizeof ports - n, "%s", i ? "," : "");
        some_host |= url->host[i].name[0] != '\0';
        some_port |= url->host[i].port != 0;
    }
    if (some_host)
        status = add(p, "host", hosts, err);
    if (status == DIBS_OK && some_port)
        status = add(p, "port", ports, err);
    return status;
}

static dibs_status add_parts(dibs__pg_address *p, const dibs__url *url, dibs_error *err)
{
    const char *database = url->path[0] == '/' ? url->path + 1 : url->path;
    dibs_status status = DIBS_OK;

    if (!url->authority)
        return dibs__fail(err, DIBS_INVALID,
                          "postgresql: write postgresql://user:password@host:5432/database");
    if (url->user && url->user[0])
        status = add(p, "user", url->user, err);
    if (status == DIBS_OK && url->password)
        status = add(p, "password", url->password, err);
    if (status == DIBS_OK && *database)
        status = add(p, "dbname", database, err);
    return status == DIBS_OK ? add_hosts(p, url, err) : status;
}

/* ---- Our own parameters ---------------------------------------------------------------------- */

static bool good_prefix(const char *prefix)
{
    const char *dot = strchr(prefix, '.');
    const char *table = dot ? dot + 1 : prefix;

    return strlen(prefix) <= DIBS__PG_PREFIX_MAX && strlen(table) <= 40 && dot != prefix &&
           *table && strspn(prefix, "abcdefghijklmnopqrstuvwxyz0123456789_.") == strlen(prefix) &&
           !strchr(table, '.') && !strchr("0123456789", prefix[0]) &&
           !strchr("0123456789", table[0]);
}

static dibs_status take_own_parameters(dibs__pg_address *p, dibs__url *url, dibs_error *err)
{
    const char *prefix = dibs__url_take(url, "table_prefix");
    const char *wake_db = dibs__url_take(url, "wake_db");

    p->connections = DEFAULT_CONNECTIONS;
    if (!prefix)
        prefix = "dibs_";
    if (!good_prefix(prefix))
        return dibs__fail(
            err, DIBS_INVALID,
            "parameter table_prefix=%.40s in the URL: give up to 40 of a-z, 0-9 and _, "
            "perhaps after 'schema.'",
            prefix);
    strcpy(p->prefix, prefix);
    if (wake_db && strlen(wake_db) >= sizeof p->wake_db)
        return dibs__fail(err, DIBS_INVALID,
                          "parameter wake_db in the URL: no database has so long a name");
    strcpy(p->wake_db, wake_db ? wake_db : DEFAULT_WAKE_DB);
    return dibs__url_take_number(url, "connections", 2, DIBS__SQL_CONNECTIONS, &p->connections,
                                 err);
}

/* ---- Names to be looked up ------------------------------------------------------------------- */

/* One of a list; "" is a host that is not given. */
static bool needs_no_lookup(const char *host)
{
    struct in6_addr any;

    return host[0] == '/' || host[0] == '@' || inet_pton(AF_INET, host, &any) == 1 ||
           inet_pton(AF_INET6, host, &any) == 1;
}

/* A host that is not given comes from libpq's defaults, its environment or a service file. */
static bool may_look_up(const dibs__pg_address *p)
{
    const char *hosts = given(p, "hostaddr");
    char one[DIBS__URL_MAX];

    if (!hosts)
        hosts = given(p, "host");
    while (hosts) {
        size_t n = strcspn(hosts, ",");
        if (n >= sizeof one)
            return true;
        memcpy(one, hosts, n);
        one[n] = '\0';
        if (!needs_no_lookup(one))
            return true;
        if (!hosts[n])
            return false;
        hosts += n + 1;
    }
    return true;
}

static void write_label(dibs__pg_address *p)
{
    const char *host = given(p, "host"), *port = given(p, "port"), *name = given(p, "dbname");

    snprintf(p->label, sizeof p->label, "%.100s%s%.20s/%.60s", host ? host : "localhost",
             port ? ":" : "", port ? port : "", name ? name : "");
}

dibs_status dibs__pg_address_read(dibs__pg_address *p, dibs__url *url, dibs_error *err)
{
    dibs_status status;

    memset(p, 0, sizeof *p);
    status = add_parts(p, url, err);
    if (status == DIBS_OK)
        status = take_libpq_parameters(p, url, err);
    /* Of several servers the one that takes writes is meant. */
    if (status == DIBS_OK && url->host_count > 1 && !given(p, "target_session_attrs"))
        status = add(p, "target_session_attrs", "read-write", err);
    if (status == DIBS_OK)
        status = take_own_parameters(p, url, err);
    if (status == DIBS_OK)
        status = dibs__url_all_taken(url,
                                     "table_prefix, connections, wake_db, and libpq's own "
                                     "(sslmode, host, application_name, …)",
                                     err);
    if (status == DIBS_OK)
        status = add(p, "fallback_application_name", "dibs", err);
    p->detached = may_look_up(p);
    write_label(p);
    return status;
}

/* `database` NULL: the same. */
static bool copy(dibs__pg_address *to, const dibs__pg_address *from, const char *database)
{
    bool good = true;

    memset(to, 0, sizeof *to);
    for (size_t i = 0; i < from->count && good; i++)
        if (!database || strcmp(from->keyword[i], "dbname") != 0)
            good = add(to, from->keyword[i], from->value[i], NULL) == DIBS_OK;
    if (good && database)
        good = add(to, "dbname", database, NULL) == DIBS_OK;
    if (!good)
        dibs__pg_address_fini(to);
    return good;
}

bool dibs__pg_address_copy(dibs__pg_address *to, const dibs__pg_address *from)
{
    return copy(to, from, NULL);
}

bool dibs__pg_address_elsewhere(dibs__pg_address *to, const dibs__pg_address *from,
                                const char *database)
{
    return copy(to, from, database);
}

void dibs__pg_address_fini(dibs__pg_address *p)
{
    for (size_t i = 0; i < p->count; i++) {
        explicit_bzero((char *)p->text[i], strlen(p->keyword[i]) + strlen(p->value[i]) + 1);
        free(p->text[i]);
    }
    p->count = 0;
}
