/* A batch as one message of several statements.
 *
 * Parsing costs the server about as much as doing what is asked. So where it takes literals in
 * EXECUTE … USING (MariaDB), each statement is prepared on its first use and from then on only
 * executed; with a list in it, one for each length up to eight. MySQL gets the plain text.
 *
 * A LOOK after its LOCK asks for what the name had the last time; see dibs__my_forecast. */
#include "engines/mysql/mysql.h"

#include "core/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OURS     SIZE_MAX
#define LISTS_TO 8         /* so long a list may be to be prepared */
#define SEEN     (1u << 7) /* beside the parts of a look: the name has a row */

/* ---- Statements ------------------------------------------------------------------------------ */

static bool begin_statement(dibs__my_conn *c, size_t command, dibs__my_answer answer)
{
    if (c->count == c->room) {
        size_t room = c->room ? c->room * 2 : 64;
        dibs__my_statement *larger = realloc(c->statement, room * sizeof *larger);
        if (!larger) {
            c->text.failed = true;
            return false;
        }
        c->statement = larger;
        c->room = room;
    }
    c->statement[c->count++] = (dibs__my_statement){command, answer};
    if (c->text.length)
        dibs__my_add(&c->text, "; ");
    return true;
}

static void add_own(dibs__my_conn *c, const char *text)
{
    if (begin_statement(c, OURS, DIBS__MY_NOTHING))
        dibs__my_add(&c->text, text);
}

/* The length of the list among the arguments, 1 when there is none; 0: not to be prepared. */
static size_t length_of_list(const dibs__sql_value *args, size_t count)
{
    size_t length = 1, lists = 0;

    for (size_t i = 0; i < count; i++) {
        if (args[i].kind == DIBS__SQL_LIST) {
            length = args[i].size;
            lists++;
        }
    }
    return lists > 1 || length > LISTS_TO ? 0 : length;
}

/* A statement's own text as a string of SQL. */
static void add_prepare(dibs__my_conn *c, const char *prefix, const char *pattern,
                        const dibs__sql_value *args, const char *name)
{
    dibs__bytes inner = {0};
    dibs__sql_value text = {.kind = DIBS__SQL_BYTES};

    dibs__my_add_template(&inner, prefix, pattern, args);
    text.bytes = inner.data;
    text.size = inner.length;
    if (inner.failed || !begin_statement(c, OURS, DIBS__MY_NOTHING)) {
        c->text.failed = true;
    } else {
        dibs__my_add(&c->text, "PREPARE ");
        dibs__my_add(&c->text, name);
        dibs__my_add(&c->text, " FROM ");
        dibs__my_add_value(&c->text, &text);
    }
    dibs__bytes_fini(&inner);
}

typedef struct part {
    const dibs__my_form *form;
    size_t which;   /* statement of the form */
    size_t command; /* of the batch */
    size_t number;  /* of the form, among all */
    const dibs__sql_value *args;
    size_t arg_count;
} part;

static void add_part(dibs__my_conn *c, const part *p)
{
    const char *prefix = ((dibs__my *)c->base.e)->address.prefix;
    const char *pattern = p->form->statement[p->which].pattern;
    bool often = p->number < DIBS__SQL_NOTIFY || p->number >= DIBS__SQL_OPS ||
                 (p->number >= DIBS__SQL_CELL_NEW && p->number < DIBS__SQL_CELL_REAP);
    size_t length =
        c->prepares && often && strchr(pattern, '$') ? length_of_list(p->args, p->arg_count) : 0;
    uint8_t *prepared = &c->prepared[p->number][p->which];
    char name[32];

    snprintf(name, sizeof name, "dibs_%zu_%zu_%zu", p->number, p->which, length);
    if (length && !(*prepared >> (length - 1) & 1)) {
        add_prepare(c, prefix, pattern, p->args, name);
        *prepared |= (uint8_t)(1u << (length - 1));
    }
    if (!begin_statement(c, p->command, p->form->statement[p->which].answer))
        return;
    if (!length) {
        dibs__my_add_pattern(&c->text, prefix, pattern, p->args);
        return;
    }
    dibs__my_add(&c->text, "EXECUTE ");
    dibs__my_add(&c->text, name);
    dibs__my_add(&c->text, " USING ");
    dibs__my_add_values(&c->text, pattern, p->args);
}

/* ---- Commands -------------------------------------------------------------------------------- */

