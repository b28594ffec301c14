/* Where the server is, from the URL:
 *
 *     mysql://user:password@host:3306/database?ssl_mode=verify_identity&ssl_ca=/path/ca.pem
 *     mysql://user:password@/database?socket=/run/mysqld/mysqld.sock
 *
 * TLS is used when it is asked for, and then there is no way back to plain text: the library is
 * told to enforce it, and the session is looked at once more when it stands. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/mysql/mysql.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KNOWN "socket, ssl_mode, ssl_ca, ssl_capath, ssl_cert, ssl_key, table_prefix"

static dibs_status copy(char **to, const char *from, dibs_error *err)
{
    if (!from)
        return DIBS_OK;
    *to = strdup(from);
    return *to ? DIBS_OK : dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
}

static dibs_status read_file_name(char **to, dibs__url *url, const char *key, dibs_error *err)
{
    const char *path = dibs__url_take(url, key);

    if (path && access(path, R_OK) < 0)
        return dibs__fail(err, DIBS_INVALID, "mysql: cannot read the file %s=%.300s", key, path);
    return copy(to, path, err);
}

static dibs_status read_mode(dibs__my_address *address, const char *mode, dibs_error *err)
{
    bool trusts = address->ca || address->ca_path;

    address->verify = trusts;
    address->tls = trusts || address->cert || address->key;
    if (!mode)
        return DIBS_OK;
    if (strcmp(mode, "disabled") == 0) {
        if (address->tls)
            return dibs__fail(
                err, DIBS_INVALID,
                "mysql: ssl_mode=disabled cannot be combined with certificates: remove one");
        return DIBS_OK;
    }
    address->tls = true;
    if (strcmp(mode, "required") == 0) {
        address->verify = false;
        return DIBS_OK;
    }
    if (strcmp(mode, "verify_ca") == 0) { /* the library checks what there is an authority for */
        address->verify = false;
        return trusts ? DIBS_OK
                      : dibs__fail(err, DIBS_INVALID,
                                   "mysql: ssl_mode=verify_ca needs a CA certificate in ssl_ca");
    }
    address->verify = true;
    if (strcmp(mode, "verify_identity") == 0)
        return DIBS_OK;
    return dibs__fail(
        err, DIBS_INVALID,
        "mysql: ssl_mode=%.100s: use disabled, required, verify_ca or verify_identity", mode);
}

static dibs_status read_tls(dibs__my_address *address, dibs__url *url, dibs_error *err)
{
    const char *mode = dibs__url_take(url, "ssl_mode");
    dibs_status status = read_file_name(&address->ca, url, "ssl_ca", err);

    if (status == DIBS_OK)
        status = read_file_name(&address->ca_path, url, "ssl_capath", err);
    if (status == DIBS_OK)
        status = read_file_name(&address->cert, url, "ssl_cert", err);
    if (status == DIBS_OK)
        status = read_file_name(&address->key, url, "ssl_key", err);
    return status == DIBS_OK ? read_mode(address, mode, err) : status;
}

static dibs_status read_prefix(dibs__my_address *address, dibs__url *url, dibs_error *err)
{
    const char *prefix = dibs__url_take(url, "table_prefix");

    if (!prefix)
        prefix = "dibs_";
    if (strlen(prefix) > DIBS__MY_PREFIX_MAX ||
        prefix[strspn(prefix, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")])
        return dibs__fail(
            err, DIBS_INVALID,
            "mysql: table_prefix=%.100s: use at most %d letters, digits and underscores", prefix,
            DIBS__MY_PREFIX_MAX);
    strcpy(address->prefix, prefix);
    return DIBS_OK;
}

static dibs_status read_server(dibs__my_address *address, dibs__url *url, dibs_error *err)
{
    const char *database = url->path[0] == '/' ? url->path + 1 : url->path;
    const char *host = url->host_count ? url->host[0].name : "";
    dibs_status status;

    if (url->host_count > 1)
        return dibs__fail(err, DIBS_INVALID,
                          "mysql: give one host: the primary, or a name that resolves to it");
    if (!url->authority || !database[0] || strchr(database, '/'))
        return dibs__fail(
            err, DIBS_INVALID,
            "mysql: the URL needs a database: mysql://user:password@host:3306/database");
    status = copy(&address->socket, dibs__url_take(url, "socket"), err);
    if (status == DIBS_OK)
        status = copy(&address->host, host[0] ? host : "localhost", err);
    if (status == DIBS_OK)
        status = copy(&address->user, url->user, err);
    if (status == DIBS_OK)
        status = copy(&address->password, url->password, err);
    if (status == DIBS_OK)
        status = copy(&address->database, database, err);
    address->port = url->host_count && url->host[0].port ? (unsigned)url->host[0].port : 3306;
    return status;
}

static bool is_address(const char *host)
{
    struct in6_addr any;

    return inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1;
}

static void write_label(dibs__my_address *address)
{
    if (address->socket)
        snprintf(address->label, sizeof address->label, "%.100s/%.50s", address->socket,
                 address->database);
    else
        snprintf(address->label, sizeof address->label, "%.80s:%u/%.50s", address->host,
                 address->port, address->database);
}

dibs_status dibs__my_address_read(dibs__my_address *address, dibs__url *url, dibs_error *err)
{
    dibs_status status = read_server(address, url, err);

    if (status == DIBS_OK)
        status = read_tls(address, url, err);
    if (status == DIBS_OK)
        status = read_prefix(address, url, err);
    if (status == DIBS_OK)
        status = dibs__url_all_taken(url, KNOWN, err);
    if (status == DIBS_OK) {
        address->detached = address->tls || (!address->socket && !is_address(address->host));
        write_label(address);
    }
    return status;
}

bool dibs__my_address_copy(dibs__my_address *to, const dibs__my_address *from)
{
    memset(to, 0, sizeof *to);
    to->port = from->port;
    if (copy(&to->host, from->host, NULL) == DIBS_OK &&
        copy(&to->user, from->user, NULL) == DIBS_OK &&
        copy(&to->password, from->password, NULL) == DIBS_OK &&
        copy(&to->database, from->database, NULL) == DIBS_OK &&
        copy(&to->socket, from->socket, NULL) == DIBS_OK)
        return true;
    dibs__my_address_fini(to);
    return false;
}

void dibs__my_address_fini(dibs__my_address *address)
{
    if (address->password)
        explicit_bzero(address->password, strlen(address->password));
    free(address->host);
    free(address->user);
    free(address->password);
    free(address->database);
    free(address->socket);
    free(address->ca);
    free(address->ca_path);
    free(address->cert);
    free(address->key);
    memset(address, 0, sizeof *address);
}
