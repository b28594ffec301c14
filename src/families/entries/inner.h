/* The inside of the recipe: what its files share.
 *
 * An *own entry* is an attempt of this handle's with its entry. A *view* is what the handle knows of one
 * lock's queue: the *known entries* that are ahead of some own entry of ours. One mutex guards all of it;
 * the sink is told when it is not held. */
#ifndef DIBS_FAMILIES_ENTRIES_INNER_H
#define DIBS_FAMILIES_ENTRIES_INNER_H

#include "core/heap.h"
#include "core/table.h"
#include "families/entries/cell.h"
#include "families/entries/entries.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- Text ------------------------------------------------------------------------------------ */

typedef struct dibs__entries_key {
    const char *attempt;
    size_t attempt_length;
    uint64_t session;
    uint64_t owner; /* hash of an owner given by name; 0: none */
    uint32_t weight;
    bool may_linger, lingering;
} dibs__entries_key;

/* What a lock's value says. */
typedef struct dibs__entries_note {
    uint32_t capacity; /* 0: not fixed */
    uint64_t upto;     /* the last break asked for the entries up to this fence */
    int64_t broken_at; /* wall; 0: never broken */
    char broken_by[DIBS__BY_SIZE];
} dibs__entries_note;

bool dibs__entries_key_read(const char *key, dibs__entries_key *out); /* false: a stranger's */
/* What a key of ours takes at the most, with terminator. */
size_t dibs__entries_key_room(const char *attempt, bool plain, bool named);
void dibs__entries_listing_sort(dibs__entries_listing *l); /* by place */
/* Of a sorted listing: an entry of the same owner by name is ahead of it. It waits until that one is gone,
 * and all behind it do: those who hold are always the front of the queue. */
bool dibs__entries_blocked(const dibs__entries_listing *l, size_t i);
void dibs__entries_value_write(char out[DIBS__ENTRIES_VALUE_SIZE], const dibs__asker *who,
                               int64_t lease);
void dibs__entries_value_read(const char *value, const char *key, dibs__asker *out);
void dibs__entries_note_write(char out[DIBS__ENTRIES_VALUE_SIZE], const dibs__entries_note *note);
void dibs__entries_note_read(const char *value, dibs__entries_note *out);

/* ---- Own entries and views -------------------------------------------------------------------- */

typedef struct dibs__view dibs__view;
typedef struct dibs__known_entry dibs__known_entry;
typedef struct dibs__own_entry dibs__own_entry;

/* An own entry watches a known entry. */
typedef struct dibs__link {
    dibs__own_entry *own_entry;
    dibs__known_entry *known;
    struct dibs__link *next, **at; /* of the known entry's watchers */
} dibs__link;

typedef enum dibs__own_entry_state {
    DIBS__OWN_ENTRY_NEW,     /* no entry yet, or not known */
    DIBS__OWN_ENTRY_WAITING, /* in the queue */
    DIBS__OWN_ENTRY_HOLDING,
    DIBS__OWN_ENTRY_LEAVING, /* forgotten by the core: the entry is to be removed */
} dibs__own_entry_state;

struct dibs__own_entry {
    dibs__node by_attempt;
    dibs__due ends; /* when it leaves unless it is kept */
    dibs__own_entry_state state;
    int users;       /* threads inside a call for it */
    bool gone;       /* out of the table: freed by its last user */
    bool maybe_made; /* an `enter` got no answer */
    bool dead;       /* its session is over */
    bool asking;     /* a list or check for it is under way */
    bool fresh;      /* what the view has ahead of it was listed just now */
    bool verified;   /* its entry was looked at after all others had gone */
    bool stirred;    /* in the queue->stirred */
    bool named;
    bool to_be_notified; /* in entries->to_notify, like the next */
    bool granted;
    uint32_t weight, capacity;
    uint64_t place, fence, floor, session;
    int64_t lease, min_hold;
    dibs__deadline since;   /* when it was granted */
    dibs__deadline checked; /* its entry was there */
    dibs__deadline stray;   /* an `enter` without an answer may make its entry until then */
    dibs__view *view;       /* while it waits */
    dibs__link *links;
    size_t link_count;
    dibs__own_entry *next_stirred, *next_to_notify;
    const char *name;  /* in `text`, like the next three, which has room for what they will be */
    const char *owner; /* if it is `named`; else NULL */
    const char *value; /* what the entry stores, if it may linger; else NULL */
    char *key;         /* "": not known */
    uint16_t key_room;
    char attempt[DIBS__ATTEMPT_SIZE];
    char text[];
};

