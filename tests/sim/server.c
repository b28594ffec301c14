#define _GNU_SOURCE
#include "sim/server.h"

#include "core/error.h"
#include "engines/engine.h"
#include "engines/memory/cells.h"
#include "engines/memory/store.h"
#include "sim/sched.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#define CALM_WAY (2 * DIBS__MS)

typedef struct engine engine;

/* A wake-up on its way to a process. */
typedef struct wake {
    struct wake *next;  /* in the inbox */
    struct wake *older; /* of all that were sent */
    bool read;
    bool granted; /* else: look */
    char attempt[DIBS__ATTEMPT_SIZE];
    uint64_t fence, floor;
    engine *to;
} wake;

struct engine {
    dibs__engine base;
    engine *next; /* of all that are open */
    sim_process *process;
    char id[DIBS__WAKE_SIZE];
    int64_t cut_until;  /* nothing gets through before */
    uint64_t sent;      /* requests, all in all */
    uint64_t confirmed; /* the newest that has arrived */
    wake *inbox, **inbox_end;
    int event_fd;
    bool reads; /* somebody does */
};

/* A request, its answer, and what the network does with them. Lives until the end of the run. */
typedef struct message {
    engine *from;
    uint64_t number;
    uint64_t abandoned; /* its caller had gone when so many had been sent; 0: it waits */
    int epoch;          /* of the server when it was sent */
    bool single;        /* nobody ever sends it twice, and so the network does not either */
    void (*execute)(struct message *m);
    bool answered, arrived;
    dibs_status status;
    char name[DIBS_NAME_MAX + 1];
    /* locks */
    dibs__enter_request enter;
    dibs__claim *claim;
    size_t count;
    dibs__reply reply;
    char by[DIBS__BY_SIZE];
    bool at_once;
    /* cells */
    char key[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE], request[DIBS__REQUEST_SIZE];
    dibs__cell_command command;
    dibs__cell_reply cell;
} message;

static struct {
    sim_weather weather;
    dibs__memory *locks;
    dibs__cells *cells;
    int64_t down_until;
    int epoch; /* grows with every restart */
    engine *engines;
    wake *wakes; /* the newest first */
} server;

static dibs__time server_time(void)
{
    return (dibs__time){sim_now(), 1700000000 * DIBS__SECOND + sim_now()};
}

static bool is_down(void)
{
    return sim_now() < server.down_until;
}

/* How long a message is on its way. */
static int64_t way(void)
{
    if (sim_chance(server.weather.late))
        return sim_between(server.weather.usual, server.weather.latest);
    return sim_between(50, server.weather.usual);
}

/* Nothing gets through. It may come later, as TCP sends it again, if its sender still waits by then or not. */
static bool is_cut_off(const engine *e, void (*again)(void *arg), void *arg)
{
    if (sim_now() >= e->cut_until)
        return false;
    if (sim_chance(500000))
        sim_at(e->cut_until + sim_between(1, 500 * DIBS__MS), again, arg);
    return true;
}

/* ---- Wake-ups -------------------------------------------------------------------------------- */

static void arrive_wake(void *arg)
{
    wake *w = arg;

    if (w->read || w->next || w->to->inbox_end == &w->next || is_cut_off(w->to, arrive_wake, w))
        return; /* it is there already, or cannot be */
    w->next = NULL;
    *w->to->inbox_end = w;
    w->to->inbox_end = &w->next;
    eventfd_write(w->to->event_fd, 1);
}

static void send_wake(const dibs__holder *holder, bool granted, uint64_t floor)
{
    engine *e = server.engines;
    wake *w;

    while (e && strcmp(e->id, holder->who.wake) != 0)
        e = e->next;
    if (!e)
        return;
    w = calloc(1, sizeof *w);
    w->granted = granted;
    memcpy(w->attempt, holder->who.attempt, sizeof w->attempt);
    w->fence = holder->fence;
    w->floor = floor;
    w->to = e;
    w->older = server.wakes;
    server.wakes = w;
    if (!sim_chance(server.weather.wake_lost))
        sim_at(sim_now() + way(), arrive_wake, w);
}

/* A list in the server keeps what nobody has read yet, as on Redis: who asks again finds it. */
static void send_unread(const char *attempt)
{
    for (wake *w = server.wakes; w; w = w->older)
        if (!w->read && strcmp(w->attempt, attempt) == 0)
            sim_at(sim_now() + way(), arrive_wake, w);
}