static part part_of(const dibs__sql_batch *b, size_t i)
{
    const dibs__sql_command *command = &b->command[i];
    const dibs__sql_value *args = dibs__sql_args(b, command);
    part p = {&dibs__my_forms[command->op], 0, i, command->op, args, command->count};

    if (command->op == DIBS__SQL_SAVE &&
        args[1 + DIBS__SQL_RECORD_COLUMNS + DIBS__SQL_WHO_COLUMNS].kind == DIBS__SQL_NULL) {
        p.form = &dibs__my_save_idle;
        p.number = DIBS__MY_SAVE_IDLE;
    }
    if (command->op == DIBS__SQL_NOTIFY &&
        strncmp(args[1].bytes, DIBS__MY_CELL, strlen(DIBS__MY_CELL)) == 0) {
        p.form = &dibs__my_notify_cell;
        p.number = DIBS__MY_NOTIFY_CELL;
    }
    return p;
}

/* Whom to tell comes last among the arguments. */
static bool is_left_out(const dibs__my_conn *c, const part *p)
{
    dibs__my_answer answer = p->form->statement[p->which].answer;

    return (answer == DIBS__MY_WAKE && !c->wakes) ||
           (answer == DIBS__MY_WATCHERS && p->args[p->arg_count - 1].kind == DIBS__SQL_NULL);
}

static void add_statements(dibs__my_conn *c, part p, unsigned which)
{
    for (; p.which < DIBS__MY_STATEMENTS && p.form->statement[p.which].pattern; p.which++)
        if (which >> p.which & 1 && !is_left_out(c, &p))
            add_part(c, &p);
}

static void add_parts(dibs__my_conn *c, const dibs__sql_batch *b, size_t i, unsigned which)
{
    add_statements(c, part_of(b, i), which);
}

static uint64_t name_hash(const dibs__sql_value *name)
{
    return dibs__hash(name->bytes);
}

/* What a look will have to bring, from the numbers of a record. */
static unsigned parts_needed(int64_t holders, int64_t waiters, bool exclusive)
{
    return (holders > 0 && !exclusive ? 1u << DIBS__MY_LOOK_HOLDERS : 0) |
           (waiters > 0 ? 1u << DIBS__MY_LOOK_WAITERS : 0);
}

static unsigned recall(const dibs__my_conn *c, uint64_t hash)
{
    return atomic_load_explicit(&((dibs__my *)c->base.e)->forecast[hash % DIBS__MY_FORECASTS],
                                memory_order_relaxed);
}

static void remember(dibs__my_conn *c, uint64_t hash, unsigned parts)
{
    atomic_store_explicit(&((dibs__my *)c->base.e)->forecast[hash % DIBS__MY_FORECASTS],
                          (uint8_t)(parts | SEEN), memory_order_relaxed);
}

static void note_save(dibs__my_conn *c, const dibs__sql_value *args)
{
    bool exclusive =
        args[1 + DIBS__SQL_RECORD_COLUMNS + DIBS__SQL_WHO_COLUMNS].kind != DIBS__SQL_NULL;

    remember(c, name_hash(&args[0]), parts_needed(args[3].number, args[4].number, exclusive));
}

void dibs__my_forecast_at(dibs__my_conn *c, size_t lock, const dibs__sql_value *cells)
{
    const dibs__sql_value *held = &cells[DIBS__SQL_RECORD_COLUMNS + DIBS__SQL_WHO_COLUMNS];
    unsigned needed =
        parts_needed(cells[2].number, cells[3].number, held->kind == DIBS__SQL_NUMBER);

    for (size_t i = 0; i < c->forecast_count; i++) {
        if (c->forecast[i].command == lock + 1) {
            c->forecast[i].needed = needed;
            remember(c, c->forecast[i].hash, needed);
        }
    }
}

static bool follows_lock(const dibs__sql_batch *b, size_t i)
{
    return i > 0 && b->command[i - 1].op == DIBS__SQL_LOCK;
}

static void add_forecast(dibs__my_conn *c, const dibs__sql_batch *b, size_t i)
{
    uint64_t hash = name_hash(dibs__sql_args(b, &b->command[i]));
    unsigned likely = recall(c, hash) & ~SEEN;
    part p = part_of(b, i);

    if (c->forecast_count == c->forecast_room) {
        size_t room = c->forecast_room ? c->forecast_room * 2 : 64;
        dibs__my_forecast *larger = realloc(c->forecast, room * sizeof *larger);
        if (!larger) {
            c->text.failed = true;
            return;
        }
        c->forecast = larger;
        c->forecast_room = room;
    }
    c->forecast[c->forecast_count++] = (dibs__my_forecast){i, hash, likely, 0};
    p.form = &dibs__my_look_holders;
    p.number = DIBS__MY_HOLDERS_HERE;
    if (likely & 1u << DIBS__MY_LOOK_HOLDERS)
        add_statements(c, p, ~0u);
    p.form = &dibs__my_look_waiters;
    p.number = DIBS__MY_WAITERS_HERE;
    if (likely & 1u << DIBS__MY_LOOK_WAITERS)
        add_statements(c, p, ~0u);
}

