/* Clients that hold locks and wait for them by order of a test, all in one process: crowd URL, one order a line on stdin.
 *
 *     take OWNER KIND HEX    KIND: x exclusive, s shared, N/W a semaphore. OWNER "-": the request. HEX: the name's bytes
 *     many COUNT PREFIX      COUNT exclusive locks, PREFIX00000 and so on
 *     free HEX               releases all that it holds of this name
 *
 * On stdout, as it happens: "STATUS HEX FENCE" for each lock that was taken, or was lost. It ends with its stdin, and
 * releases everything. */
#include "dibs.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD = 20000, LINE = 2 * DIBS_NAME_MAX + DIBS_OWNER_MAX + 64 };

static dibs *handle;
static dibs_grant *held[HELD];
static size_t held_count;

static void from_hex(const char *hex, char name[DIBS_NAME_MAX + 1])
{
    size_t n = 0;
    unsigned byte;

    for (; n < DIBS_NAME_MAX && sscanf(hex + n * 2, "%2x", &byte) == 1; n++)
        name[n] = (char)byte;
    name[n] = '\0';
}

static void say(dibs_status status, const char *name, uint64_t fence)
{
    printf("%s ", dibs_status_name(status));
    for (; *name; name++)
        printf("%02x", (unsigned char)*name);
    printf(" %llu\n", (unsigned long long)fence);
}

static void take(const char *name, const char *owner, const char *kind)
{
    dibs_lock_options o = {.owner = strcmp(owner, "-") ? owner : NULL, .shared = kind[0] == 's'};
    char *copy = strdup(name);
    dibs_error err = {0};

    if (sscanf(kind, "%u/%u", &o.slots, &o.weight) != 2)
        o.slots = o.weight = 0;
    if (dibs_start(
            handle,
            &(dibs_request){.op = DIBS_OP_LOCK, .name = name, .options.lock = &o, .user = copy},
            NULL, &err) != DIBS_OK) {
        say(err.status, name, 0);
        free(copy);
    }
}

static void release(const char *name)
{
    dibs_error err = {0};

    for (size_t i = held_count; i > 0; i--)
        if (strcmp(dibs_grant_name(held[i - 1]), name) == 0) {
            dibs_status status = dibs_unlock(&held[i - 1], &err);
            held[i - 1] = held[--held_count];
            if (status != DIBS_OK)
                say(status, name, 0);
        }
}

static void obey(char *line)
{
    char name[DIBS_NAME_MAX + 1], owner[DIBS_OWNER_MAX + 1], kind[32], hex[LINE];
    unsigned count;

    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "take %128s %31s %1024s", owner, kind, hex) == 3) {
        from_hex(hex, name);
        take(name, owner, kind);
    } else if (sscanf(line, "many %u %500s", &count, hex) == 2) {
        for (unsigned i = 0; i < count; i++) {
            snprintf(name, sizeof name, "%.500s%05u", hex, i);
            take(name, "-", "x");
        }
    } else if (sscanf(line, "free %1024s", hex) == 1) {
        from_hex(hex, name);
        release(name);
    }
}

static void go_on(void)
{
    dibs_outcome o;

    while (dibs_take(handle, &o)) {
        if (o.op == DIBS_OP_LOST) {
            say(DIBS_LOST, dibs_grant_name(o.grant), dibs_grant_fence(o.grant));
            fprintf(stderr, "crowd: lost: %s\n", dibs_loss_text(o.loss));
        } else if (o.op == DIBS_OP_LOCK) {
            say(o.err.status, o.user, o.grant ? dibs_grant_fence(o.grant) : 0);
            if (o.grant && held_count < HELD)
                held[held_count++] = o.grant;
            free(o.user);
        }
    }
}

int main(int argc, char **argv)
{
    char line[LINE];
    struct pollfd fds[2] = {{.fd = 0, .events = POLLIN}, {.events = POLLIN}};
    dibs_error err = {0};

    setvbuf(stdin, NULL, _IONBF, 0); /* what poll says is what there is */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2 || dibs_open(argv[1], NULL, &handle, &err) != DIBS_OK) {
        fprintf(stderr, "crowd: %s\n", argc == 2 ? err.message : "usage: crowd URL");
        return 1;
    }
    fds[1].fd = dibs_fd(handle);
    while (poll(fds, 2, -1) > 0) {
        if (fds[1].revents)
            go_on();
        if (fds[0].revents && !fgets(line, sizeof line, stdin))
            break;
        if (fds[0].revents)
            obey(line);
    }
    dibs_close(handle);
    return 0;
}
