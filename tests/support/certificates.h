/* Certificates for tests of TLS, made with openssl(1) in a folder:
 *
 *     ca.crt     an authority            ca2.crt    another one
 *     good.crt   for 127.0.0.1 and localhost, by ca, with good.key
 *     old.crt    the same, expired       other.crt  the same, for another host */
#ifndef DIBS_TESTS_CERTIFICATES_H
#define DIBS_TESTS_CERTIFICATES_H

#include "support/scratch.h"

void make_certificates(const scratch *folder);

#endif
