/* Which program has what the arguments ask for; see the header.
 *
 * The choice is made before anything else is done, and by looking only: the other program reads the same arguments
 * again. Whatever is in doubt goes to `dibs-all`, which is never wrong. */
#define _GNU_SOURCE
#include "program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHOLE "dibs-all"

const cli_command *const cli_large[] = {NULL};

/* How the schemes of an engine begin, and the program that has it. An engine that this build lacks is described by the
 * whole. */
static const struct {
    const char *scheme, *program;
} programs[] = {
    {"sqlite:", "dibs"},
#ifdef DIBS_HAVE_REDIS
    {"redis", "dibs-redis"},
    {"redlock:", "dibs-redis"},
#endif
#ifdef DIBS_HAVE_POSTGRESQL
    {"postgres", "dibs-postgresql"},
#endif
#ifdef DIBS_HAVE_MYSQL
    {"mysql:", "dibs-mysql"},
    {"mariadb:", "dibs-mysql"},
#endif
#ifdef DIBS_HAVE_ZOOKEEPER
    {"zookeeper", "dibs-zookeeper"},
#endif
#ifdef DIBS_HAVE_ETCD
    {"etcd", "dibs-etcd"},
#endif
};

/* ---- Which ----------------------------------------------------------------------------------- */

static const char *program_for(const char *url)
{
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++)
        if (strncmp(url, programs[i].scheme, strlen(programs[i].scheme)) == 0)
            return programs[i].program;
    return WHOLE;
}

/* What is no regular file (a pipe) can be read only once, by the program that uses it. */
static const char *program_for_file(const char *path)
{
    const char *program = WHOLE;
    char *url = NULL;
    struct stat st;

    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || dibs_url_read(path, &url, NULL) != DIBS_OK)
        return WHOLE;
    program = program_for(url);
    explicit_bzero(url, strlen(url));
    free(url);
    return program;
}

/* As the library finds it (core/default_url.c), which also says what is wrong with it. */
static const char *program_for_default(void)
{
    const char *url = secure_getenv("DIBS_URL"), *path = secure_getenv("DIBS_URL_FILE");

    if (path && *path)
        return url && *url ? WHOLE : program_for_file(path);
    return program_for(url && *url ? url : "sqlite:");
}

/* The value of `word`, if it is the option `name`, or of the one after it; NULL: it is another. */
static const char *value_of(char **word, const char *name)
{
    size_t length = strlen(name);

    if (strncmp(*word, name, length) != 0)
        return NULL;
    return (*word)[length] == '=' ? *word + length + 1 : (*word)[length] ? NULL : word[1];
}

static const char *program_for_arguments(char **argv)
{
    const char *program = NULL, *value;

    for (char **word = argv + 2; argv[1] && *word && strcmp(*word, "--") != 0; word++) {
        const char *one = NULL;
        if ((value = value_of(word, "--url")))
            one = program_for(value);
        else if ((value = value_of(word, "--url-file")))
            one = program_for_file(value);
        if (one)
            program = program && strcmp(program, one) != 0 ? WHOLE : one;
    }
    return program ? program : program_for_default();
}

/* ---- Where ----------------------------------------------------------------------------------- */

/* Where it was built the others lie beside it. An installed program never looks there: the folder may be somebody
 * else's by now. */
static void find(const char *program, char *out, size_t size)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash && strncmp(self, DIBS_BUILD "/", sizeof DIBS_BUILD) == 0)
        snprintf(out, size, "%.*s/%s", (int)(slash - self), self, program);
    else
        snprintf(out, size, DIBS_PROGRAMS "/%s", program);
}

int cli_become(bool here, char **argv)
{
    const char *program = here ? program_for_arguments(argv) : WHOLE;
    char path[4096 + 32];

    if (strcmp(program, DIBS_PROGRAM) == 0)
        return -1;
    find(strcmp(DIBS_PROGRAM, "dibs") == 0 ? program : WHOLE, path, sizeof path);
    execv(path, argv);
    cli_say("cannot run %s: %s; it is a part of dibs: install dibs again", path, strerror(errno));
    return CLI_EXIT_SYSTEM;
}
