#define _GNU_SOURCE
#include "support/tls_files.h"

#include "support/server.h"
#include "support/test.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_MAX_HERE (SCRATCH_MAX + 32)

/* $1: the folder, $2: whom the files belong to, or nothing. */
static const char script[] =
    "set -e; cd \"$1\"\n"
    "new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'\n"
    "authority() {\n"
    "    openssl req -x509 $new -days 2 -subj \"/CN=$1\" -keyout $1.key -out $1.crt\n"
    "}\n"
    "paper() { # file, authority, common name, other names, days\n"
    "    openssl req $new -subj \"/CN=$3\" -keyout $1.key -out $1.csr\n"
    "    printf 'subjectAltName=%s\\n' \"$4\" >$1.ext\n"
    "    openssl x509 -req -in $1.csr -CA $2.crt -CAkey $2.key -CAcreateserial -extfile $1.ext "
    "-days $5 -out $1.crt\n"
    "}\n"
    "authority ca\n"
    "authority stranger\n"
    "paper good ca localhost DNS:localhost,IP:127.0.0.1 2\n"
    "paper elsewhere ca elsewhere.example DNS:elsewhere.example 2\n"
    "paper expired ca localhost DNS:localhost,IP:127.0.0.1 -1\n"
    "paper app ca app DNS:app 2\n"
    "paper foreign stranger app DNS:app 2\n"
    "chmod 755 . && chmod 644 *.crt && chmod 600 *.key\n"
    "if [ -n \"$2\" ]; then chown \"$2\" *.crt *.key; fi\n";

/* The exit code; what it says goes into a file of the folder. */
static int run_script(const char *folder, const char *account)
{
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        char log[PATH_MAX_HERE];
        int fd;
        snprintf(log, sizeof log, "%s/log", folder);
        fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        execl("/bin/sh", "sh", "-c", script, "sh", folder, account, (char *)NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void tls_files_need(tls_files *p, const char *account)
{
    bool other = geteuid() == 0 && getpwnam(account);

    memset(p, 0, sizeof *p);
    if (system("command -v openssl >/dev/null") != 0) {
        if (server_required())
            fail_msg("openssl is not installed, and is required here");
        skip();
    }
    assert_int_equal(scratch_make(&p->folder), 0);
    if (run_script(p->folder.path, other ? account : "") != 0)
        fail_msg("no certificates: see %s/log", p->folder.path);
}

const char *tls_files_file(const tls_files *p, const char *name)
{
    static char paths[8][PATH_MAX_HERE];
    static unsigned n;

    return scratch_file(&p->folder, name, paths[n++ % 8], PATH_MAX_HERE);
}

/* In one step each, and with the owner that `to` had. */
static void copy(const tls_files *p, const char *from, const char *to, const char *suffix)
{
    char command[3 * PATH_MAX_HERE];

    snprintf(command, sizeof command, "cd '%s' && cp -p %s%s new && mv new %s%s", p->folder.path,
             from, suffix, to, suffix);
    if (system(command) != 0)
        fail_msg("%s", command);
}

void tls_files_copy(const tls_files *p, const char *from, const char *to)
{
    copy(p, from, to, ".crt");
    copy(p, from, to, ".key");
}

const char *tls_files_url(const tls_files *p, const char *head, const char *tail)
{
    static char url[2048];
    int n = snprintf(url, sizeof url, "%s", head);

    for (; *tail; tail++) {
        if (*tail == '%')
            n += snprintf(url + n, sizeof url - (size_t)n, "%s", p->folder.path);
        else
            n += snprintf(url + n, sizeof url - (size_t)n, "%c", *tail);
    }
    return url;
}

void tls_files_drop(tls_files *p)
{
    scratch_remove(&p->folder);
}
