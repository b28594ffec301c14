"""Runs the tests that modules have declared with harness.test: PROGRAM --dibs PATH [--part P] [--list] [PATTERN...]

Speaks TAP. Servers are private, on free ports; everything lives in scratch folders that are removed."""

import argparse
import fnmatch
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

import harness


def must_have_servers():
    return bool(os.environ.get('CI') or os.environ.get('DIBS_TEST_REQUIRE_SERVERS'))


def run_one(make, function, *place):
    """(word of the TAP line, remark, diagnostics)"""
    context = None
    try:
        context = make(*place)
        function(context)
        context.finish()
        return 'ok', '', ''
    except harness.Skip as e:
        return ('not ok', '', str(e)) if must_have_servers() else ('ok', ' # SKIP %s' % e, '')
    except Exception:  # whatever it is, it is this test's failure and not the run's end
        errors = [p.err.decode(errors='replace') for p in context.started[-4:]] if context else []
        return 'not ok', '', traceback.format_exc() + ''.join('stderr: ' + e for e in errors if e)
    finally:
        if context:
            context.close()


def run_all(make, tests, dibs, scratch):
    failed = 0
    servers = harness.Servers(scratch)
    try:
        for number, (name, function, engine) in enumerate(tests, 1):
            folder = tempfile.mkdtemp(prefix='t%d-' % number, dir=scratch)
            start = time.monotonic()
            word, remark, notes = run_one(make, function, dibs, engine, servers, folder)
            for line in notes.splitlines():
                print('# ' + line)
            print('# %.1f s' % (time.monotonic() - start))
            print('%s %d - %s%s' % (word, number, name, remark), flush=True)
            failed += word != 'ok'
    finally:
        servers.stop()
    return failed


def main(title, parts, make=harness.Context):
    """`parts` has the modules of each part; make(dibs, engine, servers, folder) is a test's context."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument('--dibs', required=True)
    parser.add_argument('--part', choices=parts)
    parser.add_argument('--list', action='store_true')
    parser.add_argument('patterns', nargs='*')
    args = parser.parse_args()
    modules = [m.__name__ for part, group in parts.items() if args.part in (None, part) for m in group]
    tests = [t for t in harness.TESTS
             if t[1].__module__ in modules
             and (not args.patterns or any(fnmatch.fnmatch(t[0], '*%s*' % p) for p in args.patterns))]
    if args.list:
        print('\n'.join(t[0] for t in tests))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for number in (signal.SIGHUP, signal.SIGQUIT):  # nohup's, a background shell's: passed on to what is tested
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print('1..%d' % len(tests), flush=True)
    scratch = tempfile.mkdtemp(prefix='dibs-tests-')
    try:
        return 1 if run_all(make, tests, os.path.abspath(args.dibs), scratch) else 0
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