struct dibs__entries {
    dibs__engine base;
    dibs__entries_backend *backend;
    int timer_fd;
    pthread_mutex_t mutex;
    dibs__table own_entries, views;
    dibs__heap ends;
    dibs__deadline armed;
    dibs__own_entry *stirred;                    /* to be looked at again */
    dibs__own_entry *to_notify, **to_notify_end; /* the sink is to hear of them */
    uint64_t expired;                            /* the session that ended last */
    _Atomic size_t busy;                         /* own entries */
    char reaped[2][DIBS__ENTRIES_CELL_KEY_SIZE]; /* where the reaper goes on */
};

/* own entry.c: with the mutex held */
static inline dibs__entries *dibs__entries_of(dibs__engine *e)
{
    return (dibs__entries *)e; /* its first member */
}
/* What a new grant of this lease must have left at the least. */
static inline int64_t dibs__entries_worth_it(const dibs__entries *entries, int64_t lease)
{
    return lease < entries->base.lease / 2 ? lease : entries->base.lease / 2;
}
dibs__own_entry *dibs__own_entry_new(dibs__entries *entries,
                                     const dibs__enter_request *r); /* NULL: no memory */
dibs__own_entry *dibs__own_entry_find(dibs__entries *entries, const char *attempt);
void dibs__own_entry_set_key(dibs__own_entry *s, const char *key);
void dibs__own_entry_drop(dibs__entries *entries,
                          dibs__own_entry *s); /* out of everything; freed when unused */
void dibs__own_entry_use(dibs__own_entry *s);  /* not freed until it is left */
void dibs__own_entry_unuse(dibs__entries *entries, dibs__own_entry *s);
void dibs__own_entry_lasts(dibs__entries *entries, dibs__own_entry *s,
                           dibs__deadline until); /* then it leaves */
/* Nobody wants it any more: its entry is removed, sooner or later, and then it is dropped. */
void dibs__own_entry_leave(dibs__entries *entries, dibs__own_entry *s);
/* The sink is to hear of it: that it was granted, or that there is something to look at. */
void dibs__own_entry_notify(dibs__entries *entries, dibs__own_entry *s, bool granted);
/* Without the mutex: tells it. */
void dibs__entries_notify_all(dibs__entries *entries);

/* leave.c: why an entry of this owner is not there, or why it is marked: BROKEN, RESUMED or LOST (if it
 * is there: whoever marked it has left). Without the mutex. */
dibs_status dibs__entries_why(dibs__entries *entries, const char *name, const char *owner,
                              const char *attempt, uint64_t fence, dibs__deadline until,
                              dibs__verdict *out, dibs_error *err);
/* The queue as it is now, without values; `out` is freed and filled. */
dibs_status dibs__entries_read(dibs__entries *entries, const char *name, dibs__deadline until,
                               dibs__entries_listing *out, dibs_error *err);
/* Removes an entry. `there` may be NULL. */
dibs_status dibs__entries_remove(dibs__entries *entries, const char *name, const char *key,
                                 dibs__deadline until, bool *there, dibs_error *err);

/* inspect.c: asks the holders of these entries to stop: they find the mark with their next keep-alive, and
 * the queue says who wants it. Without the mutex. */
dibs_status dibs__entries_ask_back(dibs__entries *entries, const char *name,
                                   bool (*is_one)(void *data, const dibs__queue_entry *e),
                                   void *data, dibs__deadline until, dibs_error *err);