static void on_granted(void *data, const dibs__holder *holder, uint64_t floor)
{
    (void)data;
    send_wake(holder, true, floor);
}

static void on_breaking(void *data, const dibs__holder *holder)
{
    (void)data;
    send_wake(holder, false, 0);
}

/* By a waiting thread of the process that they are for, or by its keeper: never by both. */
static void sim_events(dibs__engine *base, dibs__deadline until)
{
    engine *e = (engine *)base;
    eventfd_t ignored;
    wake *w;

    (void)until;
    if (e->reads)
        sim_fault("two threads read the engine's events");
    e->reads = true;
    eventfd_read(e->event_fd, &ignored);
    while ((w = e->inbox)) {
        e->inbox = w->next;
        if (!e->inbox)
            e->inbox_end = &e->inbox;
        w->read = true;
        if (w->granted)
            e->base.sink->granted(e->base.sink, w->attempt, w->fence, w->floor);
        else
            e->base.sink->check(e->base.sink, w->attempt);
    }
    e->reads = false;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void arrive_back(void *arg)
{
    message *m = arg;

    if (m->epoch != server.epoch || is_cut_off(m->from, arrive_back, m))
        return; /* the connection is gone, or the way */
    m->arrived = true;
    sim_wake(m, true);
}

static void execute_cell(message *m);

static void arrive(void *arg)
{
    message *m = arg;
    engine *e = m->from;

    if (is_down() || m->epoch != server.epoch || is_cut_off(e, arrive, m))
        return;
    if (server.weather.ends_abandoned && m->abandoned && e->confirmed > m->abandoned)
        return;
    if (m->number > e->confirmed)
        e->confirmed = m->number;
    m->execute(m);
    if (m->execute == execute_cell)
        sim_trace("server: %d cell %s op %d version %llu: %d, version %llu%s", e->process->number,
                  m->key, m->command.op, (unsigned long long)m->command.version, m->cell.verdict,
                  (unsigned long long)m->cell.version, m->abandoned ? ", abandoned" : "");
    if (m->answered)
        return; /* the answer to its double is on its way */
    m->answered = true;
    if (!sim_chance(server.weather.lost))
        sim_at(sim_now() + way(), arrive_back, m);
}

static message *message_new(dibs__engine *e, const char *name, void (*execute)(message *m))
{
    message *m = calloc(1, sizeof *m);

    m->from = (engine *)e;
    m->execute = execute;
    m->status = DIBS_OK;
    if (name)
        strcpy(m->name, name);
    return m;
}

/* The calling thread waits for the answer. */
static dibs_status exchange(message *m, dibs__deadline until, dibs_error *err)
{
    engine *e = m->from;
    int64_t end = sim_true_time(e->process, until);
    bool sent = true;

    sim_step();
    m->number = ++e->sent;
    m->epoch = server.epoch;
    if (is_down() && sim_chance(700000)) { /* refused */
        sim_wait(m, dibs__sooner(end, sim_now() + server.weather.usual));
        return dibs__fail(err, DIBS_UNAVAILABLE, "sim: refused");
    }
    if (sim_chance(server.weather.lost))
        sent = false;
    if (sent)
        sim_at(sim_now() + way(), arrive, m);
    if (sent && !m->single && sim_chance(server.weather.doubled))
        sim_at(sim_now() + way() + way(), arrive, m);
    while (!m->arrived && sim_now() < end)
        sim_wait(m, end);
    if (m->arrived)
        return m->status;
    m->abandoned = e->sent;
    return dibs__fail(err, DIBS_UNKNOWN, "sim: no answer");
}

/* ---- Locks ----------------------------------------------------------------------------------- */

static dibs__time begin(message *m, const char *name, dibs__memory_cursor *cursor)
{
    dibs__time now = server_time();

    (void)m;
    memset(cursor, 0, sizeof *cursor);
    if (!dibs__memory_begin(cursor, server.locks, name, now.wall))
        abort();
    cursor->granted = on_granted;
    cursor->breaking = on_breaking;
    return now;
}

static void execute_enter(message *m)
{
    dibs__memory_cursor cursor;
    dibs__time now = begin(m, m->name, &cursor);
    dibs__reply reply = {0};

    dibs__state_acquire(&dibs__memory_store, &cursor, now, &m->enter.who, m->enter.capacity,
                        m->enter.window, &reply);
    dibs__memory_end(&cursor);
    if (reply.verdict == DIBS__QUEUED)
        send_unread(m->enter.who.attempt);
    if (!m->answered)
        m->reply = reply;
}

static dibs_status sim_enter(dibs__engine *e, const dibs__enter_request *request,
                             dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    message *m = message_new(e, request->name, execute_enter);
    dibs_status status;

    m->single = true; /* who asks again knows that it did: an answer was lost */
    m->enter = *request;
    memcpy(m->enter.who.wake, m->from->id, sizeof m->enter.who.wake);
    status = exchange(m, until, err);
    *out = m->reply;
    return status;
}

static void copy_claim(dibs__claim *to, const dibs__claim *from)
{
    *to = *from;
    to->name = strdup(from->name);
    to->owner = strdup(from->owner);
    to->attempt = strdup(from->attempt);
}

static void execute_keep(message *m)
{
    for (size_t i = 0; i < m->count; i++) {
        dibs__claim *c = &m->claim[i];
        dibs__memory_cursor cursor;
        dibs__time now = begin(m, c->name, &cursor);
        dibs__reply reply = {0};
        dibs__state_keep(&dibs__memory_store, &cursor, now, c->owner, c->attempt, c->fence,
                         c->lease, &reply);
        dibs__memory_end(&cursor);
        if (!m->answered)
            c->reply = reply;
    }
}

static void sim_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                     dibs__deadline until)
{
    message *m = message_new(e, NULL, execute_keep);
    dibs_status status;

    m->count = count;
    m->claim = calloc(count, sizeof *m->claim);
    for (size_t i = 0; i < count; i++)
        copy_claim(&m->claim[i], claims[i]);
    status = exchange(m, until, NULL);
    for (size_t i = 0; i < count; i++) {
        claims[i]->status = status;
        claims[i]->reply = m->claim[i].reply;
    }
}

