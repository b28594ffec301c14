/* The files of the page, as they were when the command was built: made by embed.py. */
#ifndef DIBS_SERVE_ASSETS_H
#define DIBS_SERVE_ASSETS_H

#include <stddef.h>

typedef struct serve_asset {
    const char *path; /* "/" is index.html */
    const char *type, *etag;
    const unsigned char *data;
    size_t size;
} serve_asset;

extern const serve_asset serve_assets[]; /* ended by a NULL path */

#endif
