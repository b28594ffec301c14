/* A process that takes locks by order of a test: holder URL, then one command a line on stdin, one
 * answer a line on stdout.
 *
 *     lock NAME LEASE_MS WAIT_MS OWNER   OWNER "-": the thread    "OK fence held" or a status
 *     portable NAME LEASE_MS                                      "OK fence text" or a status
 *     adopt TEXT                                                  "OK fence held" or a status
 *     unlock | renew                                              a status
 *     held                                                        "yes" or "no"
 *     loss                                                        what dibs_loss_text says
 *     close                                                       "closed"
 *
 * It ends with its stdin, without giving anything back: the handle is not closed. */
#include "dibs.h"
#include "support/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dibs *handle;
static dibs_grant *grant;

static void say_got(dibs_status status, const dibs_error *err)
{
    if (status == DIBS_OK)
        printf("OK %llu %s\n", (unsigned long long)dibs_grant_fence(grant),
               dibs_grant_held(grant) ? "held" : "dead");
    else
        printf("%s %s\n", dibs_status_name(status), err->message);
}

static void do_lock(char *args)
{
    char name[DIBS_NAME_MAX + 1], owner[DIBS_OWNER_MAX + 1];
    long long lease, wait;
    dibs_error err = {0};

    if (sscanf(args, "%512s %lld %lld %128s", name, &lease, &wait, owner) != 4) {
        printf("bad command\n");
        return;
    }
    dibs_lock_options o = {
        .lease_ms = lease, .wait_ms = wait, .owner = strcmp(owner, "-") ? owner : NULL};
    say_got(dibs_lock(handle, name, &o, &grant, &err), &err);
}

static void do_portable(char *args)
{
    char name[DIBS_NAME_MAX + 1], text[DIBS_GRANT_SIZE];
    long long lease;
    dibs_error err = {0};

    if (sscanf(args, "%512s %lld", name, &lease) != 2) {
        printf("bad command\n");
        return;
    }
    dibs_lock_options o = {.lease_ms = lease, .portable = true};
    dibs_status status = dibs_lock(handle, name, &o, &grant, &err);
    if (status == DIBS_OK)
        status = dibs_grant_export(grant, text, &err);
    if (status == DIBS_OK)
        printf("OK %llu %s\n", (unsigned long long)dibs_grant_fence(grant), text);
    else
        printf("%s %s\n", dibs_status_name(status), err.message);
}

static void do_adopt(const char *text)
{
    dibs_error err = {0};

    say_got(dibs_grant_adopt(handle, text, NULL, &grant, &err), &err);
}

static void obey(char *line)
{
    if (strncmp(line, "lock ", 5) == 0) {
        do_lock(line + 5);
    } else if (strncmp(line, "portable ", 9) == 0) {
        do_portable(line + 9);
    } else if (strncmp(line, "adopt ", 6) == 0) {
        do_adopt(line + 6);
    } else if (strcmp(line, "close") == 0) {
        dibs_close(handle);
        handle = NULL;
        printf("closed\n");
    } else if (!grant) {
        printf("nothing is held\n");
    } else if (strcmp(line, "unlock") == 0) {
        printf("%s\n", dibs_status_name(unlock(grant)));
        grant = NULL;
    } else if (strcmp(line, "renew") == 0) {
        printf("%s\n", dibs_status_name(dibs_renew(grant, NULL)));
    } else if (strcmp(line, "held") == 0) {
        printf("%s\n", dibs_grant_held(grant) ? "yes" : "no");
    } else if (strcmp(line, "loss") == 0) {
        printf("%s\n", dibs_loss_text(dibs_grant_loss(grant)));
    } else {
        printf("bad command\n");
    }
}

int main(int argc, char *argv[])
{
    char line[DIBS_GRANT_SIZE + 64];
    dibs_error err = {0};

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2 || dibs_open(argv[1], NULL, &handle, &err) != DIBS_OK) {
        printf("%s\n", argc == 2 ? err.message : "usage: holder URL");
        return 1;
    }
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        obey(line);
    }
    _exit(0);
}
