/* Certificates for tests of TLS, made with openssl(1), in a scratch folder: NAME.crt and NAME.key of
 *
 *   ca         the authority
 *   stranger   another one, which signed nothing here
 *   good       a server's, for localhost and 127.0.0.1
 *   elsewhere  a server's, for elsewhere.example
 *   expired    a server's, for localhost and 127.0.0.1, until yesterday
 *   app        a client's, with that name
 *   foreign    a client's with the same name, signed by the stranger */
#ifndef DIBS_TESTS_TLS_FILES_H
#define DIBS_TESTS_TLS_FILES_H

#include "support/scratch.h"

typedef struct tls_files {
    scratch folder;
} tls_files;

/* Files belong to `account` if there is one of that name and we are root. Skips the case where there
 * is no openssl, fails it where there must be. */
void tls_files_need(tls_files *p, const char *account);

/* The path of one, e.g. "good.crt"; of the last 8 calls. */
const char *tls_files_file(const tls_files *p, const char *name);

/* Puts the certificate and key `from` in the place of `to`. */
void tls_files_copy(const tls_files *p, const char *from, const char *to);

/* `head`, then `tail` with the folder for each '%' in it; until the next call. */
const char *tls_files_url(const tls_files *p, const char *head, const char *tail);

void tls_files_drop(tls_files *p); /* harmless on a zeroed struct */

#endif
