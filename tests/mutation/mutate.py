#!/usr/bin/env python3
"""Mutation testing of the state machine, the recipes and the part of the core that keeps promises: mutate.py --help

One build has every mutant behind a switch (sites.py, tree.py). The test programs run once without a mutant, which shows
which of them reach which site; then each mutant runs only those, the quickest first, until one fails. Results are kept
in BUILD/results.json: an interrupted run goes on where it was. Survivors that were judged are in survivors.json."""

import argparse
import concurrent.futures
import fnmatch
import json
import math
import os
import random
import shutil
import signal
import sys
import threading
import time

sys.dont_write_bytecode = True  # the tree stays as it is

from killers import PROGRAMS, QUICK, Killer, all_killers
from tree import HERE, ROOT, build, environment, make_tree

FILES = ['src/state/attempt.c', 'src/state/cell.c', 'src/state/lock.c', 'src/recipes/cell.c', 'src/recipes/counter.c',
         'src/recipes/fence.c', 'src/recipes/keys.c', 'src/recipes/many.c', 'src/recipes/once.c', 'src/recipes/record.c',
         'src/recipes/run.c', 'src/recipes/settle.c', 'src/recipes/token.c', 'src/recipes/once_state.c', 'src/recipes/finish.c',
         'src/core/grant.c', 'src/core/unlock.c', 'src/core/ticket.c', 'src/core/keeper.c', 'src/core/sink.c']


class Results:
    """What became of each mutant, by key. Saved every few seconds, and at the end."""

    def __init__(self, path):
        self.path, self.lock, self.saved = path, threading.Lock(), 0.0
        self.of = {}
        if os.path.exists(path):
            with open(path) as f:
                self.of = json.load(f)

    def find(self, mutant):
        known = self.of.get(mutant.key)
        return known if known and known['source'] == mutant.hash else None

    def note(self, mutant, result, by=None, how=None, quick=False):
        with self.lock:
            self.of[mutant.key] = {'result': result, 'by': by, 'how': how, 'quick': quick, 'line': mutant.line, 'source': mutant.hash}
            if time.monotonic() - self.saved > 5:
                self.save()

    def save(self):
        with open(self.path + '.new', 'w') as f:
            json.dump(self.of, f, indent=1, sort_keys=True)
        os.replace(self.path + '.new', self.path)
        self.saved = time.monotonic()


# ---- Which program reaches what

def load_coverage(path, mutants, quick):
    """The killers as an earlier run saw them, if the mutants are the same ones and no killer is missing."""
    if not os.path.exists(path):
        return None
    with open(path) as f:
        kept = json.load(f)
    programs = [k['command'] for k in kept['killers']]
    if kept['mutants'] != [m.key for m in mutants] or (kept['quick'] and not quick) or any(c not in programs and not Killer(c).timed for c in QUICK):
        return None
    killers = []
    for k in kept['killers']:
        killer = Killer(k['command'])
        killer.seconds, killer.work, killer.seen = k['seconds'], k['work'], bytes.fromhex(k['seen'])
        killers.append(killer)
    return killers


def record_coverage(path, mutants, folder, env, jobs, quick):
    killers = all_killers(folder, env, quick)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        wrongs = list(pool.map(lambda k: k.cover(folder, env, len(mutants)), killers))
    for killer, wrong in zip(killers, wrongs):
        if wrong and not killer.timed:
            raise SystemExit('mutate: %s fails without a mutant (%s): nothing can be said' % (killer.name, wrong))
        if wrong:
            print('left out, because it fails three times without a mutant (%s): %s' % (wrong, killer.name), flush=True)
    killers = [k for k, wrong in zip(killers, wrongs) if not wrong]
    with open(path, 'w') as f:
        json.dump({'mutants': [m.key for m in mutants], 'quick': quick,
                   'killers': [{'command': k.command, 'seconds': k.seconds, 'work': k.work, 'seen': k.seen.hex()}
                               for k in killers]}, f)
    return killers


def in_order(killers):
    """Quick ones that do not depend on real time first; the long ones last."""
    return sorted(killers, key=lambda k: (not k.quick, k.timed, k.work))


# ---- The work

def look_for(mutant, killers, folder, env, results, quick):
    reached = [k for k in killers if k.seen[mutant.number]]
    for killer in reached:
        if killer.quick or not quick:
            how = killer.kills(folder, env, mutant.number)
            if how:
                results.note(mutant, 'killed', killer.name, how)
                return
    results.note(mutant, 'survived' if reached else 'uncovered', quick=quick)
    print('%s %s' % ('survives: ' if reached else 'uncovered:', mutant), flush=True)


def run(chosen, killers, folder, env, results, args):
    done, began = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(look_for, m, killers, folder, env, results, args.quick) for m in chosen]
        try:
            for finished in concurrent.futures.as_completed(waiting):
                finished.result()
                done += 1
                if done % 100 == 0:
                    print('# %d of %d, %.0f s' % (done, len(chosen), time.monotonic() - began), flush=True)
        except KeyboardInterrupt:
            for w in waiting:
                w.cancel()
            print('mutate: stopped; the next run goes on from here', file=sys.stderr)
        finally:
            results.save()


