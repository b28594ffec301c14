/* Certificates for tests of TLS, made with openssl(1), in a scratch folder: NAME.crt and NAME.key of
 *
 *   ca         the authority
 *   stranger   another one, which signed nothing here
 *   good       a server's, for localhost and 127.0.0.1
 *   elsewhere  a server's, for elsewhere.example
 *   expired    a server's, for localhost and 127.0.0.1, until yesterday
 *   app        a client's, with that name
 *   foreign    a client's with the same name, signed by the stranger */
#ifndef DIBS_TESTS_PAPERS_H
#define DIBS_TESTS_PAPERS_H

#include "support/scratch.h"

typedef struct papers {
    scratch folder;
} papers;

/* Files belong to `account` if there is one of that name and we are root. Skips the case where there
 * is no openssl, fails it where there must be. */
void papers_need(papers *p, const char *account);

/* The path of one, e.g. "good.crt"; of the last 8 calls. */
const char *papers_file(const papers *p, const char *name);

/* Puts the certificate and key `from` in the place of `to`. */
void papers_copy(const papers *p, const char *from, const char *to);

/* `head`, then `tail` with the folder for each '%' in it; until the next call. */
const char *papers_url(const papers *p, const char *head, const char *tail);

void papers_drop(papers *p); /* harmless on a zeroed struct */

#endif
