/* What a request brings in its body: the fields of a form. Other bodies are read and forgotten, as load generators send them. */
#ifndef DIBS_LAB_SHOP_FORM_H
#define DIBS_LAB_SHOP_FORM_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct lab_input lab_input;

lab_input *lab_input_open(struct MHD_Connection *c); /* NULL: out of memory */
void lab_input_close(lab_input *in);                 /* NULL is allowed */
/* More of the body, as it comes. */
void lab_input_take(lab_input *in, const char *data, size_t size);
/* 0: it was understood, else the HTTP status that says why not. */
unsigned lab_input_fault(const lab_input *in);
/* NULL: there is no such field. */
const char *lab_input_get(const lab_input *in, const char *name);

#endif
