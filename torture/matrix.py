#!/usr/bin/env python3
"""Runs `dibs torture` on private servers of every engine under every fault, and publishes what was seen:
docs/guarantees.json, and from it docs/guarantees.md and docs/guarantees.html.

Exit code: 0 nothing that is promised was violated, 1 something was (or a cell could not be run), 64 wrong usage,
69 it is not built."""

import argparse
import ctypes
import functools
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import sys
import time

sys.dont_write_bytecode = True
import cell as cells  # noqa: E402: nothing is written beside the sources
import faults  # noqa: E402
import network  # noqa: E402
import peers  # noqa: E402
import publish  # noqa: E402

ROOT = os.path.normpath(os.path.join(cells.HERE, os.pardir))
PR_SET_PDEATHSIG = 1
WITHOUT_ROOT = 'sqlite', 'redis', 'postgresql', 'mysql', 'zookeeper', 'etcd'


def names(text, known, what, parser):
    chosen = text.split(',')
    for name in chosen:
        if name not in known:
            parser.error('unknown %s %r; known: %s' % (what, name, ', '.join(known)))
    return chosen


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(64, 'matrix: %s (--help lists the options)\n' % message)


def read_options(argv):
    p = Parser(prog='matrix', description=__doc__.split('\n\n')[0])
    p.add_argument('--build', default=os.path.join(ROOT, 'build'), help='the build folder (default: build)')
    p.add_argument('--seconds', type=int, default=20, help='for each engine and fault (default 20)')
    p.add_argument('--per-engine', type=int, default=0, metavar='SECONDS',
                   help='at least this long for each engine: its runs are made longer')
    p.add_argument('--engines', help='only these, separated by commas')
    p.add_argument('--faults', help='only these, separated by commas')
    p.add_argument('--quick', action='store_true',
                   help='one run with a mixture of faults for each engine (default 15 s); writes no documents')
    p.add_argument('--jobs', type=int, default=2, help='engines side by side (default 2)')
    p.add_argument('--peers', choices=('yes', 'no', 'only'), default='yes', help='other lock libraries too (default yes)')
    p.add_argument('--seed', type=int, help='of the first run (default: random)')
    p.add_argument('--keep', metavar='FOLDER', help='keep every history there, not only those with violations')
    p.add_argument('--archive', metavar='FOLDER', help='write every history there as ENGINE-FAULT.tar.xz')
    p.add_argument('--output', metavar='FOLDER', help='where the documents go (default: docs, none with --quick). Cells '
                   'that were not run keep what an earlier run wrote')
    p.add_argument('--list', action='store_true', help='list the faults')
    options = p.parse_args(argv)
    options.engines = names(options.engines, [*faults.ALL, *faults.COUNTED], 'engine', p) if options.engines else list(faults.ALL)
    options.faults = names(options.faults, list(faults.BY_NAME), 'fault', p) if options.faults else list(faults.BY_NAME)
    if options.quick and '--seconds' not in ' '.join(argv):
        options.seconds = 15
    if options.seconds < 11:
        p.error('--seconds: at least 11, so that a fault fits before the last, calm part')
    if options.quick and options.output:
        p.error('--quick writes no documents: leave --output out')
    if options.jobs < 1:
        p.error('--jobs: at least 1')
    if options.output is None and not options.quick:
        options.output = os.path.join(ROOT, 'docs')
    return options


def find_programs(options):
    options.build = os.path.abspath(options.build)
    options.keep = options.keep and os.path.abspath(options.keep)
    options.archive = options.archive and os.path.abspath(options.archive)
    options.dibs = os.path.join(options.build, 'src/cli/dibs')
    options.router = os.path.join(options.build, 'torture/router')
    options.clock = os.path.join(options.build, 'torture/libtorture-clock.so')
    for path in (options.dibs, options.router, options.clock):
        if not os.path.exists(path):
            print('matrix: %s is missing: build with -Dtests=true (./dev torture does)' % path, file=sys.stderr)
            sys.exit(69)


