"""Faults that lock libraries have had, ours among them, as changes of a line or two: (name, file, from, to).

tests/sim/mutate.py puts each of them into the library, alone, and the simulation must find it."""

LOCK = 'src/state/lock.c'
TICKET = 'src/core/ticket.c'
GRANT = 'src/core/grant.c'
ONCE = 'src/recipes/once.c'
WORK = 'src/recipes/finish.c'
RUN = 'src/recipes/run.c'
CELL = 'src/state/cell.c'

KNOWN = [
    ('a renewal makes a lost entry anew', LOCK,
     '    else\n        reply_missing(&m, fence, out);\n    return failed < 0 ? -1 : end(&m);',
     '''    else if (fence) {
        dibs__asker who = {.weight = m.record.capacity, .lease = lease};
        strcpy(who.owner, owner);
        strcpy(who.attempt, attempt);
        failed = grant(&m, &who, now.lease + lease, &h) < 0 ? -1 : reply_granted(&m, &h, out);
    } else
        reply_missing(&m, fence, out);
    return failed < 0 ? -1 : end(&m);'''),
    ('a dead head of the queue keeps its place', LOCK,
     'if (w.alive_until <= m->now.lease) {\n            failed = drop_waiter(m, &w);',
     'if (w.alive_until <= m->now.lease) {\n            return 0;'),
    ('an older attempt takes over from a newer one', 'src/state/attempt.c', ': DIBS__OLDER;', ': DIBS__NEWER;'),
    ('a release frees what another attempt holds', LOCK,
     '} else if (strcmp(h.who.attempt, attempt) != 0) {', '} else if (false) {'),
    ('a cancel frees what another attempt holds', LOCK,
     '''    if (holds && strcmp(h.who.attempt, attempt) == 0)
        failed = drop_holder(&m, &h) < 0 || serve_queue''',
     '''    if (holds)
        failed = drop_holder(&m, &h) < 0 || serve_queue'''),
    ('who shares is let in beside one who does not', LOCK, 'if (!rival && m->record.waiters == 0 && fits(&m->record, who->weight)) {',
     'if (!rival && m->record.waiters == 0 && (who->weight == 1 || fits(&m->record, who->weight))) {'),
    ('the fence of a lock goes back', LOCK,
     'm->record.fence = m->record.fence + 1 > clock ? m->record.fence + 1 : clock;',
     'm->record.fence = clock - clock % 2000000;'),
    ('the lease counts from the answer', TICKET,
     'dibs__deadline deadline = dibs__deadline_of(sent, reply->remaining, g->lease);\n    int64_t now = dibs__now(g->d->env);',
     'int64_t now = dibs__now(g->d->env);\n    dibs__deadline deadline = dibs__deadline_of(now, reply->remaining, g->lease);'),
    ('a renewed lease counts from the answer', GRANT,
     'set_deadline(g, dibs__deadline_of(sent, reply->remaining, g->lease));',
     'set_deadline(g, dibs__deadline_of(dibs__now(g->d->env), reply->remaining, g->lease));'),
    ('clocks are taken to run at the same rate', GRANT,
     'return sent + remaining - at_most(lease / 100 + 5 * DIBS__MS, lease / 10);', 'return sent + remaining + lease * 0;'),
    ('a late renewal brings back what was lost', GRANT, '} else if (!dibs_grant_held(g)) {', '} else if (g->state != DIBS__HELD) {'),
    ('a hand-over counts from its arrival', TICKET,
     'deadline = dibs__deadline_of(t->alive, 0, t->window);', 'deadline = dibs__deadline_of(now + t->window, 0, t->window);'),
    ('a hand-over to an entry that is over is believed', TICKET, 'if (t->unsure || deadline - now', 'if (deadline - now'),
    ('a begin takes its own run for a crash', ONCE,
     ': strcmp(r->crashed, o->mine.attempt) == 0;', ': false;'),
    ('a hand-over before the answer is forgotten', TICKET, '    if (t->handed)\n', '    if (t->handed && t->window == 0)\n'),
    ('a loss is told to nobody', GRANT, '    dibs__news_add(d, &g->news);', '    (void)d;'),
    ('a finish overwrites the result of the next runner', RUN,
     '.version = o->version, .stamp = stamp};', '.version = DIBS__CELL_ANY, .stamp = stamp};'),
    ('a begin without an answer is left behind', WORK, 'if (o->maybe_there && !o->d->closing) {',
     'if (o->maybe_there && !o->d->closing && !o->key[0]) {'),
    ('a take-over that came to nothing forgets the crash', WORK, 'if (!o->took_over || left <= 0)', 'if (!o->took_over || left != 0)'),
    ('a begin that was answered too late stays begun', ONCE, 'o->maybe_there = !ours;', 'o->maybe_there = false;'),
    ('a runner that is alive is taken for dead', ONCE, 'return o->age < r->lease ? say_running', 'return o->age < r->lease / 3 ? say_running'),
    ('a key that was given back becomes absent', 'src/recipes/record.c',
     '    if (r->state == DIBS__RUN_FREE)\n        return DAY;', '    if (r->state == DIBS__RUN_FREE)\n        return 1;'),
    ('two are told that they counted', 'src/state/cell.c',
     'say(w, w->there && had_it(w) ? DIBS__CELL_DONE : DIBS__CELL_ALREADY);', 'say(w, DIBS__CELL_DONE);'),
    ('a request counts each time', 'src/state/cell.c', '    if (found > 0) {\n        say(w, w->there', '    if (found > 2) {\n        say(w, w->there'),
    ('a token can be redeemed twice', 'src/recipes/token.c', '        .version = version,', '        .version = version ? DIBS__CELL_ANY : 0,'),
    ('one who shares keeps others who share out', LOCK,
     'return (uint64_t)r->used + weight <= r->capacity;', 'return r->used == 0 && weight <= r->capacity;'),
    ('a release of one who shares frees all', LOCK, 'm->record.used -= h->who.weight;', 'm->record.used = 0;'),
    ('a semaphore has one slot too many', LOCK,
     'return (uint64_t)r->used + weight <= r->capacity;',
     'return (uint64_t)r->used + weight <= r->capacity + (r->capacity < DIBS__PLAIN);'),
    ('a semaphore has one slot too few', LOCK,
     'return (uint64_t)r->used + weight <= r->capacity;',
     'return (uint64_t)r->used + weight + (r->capacity < DIBS__PLAIN) <= r->capacity;'),
    ('a waiter for several slots is served when one is free', LOCK,
     'failed = fits(&m->record, w.who.weight) ?', 'failed = fits(&m->record, 1) ?'),
    ('the floor is not the lowest fence', LOCK,
     'if (found > 0 && oldest.fence < *out)', 'if (found > 0 && oldest.fence > *out)'),
    ('a renewal takes the own fence for the floor', GRANT, 'g->floor = reply->floor;', 'g->floor = g->fence;'),
    ('a lock that was unlocked goes on being renewed', 'src/core/keeper.c',
     """    status = g->release_it ? d->class->release(d->engine, &claim, until, &reply, NULL)
                           : d->class->cancel(d->engine, &claim, until, NULL);""",
     """    claim.lease = g->lease;
    d->class->keep(d->engine, (dibs__claim *[]){&claim}, 1, until);
    g->give_up = DIBS__NEVER;
    status = DIBS_UNKNOWN;"""),
    ('a write under a fence does not raise the floor', CELL, '    mark(w);\n    raise_floor(w);\n', '    mark(w);\n'),
    ('the lowest number takes a counter below zero', CELL,
     'else if (change < 0 && had + change < 0)', 'else if (change < 0 && change != INT64_MIN && had + change < 0)'),
    ('an attempt for several that failed keeps others out for min_hold', 'src/core/lock.c',
     '    if (g->delivered)\n        dibs__grant_orphan', '    if (g->delivered || g->min_hold)\n        dibs__grant_orphan'),
    ('several are handed out, and one of them was lost', 'src/recipes/many.c',
     '        if (grant_at(m, i)->state != DIBS__HELD)', '        if (grant_at(m, i)->state == DIBS__WAITING)'),
    ('an unlock does not wait for the callback of its loss', 'src/core/keeper_task.c', '    if (n->calling) {', '    if (false) {'),
    ('a shared attempt that was given up stands in the way of its own owner', LOCK,
     """        if (drop_holder(m, mine) < 0 || serve_queue(m) < 0)
            return -1;
        found = find_holder""", """        out->verdict = DIBS__MISMATCH;
        out->capacity = m->record.capacity;
        return 0;
        found = find_holder"""),
]
