/* libzookeeper for the lab: connect, and the paths of a site. */
#ifndef DIBS_LAB_ZNODE_H
#define DIBS_LAB_ZNODE_H

#include "lab.h"

#define THREADED /* the synchronous calls */
#include <zookeeper/zookeeper.h>

/* A session on the site's ZooKeeper, connected; NULL: buyer->note says why. */
zhandle_t *lab_znode_open(lab_buyer *buyer);
/* Makes sure that this persistent node is there. */
bool lab_znode_make(lab_buyer *buyer, zhandle_t *z, const char *path);

#endif
