#!/usr/bin/env python3
"""Runs a test program in JavaScript that drives Debian's Chromium: run.py --build FOLDER --dibs PATH PROGRAM.js

Installs playwright-core into FOLDER first, as package-lock.json says. Speaks TAP: Node's own test runner prints it. If the
browser, Node or npm is missing, the program is skipped; with $CI or $DIBS_TEST_REQUIRE_SERVERS that is a failure."""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MANIFESTS = ('package.json', 'package-lock.json')
CHROMIUM = '/usr/bin/chromium'


class Missing(Exception):
    """The tests cannot run here; the text says why."""


def read(path):
    with open(path, 'rb') as f:
        return f.read()


def is_installed(folder):
    """npm writes node_modules/.package-lock.json when it has succeeded."""
    copies = [os.path.join(folder, manifest) for manifest in MANIFESTS]
    return os.path.exists(os.path.join(folder, 'node_modules', '.package-lock.json')) and all(
        os.path.exists(copy) and read(copy) == read(os.path.join(HERE, manifest)) for copy, manifest in zip(copies, MANIFESTS))


def install(folder):
    """Another program may install at the same moment: one at a time."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, 'lock'), 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed(folder):
            return
        for manifest in MANIFESTS:
            shutil.copy(os.path.join(HERE, manifest), folder)
        done = subprocess.run(['npm', 'ci', '--ignore-scripts', '--no-audit', '--no-fund', '--prefix', folder],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True)
        if done.returncode != 0:
            os.remove(os.path.join(folder, MANIFESTS[0]))
            raise Missing('npm cannot install playwright-core: ' + ' '.join(done.stdout.split())[:400])


def prepare(folder):
    for program, package in ((CHROMIUM, 'chromium'), ('node', 'nodejs'), ('npm', 'npm')):
        if not shutil.which(program):
            raise Missing(package + ' is not installed')
    install(folder)


def main():
    parser = argparse.ArgumentParser(description='Browser tests')
    parser.add_argument('--build', required=True, help='where playwright-core is installed')
    parser.add_argument('--dibs', required=True, help='the command')
    parser.add_argument('program', help='a file beside this one')
    parser.add_argument('pattern', nargs='?', help='only tests whose name matches this')
    args = parser.parse_args()
    try:
        prepare(args.build)
    except Missing as e:
        if os.environ.get('CI') or os.environ.get('DIBS_TEST_REQUIRE_SERVERS'):
            print('1..1\n# %s\nnot ok 1 - %s' % (e, os.path.basename(args.program)))
            return 1
        print('1..0 # skip %s' % e)
        return 0
    # What a browser that was killed still writes does not matter.
    with tempfile.TemporaryDirectory(prefix='dibs-browser-', ignore_cleanup_errors=True) as scratch:
        env = dict(os.environ, NODE_PATH=os.path.join(args.build, 'node_modules'), TMPDIR=scratch, HOME=scratch,
                   DIBS=os.path.abspath(args.dibs), DIBS_CHROMIUM=CHROMIUM)
        only = ['--test-name-pattern=' + args.pattern] if args.pattern else []
        node = subprocess.Popen(['node', '--test-reporter=tap', *only, os.path.join(HERE, args.program)], env=env)
        signal.signal(signal.SIGTERM, lambda *_: node.terminate())  # which ends what it has started
        return 0 if node.wait() == 0 else 1


if __name__ == '__main__':
    sys.exit(main())
