/* libzookeeper for the lab; see the header. */
#include "znode.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_US (10 * 1000000)

static void ignore(zhandle_t *z, int type, int state, const char *path, void *ctx)
{
    (void)z;
    (void)type;
    (void)state;
    (void)path;
    (void)ctx;
}

zhandle_t *lab_znode_open(lab_buyer *buyer)
{
    char hosts[512];
    zhandle_t *z;

    snprintf(hosts, sizeof hosts, "%s", buyer->site->url[LAB_ZOOKEEPER] + strlen("zookeeper://"));
    hosts[strcspn(hosts, "/?")] = '\0';
    zoo_set_debug_level(0);
    z = zookeeper_init(hosts, ignore, LAB_SESSION_MS, NULL, NULL, 0);
    for (int64_t until = lab_now_us() + CONNECT_US; z && lab_now_us() < until; usleep(5000))
        if (zoo_state(z) == ZOO_CONNECTED_STATE)
            return z;
    if (z)
        zookeeper_close(z);
    lab_note(buyer, "zookeeper: no session on %s", hosts);
    return NULL;
}

bool lab_znode_make(lab_buyer *buyer, zhandle_t *z, const char *path)
{
    int rc = zoo_create(z, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);

    return rc == ZOK || rc == ZNODEEXISTS || lab_note(buyer, "zookeeper: %s: %s", path, zerror(rc));
}
