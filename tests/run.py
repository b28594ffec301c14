#!/usr/bin/env python3
"""Runs the test programs of a build directory and closes with `N passed, N failed, N skipped`.

Every program speaks TAP. What there is to run comes from what meson wrote into the build directory
(a meson.build of the tests declares it). Programs that may run beside others run a few at a time (--jobs), those that may
take longest first; then the others, alone.
It is a failure when a program crashes, hangs, exits non-zero, tests nothing, or runs other than the
number of tests that it planned: none of these is ever taken for a pass.

With --second-chance a program whose tests failed runs once more, alone, at the end: a bound that broke
because neighbours took the machine is told apart from a fault. Both runs are shown, and such a program is
named again before the closing line. A crash, a hang or a sanitizer's finding gets no second chance.
"""

import argparse
import concurrent.futures
import fnmatch
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

TEST_LINE = re.compile(r'^(not ok|ok)\b\s*(\d+)?\s*(?:-\s*)?(.*)$')
PLAN_LINE = re.compile(r'^1\.\.(\d+)\s*(?:#\s*skip\b\s*(.*))?$', re.IGNORECASE)
SKIP_MARK = re.compile(r'#\s*SKIP\b', re.IGNORECASE)
SHOWN_LINES = 120


class Outcome:
    """What one program came to: counts, and what to show of it."""

    def __init__(self, name):
        self.name = name
        self.passed = self.failed = self.skipped = 0
        self.seconds = 0.0
        self.notes = []
        self.final = False  # whatever a second run said

    def fail(self, note):
        self.failed += 1
        self.notes.append(note)


def read_tap(text, outcome):
    """Counts the tests in `text`. A failed test is shown with what was said before and after its line;
    what was said elsewhere is returned."""
    planned, seen, around, rest, failed = None, 0, [], [], None
    for line in text.splitlines() + ['ok']:
        plan, test = PLAN_LINE.match(line), TEST_LINE.match(line)
        if plan:
            planned = (planned or 0) + int(plan.group(1))
            if plan.group(1) == '0' and plan.group(2) is not None:
                outcome.skipped += 1
                outcome.notes.append('skipped: ' + plan.group(2))
        elif not test:
            around.append(line)
        else:
            if failed:
                outcome.fail('\n'.join(failed + around[-SHOWN_LINES:]))
                around = []
            failed = None
            seen += 1
            if SKIP_MARK.search(line):  # cmocka writes "not ok 3 # SKIP name"
                outcome.skipped += 1
            elif test.group(1) == 'ok':
                outcome.passed += 1
            else:
                failed = around[-SHOWN_LINES:] + [line]
            rest += around
            around = []
    outcome.passed -= 1  # the "ok" that closes the loop
    return planned, seen - 1, rest


def judge(text, code, timed_out, limit, outcome):
    """Fills in the counts; whatever does not add up is one more failure."""
    planned, seen, rest = read_tap(text, outcome)
    tail = '\n'.join(rest[-SHOWN_LINES:])
    outcome.final = timed_out or code < 0 or planned is None or (code != 0 and outcome.failed == 0)
    if timed_out:
        outcome.fail('hung: ended after %d s\n%s' % (limit, tail))
    elif code < 0:
        outcome.fail('crashed: %s\n%s' % (signal_name(-code), tail))
    elif planned is None:
        outcome.fail('no TAP plan (1..N); exit code %d\n%s' % (code, tail))
    elif planned != seen:
        outcome.fail('planned %d tests and ran %d; exit code %d\n%s' % (planned, seen, code, tail))
    elif code != 0 and outcome.failed == 0:
        outcome.fail('every test passed, yet it exited with %d\n%s' % (code, tail))
    if outcome.passed + outcome.failed + outcome.skipped == 0:
        outcome.fail('it ran no test')


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return 'signal %d' % number


def end_group(process):
    """A hung program may have started others: the whole group goes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def sanitizer_reports(build, since):
    """What sanitizers wrote into files of the build directory while a program ran."""
    text = ''
    for path in sorted(glob.glob(os.path.join(build, 'report.*'))):
        if os.path.getmtime(path) >= since - 0.1:  # file times come from a coarser clock
            with open(path, errors='replace') as f:
                text += '\n'.join(f.read().splitlines()[:SHOWN_LINES]) + '\n'
    return text


def forget_leaks(build, pid):
    """A test that fails leaves what it had behind: its program's leaks say nothing more."""
    path = os.path.join(build, 'report.%d' % pid)
    if os.path.exists(path):
        with open(path, errors='replace') as f:
            errors = [line for line in f if 'ERROR: ' in line or 'runtime error: ' in line]
        if errors and all('ERROR: LeakSanitizer' in line for line in errors):
            os.remove(path)


