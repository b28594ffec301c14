#define _GNU_SOURCE
#include "support/certificates.h"

#include <stdio.h>
#include <stdlib.h>

static void shell(const scratch *folder, const char *command)
{
    char line[2048];

    snprintf(line, sizeof line, "cd %s && (%s) >log 2>&1", folder->path, command);
    if (system(line) != 0)
        printf("# failed: %s\n", line);
}

void make_certificates(const scratch *folder)
{
    shell(folder, "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj "
                  "/CN=ca -days 30");
    shell(folder, "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca2.key -out ca2.crt -subj "
                  "/CN=ca2 -days 30");
    shell(
        folder,
        "openssl req -newkey rsa:2048 -nodes -keyout good.key -out good.csr -subj /CN=localhost && "
        "printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' >good.ext && "
        "openssl x509 -req -in good.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile good.ext "
        "-days 30 -out good.crt");
    shell(folder, "mkdir db && touch db/index.txt && echo 01 >db/serial");
    shell(
        folder,
        "printf "
        "'[ca]\\ndefault_ca=d\\n[d]\\ndatabase=db/index.txt\\nserial=db/"
        "serial\\nnew_certs_dir=db\\n"
        "default_md=sha256\\npolicy=p\\nunique_subject=no\\n[p]\\ncommonName=supplied\\n' >ca.conf "
        "&& "
        "openssl ca -batch -config ca.conf -keyfile ca.key -cert ca.crt -in good.csr -out old.crt "
        "-extfile good.ext -startdate 200101000000Z -enddate 200201000000Z -notext");
    shell(folder, "printf 'subjectAltName=DNS:elsewhere' >other.ext && "
                  "openssl x509 -req -in good.csr -CA ca.crt -CAkey ca.key -CAcreateserial "
                  "-extfile other.ext "
                  "-days 30 -out other.crt");
}