bool dibs__my_is_new(const dibs__my_conn *c, const dibs__sql_batch *b, size_t i)
{
    return b->command[i].op == DIBS__SQL_TAKE &&
           !(recall(c, name_hash(dibs__sql_args(b, &b->command[i]))) & SEEN);
}

/* A name that we have not met yet may have no row. */
static void add_row(dibs__my_conn *c, const dibs__sql_batch *b, size_t i)
{
    part p = {&dibs__my_forms[DIBS__SQL_MAKE],   0, i, DIBS__SQL_MAKE,
              dibs__sql_args(b, &b->command[i]), 1};

    add_part(c, &p);
    remember(c, name_hash(p.args), 0);
}

/* With the mark and the handle as further arguments. */
static void add_cell_wait(dibs__my_conn *c, const dibs__sql_batch *b, size_t i)
{
    part p = part_of(b, i);
    char mark[DIBS__WAKE_SIZE];
    dibs__sql_value args[] = {p.args[0],
                              p.args[1],
                              {.kind = DIBS__SQL_BYTES, .bytes = mark},
                              {.kind = DIBS__SQL_BYTES, .bytes = c->base.e->id}};

    dibs__my_cell_key(args[0].bytes, (uint64_t)args[1].number, mark);
    args[2].size = strlen(args[2].bytes);
    args[3].size = strlen(args[3].bytes);
    p.args = args;
    p.arg_count = sizeof args / sizeof args[0];
    add_statements(c, p, ~0u);
}

static void add_command(dibs__my_conn *c, const dibs__sql_batch *b, size_t i)
{
    if (dibs__my_is_new(c, b, i))
        add_row(c, b, i);
    if (b->command[i].op == DIBS__SQL_LOOK && follows_lock(b, i)) {
        add_forecast(c, b, i);
        return;
    }
    if (b->command[i].op == DIBS__SQL_CELL_WAIT) {
        add_cell_wait(c, b, i);
        return;
    }
    if (b->command[i].op == DIBS__SQL_SAVE)
        note_save(c, dibs__sql_args(b, &b->command[i]));
    add_parts(c, b, i, ~0u);
}

/* ---- Bells ----------------------------------------------------------------------------------- */

static bool rung_before(const dibs__sql_batch *b, size_t i)
{
    const dibs__sql_value *mine = dibs__sql_args(b, &b->command[i]);

    for (size_t k = 0; k < i; k++) {
        const dibs__sql_value *other = dibs__sql_args(b, &b->command[k]);
        if (b->command[k].op == DIBS__SQL_NOTIFY && other->size == mine->size &&
            memcmp(other->bytes, mine->bytes, mine->size) == 0)
            return true;
    }
    return false;
}

/* The sleeping connection of a handle holds the user lock that is named after the handle: so the
 * one that is killed is surely it. */
#define WAKE_SIGNAL(handle) \
    "KILL QUERY IS_USED_LOCK(CONCAT('" DIBS__MY_WAKE_SIGNAL "', " handle "))"

/* NULL: none. Our own handle needs none, and the server says that there is no such session. */
static const char *wake_signal(const dibs__my_conn *c, const dibs__sql_batch *b, size_t i)
{
    if (b->command[i].op == DIBS__SQL_NOTIFY && !rung_before(b, i))
        return WAKE_SIGNAL("$1");
    return b->command[i].op == DIBS__SQL_HAND && c->wakes ? WAKE_SIGNAL("NULLIF(@dibs_wake, $4)")
                                                          : NULL;
}

static void add_wake_signals(dibs__my_conn *c, const dibs__sql_batch *b, size_t from)
{
    for (size_t i = from; i < b->count; i++) {
        const char *pattern = wake_signal(c, b, i);
        if (pattern && begin_statement(c, i, DIBS__MY_NOTHING))
            dibs__my_add_pattern(&c->text, "", pattern, dibs__sql_args(b, &b->command[i]));
    }
}

