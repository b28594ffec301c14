/* What the shop received, newest last: the log on its pages. The last LAB_JOURNAL entries are kept, in memory. */
#ifndef DIBS_LAB_SHOP_JOURNAL_H
#define DIBS_LAB_SHOP_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

#define LAB_JOURNAL 100

/* What became of a request. */
typedef enum lab_fate {
    LAB_FATE_BUSY, /* not known yet */
    LAB_FATE_SOLD,
    LAB_FATE_AGAIN,    /* sold, although the same form was sold before: a duplicate */
    LAB_FATE_REPLAYED, /* a repeated key: answered with the first order */
    LAB_FATE_REFUSED,
    LAB_FATE_SOLD_OUT,
    LAB_FATE_FAILED,
    LAB_FATE_SHOWN, /* a page that was only looked at */
} lab_fate;

const char *lab_fate_name(lab_fate fate); /* "again": also the name of its class in shop.css */
const char *lab_fate_text(lab_fate fate); /* "sold again" */

typedef struct lab_entry {
    uint64_t number; /* counts all entries of this shop */
    int64_t at_ms;   /* Unix time */
    uint64_t times;  /* how often in a row, of entries that are counted and not listed one by one */
    char request[48];
    unsigned status;       /* of the answer */
    char token[8], key[8]; /* how they begin; "": none was sent */
    lab_fate fate;
    char text[200];
} lab_entry;

typedef struct lab_journal lab_journal;

lab_journal *lab_journal_open(void); /* NULL: out of memory */
void lab_journal_close(lab_journal *j);

/* Adds a copy; number, time and times are filled in. Returns the number. */
uint64_t lab_journal_add(lab_journal *j, const lab_entry *e);
/* Puts fate, status and text of `e` into that entry, if it is still kept. */
void lab_journal_settle(lab_journal *j, uint64_t number, const lab_entry *e);
/* The same, but an entry that repeats the last one only makes that one count: for load generators. */
void lab_journal_count(lab_journal *j, const lab_entry *e);
/* Copies the entries, newest first; returns how many there are. */
size_t lab_journal_read(lab_journal *j, lab_entry out[LAB_JOURNAL]);

#endif
