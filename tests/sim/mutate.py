#!/usr/bin/env python3
"""Puts known faults into the library, one at a time, and lets the simulation look for them:
mutate.py BUILD [--seeds N] [--note] [PATTERN...]

Speaks TAP: a fault that no seed finds is a failure. Only the changed file is compiled again; BUILD has the rest.
seeds.json has a seed for each, which is tried first. It may find nothing any more when the library or the simulation has
changed; then all are searched, and --note writes down what was found."""

import argparse
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tree stays as it is

from known import KNOWN

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEEDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'seeds.json')
STRETCH = 100


def command_for(build, path):
    """How BUILD compiles that file for the library."""
    with open(os.path.join(build, 'compile_commands.json')) as f:
        for entry in json.load(f):
            if entry['output'].startswith('libdibs') and entry['file'].endswith(path):
                return shlex.split(entry['command'])
    raise SystemExit('%s: %s is not compiled there' % (build, path))


def link_command(build):
    lines = subprocess.run(['ninja', '-C', build, '-t', 'commands', 'tests/test_sim'],
                           capture_output=True, text=True, check=True).stdout.splitlines()
    return shlex.split(lines[-1])


def make(build, scratch, path, text):
    """A simulation with `text` in the place of that file. None: it does not compile."""
    source, program = os.path.join(scratch, 'changed.c'), os.path.join(scratch, 'test_sim')
    with open(source, 'w') as f:
        f.write(text)
    compile_it = command_for(build, path)
    compile_it[compile_it.index('-c') + 1] = source
    compile_it[compile_it.index('-MF') + 1] = source + '.d'
    compile_it[compile_it.index('-o') + 1] = source + '.o'
    compile_it += ['-Wno-error', '-w', '-I', os.path.join(ROOT, os.path.dirname(path))]
    link = link_command(build)
    link[link.index('-o') + 1] = program
    link.insert(link.index('libdibs.a'), source + '.o')
    for step in (compile_it, link + ['-Wl,--allow-multiple-definition']):
        done = subprocess.run(step, cwd=build, capture_output=True, text=True)
        if done.returncode != 0:
            print('# ' + done.stderr.replace('\n', '\n# '))
            return None
    return program


def find(program, noted, seeds):
    """(seed, what was wrong) of the noted seed or the first one that shows it, or None."""
    stretches = [(first, STRETCH) for first in range(1, seeds + 1, STRETCH)]
    for first, count in ([(noted, 1)] if noted else []) + stretches:
        out = subprocess.run([program, str(first), str(count)], capture_output=True, text=True).stdout
        found = re.search(r'^# seed (\d+): (.*)$', out, re.M)
        if found:
            return found.groups()
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('build')
    parser.add_argument('--seeds', type=int, default=12000)
    parser.add_argument('--note', action='store_true', help='write the seeds into seeds.json')
    parser.add_argument('patterns', nargs='*')
    args = parser.parse_intermixed_args()
    build = os.path.abspath(args.build)
    chosen = [k for k in KNOWN if not args.patterns or any(fnmatch.fnmatch(k[0], '*%s*' % p) for p in args.patterns)]
    with open(SEEDS) as f:
        noted = json.load(f)
    failed = 0
    print('1..%d' % len(chosen), flush=True)
    for number, (name, path, before, after) in enumerate(chosen, 1):
        with open(os.path.join(ROOT, path)) as f:
            text = f.read()
        found = None
        if text.count(before) != 1:
            print('# %s: what is to be changed is there %d times' % (path, text.count(before)))
        else:
            with tempfile.TemporaryDirectory(prefix='dibs-mutate-') as scratch:
                program = make(build, scratch, path, text.replace(before, after))
                found = find(program, noted.get(name), args.seeds) if program else None
        if found:
            noted[name] = int(found[0])
            print('# seed %s: %s' % found)
        print('%s %d - %s' % ('ok' if found else 'not ok', number, name), flush=True)
        failed += not found
    if args.note:
        with open(SEEDS, 'w') as f:
            json.dump({k[0]: noted[k[0]] for k in KNOWN if k[0] in noted}, f, indent=1)
            f.write('\n')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