def run_program(test, wrapper, scale, build):
    """Runs one program in a process group of its own."""
    outcome = Outcome(test['name'])
    env = dict(os.environ, **test.get('env', {}))
    limit = test['timeout'] * scale
    command = wrapper + test['cmd'] if 'c' in suites(test) else test['cmd']
    start, since = time.monotonic(), time.time()
    with tempfile.TemporaryFile() as output:  # not a pipe: a stray grandchild would keep it open
        try:
            process = subprocess.Popen(command, env=env, cwd=test.get('workdir') or None,
                                       stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as e:
            outcome.fail('cannot be started: %s' % e)
            return outcome
        timed_out = False
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            timed_out = True
        end_group(process)
        process.wait()
        output.seek(0)
        text = output.read().decode('utf-8', 'replace')
    outcome.seconds = time.monotonic() - start
    judge(text, process.returncode, timed_out, limit, outcome)
    if outcome.failed and not outcome.final:
        forget_leaks(build, process.pid)
    if outcome.failed and sanitizer_reports(build, since):
        outcome.notes.append(sanitizer_reports(build, since))
        outcome.final = True
    return outcome


def suites(test):
    return [s.split(':')[-1] for s in test.get('suite', [])]


def load(build):
    path = os.path.join(build, 'meson-info', 'intro-tests.json')
    try:
        with open(path) as f:
            return json.load(f)
    except OSError as e:
        sys.exit('run.py: %s is not a build directory with tests (%s): '
                 'make one with: meson setup -Dtests=true BUILD' % (build, e))


def select(tests, only, skip, kind):
    chosen = [t for t in tests
              if (not kind or kind in suites(t))
              and (not only or any(fnmatch.fnmatch(t['name'], p) for p in only))
              and not any(fnmatch.fnmatch(t['name'], p) for p in skip)]
    if not chosen:
        sys.exit('run.py: no test program is called that; there are: '
                 + ', '.join(t['name'] for t in tests))
    return chosen


def show(outcome):
    state = 'FAILED ' if outcome.failed else 'ok     '
    print('%s%-28s %4d passed %3d failed %3d skipped %7.1f s'
          % (state, outcome.name, outcome.passed, outcome.failed, outcome.skipped, outcome.seconds))
    for note in outcome.notes:
        print('    ' + note.replace('\n', '\n    '))
    sys.stdout.flush()


def run_all(tests, jobs, wrapper, scale, build):
    """In parallel what may, then the rest one by one; yields each outcome as it is there."""
    together = sorted((t for t in tests if t.get('is_parallel', True)), key=lambda t: -t['timeout'])
    alone = [t for t in tests if not t.get('is_parallel', True)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in concurrent.futures.as_completed(
                [pool.submit(run_program, t, wrapper, scale, build) for t in together]):
            yield done.result()
    for t in alone:
        yield run_program(t, wrapper, scale, build)


def run_again(failed, wrapper, scale, build):
    """The second run of each, alone. Returns the outcomes that count, and who needed it to pass."""
    outcomes, unsteady = [], []
    for test, first in failed:
        second = first if first.final else run_program(test, wrapper, scale, build)
        if second is not first:
            print('again, alone:')
            show(second)
            if not second.failed:
                unsteady.append(test['name'])
        outcomes.append(second)
    return outcomes, unsteady


def tally(path, counts):
    """Adds earlier runs' counts from `path` and keeps the sum there, so that several runs close as one."""
    if path and os.path.exists(path):
        with open(path) as f:
            counts = [a + b for a, b in zip(counts, json.load(f))]
    if path:
        with open(path, 'w') as f:
            json.dump(counts, f)
    return counts


def main():
    parser = argparse.ArgumentParser(description='Runs the test programs of a build directory.')
    parser.add_argument('build', help='a meson build directory made with -Dtests=true')
    parser.add_argument('only', nargs='*', help='names (or patterns) of programs; default: all')
    parser.add_argument('--skip', action='append', default=[], metavar='NAME', help='leave this out')
    parser.add_argument('--kind', choices=['c', 'script', 'quick', 'unit'],
                        help='only C programs, only scripts, only what ./dev test --quick runs, or only tests/unit')
    parser.add_argument('--jobs', type=int, default=4, help='programs side by side')
    parser.add_argument('--wrapper', default='', help='put before every C program, e.g. "valgrind -q"')
    parser.add_argument('--slow', type=int, default=1, metavar='N', help='multiply the time limits')
    parser.add_argument('--second-chance', action='store_true', help='a failed program runs again, alone')
    parser.add_argument('--tally', metavar='FILE', help='add the counts of earlier runs in FILE')
    parser.add_argument('--list', action='store_true', help='only name the programs')
    args = parser.parse_intermixed_args()

    tests = select(load(args.build), args.only, args.skip, args.kind)
    if args.list:
        print('\n'.join(t['name'] for t in tests))
        return 0
    wrapper, unsteady = shlex.split(args.wrapper), []
    outcomes = []
    for outcome in run_all(tests, args.jobs, wrapper, args.slow, args.build):
        show(outcome)
        outcomes.append(outcome)
    if args.second_chance:
        failed = [(t, o) for o in outcomes if o.failed for t in tests if t['name'] == o.name]
        again, unsteady = run_again(failed, wrapper, args.slow, args.build)
        outcomes = [o for o in outcomes if not o.failed] + again
    counts = [sum(o.passed for o in outcomes), sum(o.failed for o in outcomes),
              sum(o.skipped for o in outcomes)]
    failed_here = counts[1]
    if unsteady:
        print('UNSTEADY: passed only alone: ' + ', '.join(unsteady))
    print('%d passed, %d failed, %d skipped' % tuple(tally(args.tally, counts)))
    return 1 if failed_here else 0


if __name__ == '__main__':
    sys.exit(main())
