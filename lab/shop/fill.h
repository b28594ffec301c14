/* Templates: {{name}} stands for a value, in which what HTML would understand is escaped; {{{name}}} for one that is HTML. */
#ifndef DIBS_LAB_SHOP_FILL_H
#define DIBS_LAB_SHOP_FILL_H

#include <stdio.h>

typedef struct lab_value {
    const char *name; /* NULL: the last one */
    const char *text;
} lab_value;

/* A name that is not among the values is left out. */
void lab_fill(FILE *out, const char *page, const lab_value values[]);

#endif