static void execute_release(message *m)
{
    dibs__memory_cursor cursor;
    dibs__claim *c = m->claim;
    dibs__time now = begin(m, c->name, &cursor);
    dibs__reply reply = {0};

    dibs__state_release(&dibs__memory_store, &cursor, now, c->owner, c->attempt, c->fence, &reply);
    dibs__memory_end(&cursor);
    if (!m->answered)
        m->reply = reply;
}

static void execute_cancel(message *m)
{
    dibs__memory_cursor cursor;
    dibs__claim *c = m->claim;
    dibs__time now = begin(m, c->name, &cursor);

    dibs__state_cancel(&dibs__memory_store, &cursor, now, c->owner, c->attempt, &m->reply);
    dibs__memory_end(&cursor);
}

static message *claim_message(dibs__engine *e, const dibs__claim *claim, void (*execute)(message *))
{
    message *m = message_new(e, NULL, execute);

    m->claim = calloc(1, sizeof *m->claim);
    copy_claim(m->claim, claim);
    return m;
}

static dibs_status sim_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                               dibs__reply *out, dibs_error *err)
{
    message *m = claim_message(e, claim, execute_release);
    dibs_status status = exchange(m, until, err);

    *out = m->reply;
    return status;
}

static dibs_status sim_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                              dibs_error *err)
{
    return exchange(claim_message(e, claim, execute_cancel), until, err);
}

static void execute_break(message *m)
{
    dibs__memory_cursor cursor;
    dibs__time now = begin(m, m->name, &cursor);
    dibs__reply reply = {0};

    dibs__state_break(&dibs__memory_store, &cursor, now, m->by, m->at_once, &reply);
    dibs__memory_end(&cursor);
    if (!m->answered)
        m->reply = reply;
}

static dibs_status sim_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                             dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    message *m = message_new(e, name, execute_break);
    dibs_status status;

    strncpy(m->by, by, sizeof m->by - 1);
    m->at_once = at_once;
    status = exchange(m, until, err);
    *out = m->reply;
    return status;
}

/* What is looked at is as it is at the moment of the answer. */
static void execute_nothing(message *m)
{
    (void)m;
}

static dibs_status sim_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err)
{
    dibs_status status = exchange(message_new(e, name, execute_nothing), until, err);

    if (status == DIBS_OK)
        dibs__memory_report(server.locks, name, server_time(), out);
    return status;
}