/* ask.c: calls, with the strings that they point to */
typedef dibs_status (*dibs__entries_slot)(dibs__entries_backend *s, dibs__entries_call *call);
/* Strings are copied; all but `name` may be NULL. NULL: out of memory. */
dibs__entries_call *dibs__ask_new(dibs__entries *entries, const char *name, const char *key);
const char *dibs__ask_copy(dibs__entries_call *call, const char *text); /* NULL: out of memory */
/* Starts it and waits for the answer: its status, or UNKNOWN at `until`. Without the mutex. */
dibs_status dibs__ask_wait(dibs__entries *entries, dibs__entries_slot slot,
                           dibs__entries_call *call, dibs__deadline until, dibs_error *err);
/* Starts it; `then` is called without the mutex, and the call is freed after it. Not started: it is
 * freed at once, and false comes back. With the mutex. */
bool dibs__ask_start(dibs__entries *entries, dibs__entries_slot slot, dibs__entries_call *call,
                     void (*then)(dibs__entries_call *call));
/* The same in two steps: what is started in between is started after it. Not started: the first fails. */
dibs_status dibs__ask_begin(dibs__entries *entries, dibs__entries_slot slot,
                            dibs__entries_call *call, dibs__deadline until, dibs_error *err);
dibs_status dibs__ask_end(dibs__entries *entries, dibs__entries_call *call, dibs_error *err);
void dibs__ask_free(dibs__entries_call *call); /* after dibs__ask_wait; without the mutex */
void dibs__ask_drop(dibs__entries_call *call); /* one that was never started */
dibs__entries *dibs__ask_entries(const dibs__entries_call *call);
/* With the mutex: dibs__cond_sleep. */
void dibs__entries_sleep(dibs__entries *entries, pthread_cond_t *cond, dibs__deadline until);
/* What dibs__entries_add_lock has added. */
typedef struct dibs__entries_lock {
    const char *name;
    dibs__entries_listing listing;
} dibs__entries_lock;
size_t dibs__ask_locks(dibs__entries_call *call, dibs__entries_lock **out);

/* crowd.c: those who were slower, and how they take turns. Zero it first. */
typedef struct dibs__crowd {
    dibs__entries_turn turn;
    int tries;
    bool queue;        /* others queue already */
    bool front;        /* nobody is before us whom we would wait for */
    size_t ahead;      /* as we saw it last */
    dibs__deadline at; /* when that number fell last */
    int64_t pace;      /* and how long it takes for one to go */
    int64_t pause;     /* between our last two looks */
} dibs__crowd;
/* Before every try. Never fails: a queue that cannot be reached is none. Without the mutex. */
void dibs__crowd_wait(dibs__entries *entries, const dibs__entries_blob *cell, dibs__crowd *c,
                      dibs__deadline until);
void dibs__crowd_leave(dibs__entries *entries, const dibs__entries_blob *cell, dibs__crowd *c);

/* cell.c: the cell's blob, and the version that its record tells; 0: it has no value. */
void dibs__entries_cell_name(dibs__entries_blob *b, const char *key);
uint64_t dibs__entries_cell_version(const dibs__entries_blob *b);

/* view.c and turn.c: with the mutex held */
/* Puts the own entry in the queue. false: out of memory, and it is not. */
bool dibs__view_join(dibs__entries *entries, dibs__own_entry *s, dibs__entries_listing *listing);
void dibs__view_leave(dibs__entries *entries, dibs__own_entry *s);
/* What the call may be told of a long queue that is known already. false: out of memory. */
bool dibs__view_hint(dibs__entries *entries, dibs__entries_call *call);
void dibs__view_check(dibs__entries *entries, dibs__own_entry *s); /* stirs it if it has no watch */
void dibs__view_stir(dibs__entries *entries, dibs__own_entry *s);  /* look at it again */
void dibs__view_settle(dibs__entries *entries); /* looks at all that were stirred */
/* The entry of this place is being removed, by a request that is under way: who is next, if it is ours, is
 * looked at by a request behind it. */
void dibs__view_follow(dibs__entries *entries, const char *name, uint64_t place);
#endif