/* The hand-over's message wakes the new holder's handle, if it is the only one in it: the variables have one name. */
static bool wakes_itself(const dibs__my_conn *c, const dibs__sql_batch *b)
{
    size_t hands = 0;

    for (size_t i = 0; i < b->count; i++)
        hands += b->command[i].op == DIBS__SQL_HAND;
    return hands == 1 && c->hands_out;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void begin_message(dibs__my_conn *c)
{
    c->text.length = c->count = 0;
}

/* Waiting for rows. InnoDB counts in whole seconds; MariaDB takes 0 for none at all, and bounds a statement by
 * the millisecond. That bound is lifted before a COMMIT, which must not be interrupted; so a bounded statement
 * does not commit by itself. Oracle's server has neither: there it is one second, always. */

static bool is_bounded(int ms)
{
    return ms > 0 && ms < DIBS__MY_ROW_MS;
}

/* What it should be, in ms. */
static int row_wait_of(const dibs__my_conn *c, const dibs__sql_batch *b)
{
    int64_t ms = c->base.row_wait / DIBS__MS;

    if (b->mode == DIBS__SQL_MORE || b->mode == DIBS__SQL_END)
        return c->row_wait;
    if (!c->mariadb || b->mode == DIBS__SQL_SNAPSHOT || ms > DIBS__MY_ROW_MS)
        return DIBS__MY_ROW_MS;
    return ms > 0 ? (int)ms : 0;
}

bool dibs__my_waits_right(const dibs__my_conn *c, const dibs__sql_batch *b)
{
    int ms = row_wait_of(c, b);

    return c->row_wait == ms && !is_bounded(ms);
}

static void add_row_wait(dibs__my_conn *c, int ms)
{
    char text[96];

    if (c->row_wait == ms)
        return;
    snprintf(text, sizeof text, "SET SESSION innodb_lock_wait_timeout = %d", ms > 0);
    if (c->mariadb) /* 0 is no bound */
        snprintf(text + strlen(text), sizeof text - strlen(text), ", max_statement_time = 0.%03d",
                 is_bounded(ms) ? ms : 0);
    add_own(c, text);
    c->row_wait = ms;
}

static void lift_bound(dibs__my_conn *c)
{
    if (!is_bounded(c->row_wait))
        return;
    add_own(c, "SET SESSION max_statement_time = 0");
    c->row_wait = DIBS__MY_ROW_MS;
}

/* One statement, alone, commits by itself. */
static bool is_alone(const dibs__my_conn *c, const dibs__sql_batch *b)
{
    return b->mode == DIBS__SQL_WHOLE && b->count == 1 && dibs__my_forms[b->command[0].op].alone &&
           !dibs__my_is_new(c, b, 0) && !is_bounded(row_wait_of(c, b));
}

size_t dibs__my_build(dibs__my_conn *c, const dibs__sql_batch *b)
{
    bool commits = b->mode != DIBS__SQL_BEGIN && b->mode != DIBS__SQL_MORE;
    bool alone = is_alone(c, b);
    size_t at;

    begin_message(c);
    c->open |= !alone;
    c->wakes = wakes_itself(c, b);
    c->forecast_count = 0;
    c->text.failed = b->failed;
    add_row_wait(c, row_wait_of(c, b));
    if (b->mode == DIBS__SQL_END)
        lift_bound(c);
    if (b->mode == DIBS__SQL_SNAPSHOT) {
        add_own(c, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
        add_own(c, "START TRANSACTION READ ONLY");
    } else if (b->mode == DIBS__SQL_BEGIN || (b->mode == DIBS__SQL_WHOLE && !alone)) {
        add_own(c, "START TRANSACTION");
    }
    for (size_t i = 0; i < b->count; i++)
        add_command(c, b, i);
    if (!commits)
        return SIZE_MAX;
    if (alone)
        return c->count - 1;
    lift_bound(c);
    at = c->count;
    add_own(c, "COMMIT");
    add_wake_signals(c, b, 0);
    return at;
}

bool dibs__my_build_looks(dibs__my_conn *c, const dibs__sql_batch *b)
{
    begin_message(c);
    for (size_t i = 0; i < c->forecast_count; i++)
        add_parts(c, b, c->forecast[i].command, c->forecast[i].needed & ~c->forecast[i].asked);
    return c->count > 0;
}

bool dibs__my_build_wake_signals(dibs__my_conn *c, const dibs__sql_batch *b, size_t from)
{
    begin_message(c);
    add_wake_signals(c, b, from);
    return c->count > 0;
}