def plan(options):
    """{engine or peer: [cells]}"""
    table = {}
    for engine in options.engines if options.peers != 'only' else []:
        if options.plain and engine not in WITHOUT_ROOT:
            continue
        possible = [n for n in options.faults if engine in faults.BY_NAME[n].engines
                    and not (options.plain and faults.BY_NAME[n].needs_root())]
        if options.quick:
            mixed = [n for n in faults.MIXED[engine] if n in possible]
            table[engine] = [cells.Cell(engine, mixed, options.seconds, title='mixed')] if mixed else []
        else:
            seconds = max(options.seconds, -(-options.per_engine // max(len(possible), 1)))
            table[engine] = [cells.Cell(engine, [n], seconds) for n in possible]
    if options.peers != 'no' and not options.quick:
        table.update(peers.plan(options))
    return {name: row for name, row in table.items() if row}


def end_in_order():
    """At the first SIGTERM; a second one must not disturb that."""
    def end(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(1)
    signal.signal(signal.SIGTERM, end)


# ---- One engine, in a process of its own ------------------------------------------------------------------------

def run_row(row, options, seed, out):
    """Its servers die with this process, and this process with its parent."""
    end_in_order()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells us
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        bench = cells.Bench(row[0].engine, options)
    except OSError as e:
        for cell in row:
            out.send(cells.without_result(cell, str(e)))
        return
    try:
        for number, cell in enumerate(row):
            out.send(cells.run(bench, cell, seed + number))
    finally:
        bench.stop()


def line(result, done, count):
    name = result['engine'] if result['lock'] == 'dibs' else result['lock']
    head = '[%3d/%d] %-11s %-19s' % (done, count, name, result['fault'])
    if 'error' in result:
        return '%s FAILED: %s' % (head, result['error'])
    text = '%s %3.0f s %7d operations %5d grants' % (head, result['seconds'], result['total_operations'], result['grants'])
    text += '  unfenced lost %d, fenced lost %d' % (result['plain_losses'], result['fenced_losses'])
    for what, row in result.get('promotions', {}).items():
        text += '\n          %s: %d, a grant of each lock after %s ms (median %s ms)' % (
            what if what == 'promotion' else 'end of a quiet period', row['count'], row['worst_ms'], row['median_ms'])
    if result['expected']:
        text += '  not promised: ' + publish.counted(result['expected'])
    if result['broken']:
        text += '  %s: %s' % ('VIOLATED' if result['lock'] == 'dibs' else 'violated', publish.counted(result['broken']))
        text += ''.join('\n          ' + what for what in result['found'][:3])
    return text + ('\n          history: %s' % result['history'] if cells.failed(result) and 'history' in result else '')


class Run:
    """Rows side by side. Ends them in order when it is ended itself."""

    def __init__(self, table, options, seed):
        self.waiting, self.options, self.seed = list(table.items()), options, seed
        self.count = sum(map(len, table.values()))
        self.going, self.results = {}, []
        self.say = functools.partial(print, flush=True)

    def start_some(self):
        while self.waiting and len(self.going) < self.options.jobs:
            _, row = self.waiting.pop(0)
            ours, theirs = multiprocessing.Pipe(False)
            child = multiprocessing.Process(target=run_row, args=(row, self.options, self.seed, theirs))
            child.start()
            theirs.close()
            self.going[ours] = child

    def take(self, pipe):
        try:
            result = pipe.recv()
        except EOFError:
            self.going.pop(pipe).join()
            return
        self.results.append(result)
        self.say(line(result, len(self.results), self.count))

    def run(self):
        try:
            self.start_some()
            while self.going:
                for pipe in multiprocessing.connection.wait(list(self.going)):
                    self.take(pipe)
                self.start_some()
        finally:
            for child in self.going.values():
                child.terminate()
            for child in self.going.values():
                child.join()


def close(results, count):
    bad = [r for r in results if cells.failed(r)]
    print('%d of %d cells run, %d operations: %s' % (
        len(results), count, sum(r.get('total_operations', 0) for r in results),
        'nothing that is promised was violated' if not bad and len(results) == count else
        'NOT KEPT: ' + ', '.join('%s %s' % (r['engine'], r['fault']) for r in bad) if bad else 'some cells were not run'))
    return 1 if bad or len(results) != count else 0


def main(argv):
    options = read_options(argv)
    if options.list:
        for f in faults.FAULTS:
            print('%-19s %s (%s)' % (f.name, f.title, ', '.join(f.engines)))
        return 0
    find_programs(options)
    network.sweep()
    try:
        network.check()
        options.plain = False
    except network.Unavailable as e:
        options.plain = True
        print('matrix: %s; only faults of clients are run, on servers of the loopback' % e, file=sys.stderr)
    table = plan(options)
    seed = options.seed if options.seed is not None else random.randrange(1 << 31)
    run = Run(table, options, seed)
    print('%d cells of %d s, %d side by side, seed %d' % (run.count, options.seconds, options.jobs, seed), flush=True)
    end_in_order()
    try:
        run.run()
    except KeyboardInterrupt:
        print('matrix: interrupted', file=sys.stderr)
        return 130
    finally:  # what was seen until then is as true
        if options.output and run.results:
            publish.write(options.output, run.results, time.strftime('%Y-%m-%d'))
    return close(run.results, run.count)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