# ---- What came of it

def interval(killed, of):
    """95 % confidence (Wilson)."""
    p, z = killed / of, 1.96
    middle = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return 100 * (middle - half), 100 * (middle + half)


def judge(mutants, results, equivalent):
    """Counts by file: all, run, killed, equivalent, survived, uncovered."""
    rows = {}
    for m in mutants:
        row = rows.setdefault(m.path, [0] * 6)
        row[0] += 1
        known = results.find(m)
        if known:
            row[1] += 1
            kinds = {'killed': 2, 'survived': 4, 'uncovered': 5}
            row[3 if known['result'] != 'killed' and m.key in equivalent else kinds[known['result']]] += 1
    return rows


def score(row):
    of = row[1] - row[3]
    if not of:
        return '-'
    text = '%.1f %%' % (100 * row[2] / of)
    return text if row[1] == row[0] else text + ' (sampled: %.1f to %.1f %%)' % interval(row[2], of)


def show(mutants, results, equivalent):
    rows = judge(mutants, results, equivalent)
    print('%-24s %8s %6s %7s %11s %9s %10s  %s' % ('file', 'mutants', 'run', 'killed', 'equivalent', 'survived', 'uncovered', 'score'))
    for path, row in list(rows.items()) + [('all', [sum(c) for c in zip(*rows.values())])]:
        print('%-24s %8d %6d %7d %11d %9d %10d  %s' % (path, *row, score(row)))
    for m in mutants:
        known = results.find(m)
        if known and known['result'] == 'killed' and m.key in equivalent:
            print('killed by %s, although survivors.json calls it equivalent: %s' % (known['by'], m))
    return sum(row[4] + row[5] for row in rows.values())


def show_gone(mutants, equivalent):
    """A name or an expression has changed: the entry excuses nothing any more, and its mutant counts as a survivor."""
    gone = sorted(set(equivalent) - {m.key for m in mutants})
    if gone:
        print('survivors.json names %d mutants that are gone:\n  %s' % (len(gone), '\n  '.join(gone)))
    return len(gone)


def arguments():
    parser = argparse.ArgumentParser(prog='./dev mutate', description='Mutation testing without any server.')
    parser.add_argument('patterns', nargs='*', help='files (patterns, for example "src/state/*"); default: all')
    parser.add_argument('--jobs', type=int, default=2, help='mutants side by side (2)')
    parser.add_argument('--sample', type=int, metavar='N', help='only N mutants, drawn by chance')
    parser.add_argument('--seed', type=int, default=1, help='for --sample (1)')
    parser.add_argument('--quick', action='store_true', help='only the programs that need no more than a second or two')
    parser.add_argument('--again', action='store_true', help='look for survivors of earlier runs again, with the tests of now')
    parser.add_argument('--only', metavar='TEXT', help='only mutants whose line in the listing contains TEXT, run again')
    parser.add_argument('--list', action='store_true', help='only print the mutants and the results so far')
    parser.add_argument('--folder', default=os.path.join(ROOT, 'build', 'mutation'), help='where to build (build/mutation)')
    parser.add_argument('--meson', default=shutil.which('meson'), help='the meson to build with')
    args = parser.parse_intermixed_args()
    if args.jobs < 1 or (args.sample is not None and args.sample < 1):
        parser.error('--jobs and --sample need a number above 0')
    return args


def is_open(known, args):
    if not known:
        return True
    return known['result'] != 'killed' and (args.again or (known['quick'] and not args.quick))


def choose(mutants, results, args):
    chosen = [m for m in mutants if not args.only or args.only in str(m)]
    if args.sample:
        chosen = random.Random(args.seed).sample(chosen, min(args.sample, len(chosen)))
    if args.only:
        return chosen
    return [m for m in chosen if is_open(results.find(m), args)]


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = os.path.abspath(args.folder)
    mutants = make_tree(folder, FILES)
    selected = [m for m in mutants if not args.patterns or any(fnmatch.fnmatch(m.path, p) for p in args.patterns)]
    if not selected:
        raise SystemExit('mutate: no file is called that; there are: ' + ', '.join(FILES))
    results = Results(os.path.join(folder, 'results.json'))
    with open(os.path.join(HERE, 'survivors.json')) as f:
        equivalent = json.load(f)
    if args.list:
        for m in selected:
            print('%-9s %s' % ((results.find(m) or {'result': '-'})['result'], m))
        return 0
    chosen = choose(selected, results, args)
    if chosen:
        built = build(folder, args.meson, PROGRAMS)
        env, kept = environment(built), os.path.join(folder, 'coverage.json')
        killers = None if args.again else load_coverage(kept, mutants, args.quick)
        killers = killers or record_coverage(kept, mutants, built, env, args.jobs, args.quick)
        run(chosen, in_order(killers), built, env, results, args)
    survivors, gone = show(selected, results, equivalent), show_gone(mutants, equivalent)
    return 1 if survivors or gone else 0


if __name__ == '__main__':
    sys.exit(main())
