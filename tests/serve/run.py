#!/usr/bin/env python3
"""Tests of `dibs serve`, with real servers and engines: run.py --dibs PATH [--part P] [--list] [PATTERN...]

Speaks TAP. Every JSON answer that a test gets is checked against the server's own /openapi.json."""

import argparse
import fnmatch
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True  # the tree stays as it is

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, '..', 'cli'))
import harness  # noqa: E402
import server  # noqa: E402
import test_http_bad  # noqa: E402
import test_http_documents  # noqa: E402
import test_http_faults  # noqa: E402
import test_http_locks  # noqa: E402
import test_http_many  # noqa: E402
import test_http_once  # noqa: E402
import test_http_security  # noqa: E402
import test_http_values  # noqa: E402

PARTS = {
    'api': (test_http_locks, test_http_once, test_http_values, test_http_documents),
    'bad': (test_http_bad, test_http_security),
    'faults': (test_http_faults, test_http_many),
}


def must_have_servers():
    return bool(os.environ.get('CI') or os.environ.get('DIBS_TEST_REQUIRE_SERVERS'))


def run_one(function, engine, dibs, servers, folder):
    """(word of the TAP line, remark, diagnostics)"""
    context = None
    try:
        context = server.Context(dibs, engine, servers, folder)
        function(context)
        context.check_servers()
        return 'ok', '', ''
    except harness.Skip as e:
        return ('not ok', '', str(e)) if must_have_servers() else ('ok', ' # SKIP %s' % e, '')
    except Exception:  # whatever it is, it is this test's failure and not the run's end
        errors = [p.err.decode(errors='replace') for p in context.started[-4:]] if context else []
        return 'not ok', '', traceback.format_exc() + ''.join('stderr: ' + e for e in errors if e)
    finally:
        if context:
            context.close()


def run_all(tests, dibs, scratch):
    failed = 0
    servers = harness.Servers(scratch)
    try:
        for number, (name, function, engine) in enumerate(tests, 1):
            folder = tempfile.mkdtemp(prefix='t%d-' % number, dir=scratch)
            start = time.monotonic()
            word, remark, notes = run_one(function, engine, dibs, servers, folder)
            for line in notes.splitlines():
                print('# ' + line)
            print('# %.1f s' % (time.monotonic() - start))
            print('%s %d - %s%s' % (word, number, name, remark), flush=True)
            failed += word != 'ok'
    finally:
        servers.stop()
    return failed


def main():
    parser = argparse.ArgumentParser(description='tests of dibs serve')
    parser.add_argument('--dibs', required=True)
    parser.add_argument('--part', choices=PARTS)
    parser.add_argument('--list', action='store_true')
    parser.add_argument('patterns', nargs='*')
    args = parser.parse_args()
    modules = [m.__name__ for part, group in PARTS.items() if args.part in (None, part) for m in group]
    tests = [t for t in harness.TESTS
             if t[1].__module__ in modules
             and (not args.patterns or any(fnmatch.fnmatch(t[0], '*%s*' % p) for p in args.patterns))]
    if args.list:
        print('\n'.join(t[0] for t in tests))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print('1..%d' % len(tests), flush=True)
    scratch = tempfile.mkdtemp(prefix='dibs-serve-')
    try:
        return 1 if run_all(tests, os.path.abspath(args.dibs), scratch) else 0
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