static dibs_status sim_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                            dibs__report_builder *out, dibs_error *err)
{
    dibs_status status = exchange(message_new(e, NULL, execute_nothing), until, err);

    if (status == DIBS_OK)
        dibs__memory_report_all(server.locks, prefix, idle, server_time(), out);
    return status;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static void execute_cell(message *m)
{
    dibs__cell_answer answer;
    dibs__time now = server_time();
    dibs__cell_reply reply = {0};

    if (dibs__cells_run(server.cells, m->key, now, &m->command, &answer) != 0 ||
        !dibs__cell_reply_of(&m->command, &answer, now, &reply))
        abort();
    if (m->answered)
        free(reply.data);
    else
        m->cell = reply;
}

static dibs_status sim_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                            bool notify, dibs__deadline until, dibs__cell_reply *out,
                            dibs_error *err)
{
    message *m = message_new(e, NULL, execute_cell);
    void *data = malloc(command->size + 1);
    dibs_status status;

    (void)notify;
    m->single = command->op >= DIBS__CELL_SET && !command->request;
    strcpy(m->key, key);
    m->command = *command;
    if (command->data)
        m->command.data = memcpy(data, command->data, command->size);
    if (command->stamp)
        m->command.stamp = strcpy(m->stamp, command->stamp);
    if (command->request)
        m->command.request = strcpy(m->request, command->request);
    status = exchange(m, until, err);
    if (status == DIBS_OK)
        *out = m->cell;
    return status;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static dibs_status sim_open(const dibs__open_request *request, dibs__engine **out, dibs_error *err)
{
    engine *e = calloc(1, sizeof *e);

    (void)err;
    e->base.sink = request->sink;
    e->base.env = request->env;
    e->process = sim_self_process();
    e->inbox_end = &e->inbox;
    strncpy(e->id, request->handle_id, sizeof e->id - 1);
    e->next = server.engines;
    server.engines = e;
    e->event_fd = eventfd(0, 0);
    *out = &e->base;
    return DIBS_OK;
}

/* What is on its way may still come: the structure stays. */
static void sim_close(dibs__engine *base)
{
    engine *e = (engine *)base;

    for (engine **at = &server.engines; *at; at = &(*at)->next)
        if (*at == e) {
            *at = e->next;
            break;
        }
}

static int sim_event_fd(dibs__engine *e)
{
    return ((engine *)e)->event_fd;
}

static const dibs__engine_class class = {
    .scheme = "sim",
    .can = {.across_processes = true,
            .first_come = true,
            .waiters_read = true,
            .cells = true,
            .value_max = 65536},
    .open = sim_open,
    .close = sim_close,
    .enter = sim_enter,
    .keep = sim_keep,
    .release = sim_release,
    .cancel = sim_cancel,
    .break_lock = sim_break,
    .inspect = sim_inspect,
    .list = sim_list,
    .cell = sim_cell,
    .event_fd = sim_event_fd,
    .events = sim_events,
};

const dibs__engine_class *__wrap_dibs__engine_find(const char *scheme);

const dibs__engine_class *__wrap_dibs__engine_find(const char *scheme)
{
    (void)scheme;
    return &class;
}

/* ---- The server ------------------------------------------------------------------------------ */

static void make_store(void)
{
    server.locks = dibs__memory_new();
    server.cells = dibs__cells_new();
    if (!server.locks || !server.cells)
        abort();
}

void sim_server_begin(const sim_weather *weather)
{
    memset(&server, 0, sizeof server);
    server.weather = *weather;
    make_store();
}

void sim_server_calm(void)
{
    for (engine *e = server.engines; e; e = e->next)
        e->cut_until = 0;
    server.weather =
        (sim_weather){.usual = CALM_WAY, .ends_abandoned = server.weather.ends_abandoned};
}

void sim_server_cut_off(const sim_process *p, int64_t span)
{
    for (engine *e = server.engines; e; e = e->next)
        if (e->process == p)
            e->cut_until = sim_now() + span;
}

void sim_server_restart(int64_t span, bool keeps_data)
{
    server.epoch++;
    server.down_until = sim_now() + span;
    if (!keeps_data) {
        dibs__memory_free(server.locks);
        dibs__cells_free(server.cells);
        make_store();
    }
}
