#!/usr/bin/env python3
"""Lines of src/calls, src/core, src/recipes and src/state that the tests without a server run: coverage.py BUILD [--lines] [PATTERN...]

BUILD is a build folder with -Db_coverage=true. Runs the programs below, asks gcov, and prints a line per file and per
folder, and which lines no test has run. Exits with 1 when a folder is below the goal."""

import argparse
import collections
import fnmatch
import glob
import json
import os
import subprocess
import sys

FOLDERS = ['src/calls', 'src/core', 'src/state', 'src/recipes']
TESTS = ['test_state', 'test_cell', 'test_cell_store', 'test_cell_model', 'test_record', 'test_sim', 'test_driver', 'test_reader', 'test_answer',
         'test_url', 'test_dial', 'test_error', 'test_host', 'test_sweep-memory', 'test_keeper', 'test_losses', 'test_fence', 'test_grant',
         'test_ticket', 'test_wait', 'test_unlock', 'test_sink', 'test_schedule',
         'test_conformance-memory', 'test_conformance-sqlite', 'test_conformance-redis']
PROGRAMS = sorted({t.split('-')[0] for t in TESTS})
HELPERS = ['tests/support/holder']  # of test_conformance: a process that holds a lock
GOAL = 95.0
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def count(build, scratch):
    """By file, by line: how often it ran. Both libraries are made of the same objects."""
    names = ['libdibs.*.p/%s_*.gcno' % folder.replace('/', '_') for folder in FOLDERS]
    lines = collections.defaultdict(lambda: collections.defaultdict(int))
    for notes in sorted(sum((glob.glob(os.path.join(build, n)) for n in names), [])):
        out = subprocess.run(['gcov', '--json-format', '--stdout', notes], cwd=scratch, capture_output=True, check=True).stdout
        for text in filter(None, out.split(b'\n')):
            for part in json.loads(text)['files']:
                path = os.path.relpath(os.path.join(build, part['file']), ROOT)
                for line in part['lines']:
                    lines[path][line['line_number']] += line['count']
    return lines


def ranges(numbers):
    """[1, 2, 3, 7] is '1-3, 7'."""
    out = []
    for n in sorted(numbers):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ', '.join('%d' % a if a == b else '%d-%d' % (a, b) for a, b in out)


def show(lines, patterns, with_text):
    """Returns the folders that are below the goal."""
    low = []
    for folder in FOLDERS:
        all_lines = run_lines = 0
        for path in sorted(p for p in lines if os.path.dirname(p) == folder and p.endswith('.c')):
            missed = [n for n, times in lines[path].items() if times == 0]
            total = len(lines[path])
            all_lines, run_lines = all_lines + total, run_lines + total - len(missed)
            if patterns and not any(fnmatch.fnmatch(path, p) for p in patterns):
                continue
            print('%-28s %5d of %5d %6.1f %%  %s' % (path, total - len(missed), total, 100 * (total - len(missed)) / total,
                                                   'not run: ' + ranges(missed) if missed else ''))
            if with_text and missed:
                with open(os.path.join(ROOT, path)) as f:
                    text = f.readlines()
                print(''.join('    %4d %s' % (n, text[n - 1]) for n in sorted(missed)), end='')
        percent = 100 * run_lines / all_lines
        print('%-28s %5d of %5d %6.1f %%' % (folder, run_lines, all_lines, percent))
        low += [folder] if percent < GOAL else []
    return low


def main():
    parser = argparse.ArgumentParser(prog='./dev coverage', description=__doc__.split('\n')[0])
    parser.add_argument('build')
    parser.add_argument('patterns', nargs='*', help='files to print (patterns); default: all')
    parser.add_argument('--lines', action='store_true', help='print the text of the lines that were not run')
    parser.add_argument('--programs', action='store_true', help='only print what must be built')
    parser.add_argument('--report', action='store_true', help='run nothing: report on what ran before')
    args = parser.parse_intermixed_args()
    if args.programs:
        print(' '.join(['tests/' + p for p in PROGRAMS] + HELPERS))
        return 0
    build = os.path.abspath(args.build)
    failed = False
    if not args.report:
        for old in glob.glob(os.path.join(build, '**', '*.gcda'), recursive=True):
            os.unlink(old)
        failed = subprocess.run([sys.executable, os.path.join(ROOT, 'tests', 'run.py'), build, '--slow', '5'] + TESTS).returncode != 0
    lines = count(build, build)
    if not lines:
        raise SystemExit('coverage: %s has no notes of gcov: make it with -Db_coverage=true' % args.build)
    low = show(lines, args.patterns, args.lines)
    for folder in low:
        print('%s: less than %.0f %% of the lines' % (folder, GOAL))
    return 1 if low or failed else 0


if __name__ == '__main__':
    sys.exit(main())
