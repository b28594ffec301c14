#!/usr/bin/env python3
"""Does the mutator work? It changes sample.c, which tests itself. Speaks TAP."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the tree stays as it is

try:
    from sites import instrument
except ImportError as e:
    print('1..0 # SKIP no libclang for Python (python3-clang-14): %s' % e)
    sys.exit(0)
from killers import PROGRAMS, Killer
from mutate import FILES
from tree import ARGS, ROOT

sys.path.append(os.path.join(ROOT, 'scripts'))
import coverage  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
KILLED = ['note `body` -> `return at once`', 'note `calls++` -> `calls--`', 'clamp `n < LIMIT` -> `n >= LIMIT`',
          'is_between `n >= low && n <= high` -> `(n >= low) || (n <= high)`',
          'is_between `n >= low && n <= high` -> `n <= high`', 'is_between `n >= low` -> `n > low`',
          'sum_up `note()` -> `(void)0`', 'sum_up `i < count` -> `i <= count`',
          'sum_up `sum += numbers[i]` -> `sum -= numbers[i]`', 'sum_up `0` -> `1`', 'spell `at++` -> `at--`', 'spell `0101` -> `32`', 'sum_up `body` -> `return 0 at once`']
HANGS = 'drain `n--` -> `n++`'
EQUIVALENT = 'clamp `n < LIMIT` -> `n <= LIMIT`'
FUNCTIONS = {'note', 'clamp', 'is_between', 'sum_up', 'drain', 'spell', 'never_called', 'main'}
UNCOVERED = 'never_called `n + 1` -> `n - 1`'


def build(folder):
    """The instrumented sample as folder/tests/sample. Returns its mutants by key, without the file's name."""
    path = os.path.join(HERE, 'sample.c')
    with open(path) as f:
        text, mutants = instrument(path, f.read(), [], 1, 'sample.c')
    os.makedirs(os.path.join(folder, 'tests'))
    with open(os.path.join(folder, 'sample.c'), 'w') as f:
        f.write(text)
    subprocess.run(['cc', '-w', '-I', HERE, '-DDIBS__MUTANTS=%d' % (len(mutants) + 1), '-o',
                    os.path.join(folder, 'tests', 'sample'), os.path.join(folder, 'sample.c'),
                    os.path.join(HERE, 'mutant.c')], check=True)
    return {m.key.split(' ', 1)[1]: m.number for m in mutants}


def missing_programs():
    """Of those that ./dev mutate and ./dev coverage build, the ones that no meson.build of the tests declares."""
    declared = ''.join(path.read_text() for path in pathlib.Path(ROOT, 'tests').rglob('meson.build'))
    return [p for p in PROGRAMS + coverage.PROGRAMS if "['%s'," % p not in declared]


def stale_survivors():
    """Entries of survivors.json that name no mutant: a function or an expression has another name now."""
    keys, here = set(), os.getcwd()
    os.chdir(ROOT)
    try:
        for path in FILES:
            with open(path, encoding='latin-1') as f:
                keys.update(m.key for m in instrument(path, f.read(), ARGS, 1)[1])
    finally:
        os.chdir(here)
    with open(os.path.join(HERE, 'survivors.json')) as f:
        gone = [key for key in json.load(f) if key not in keys]
    print(''.join('# survivors.json: no such mutant: %s\n' % key for key in gone), end='')
    return gone


def wait_for(code):
    """What comes of a program that does this for a while. Ten times as often looked at as in earnest."""
    killer = Killer(['sample'])
    killer.interval = 0.2
    process = subprocess.Popen([sys.executable, '-c', 'import time\nend = time.monotonic() + 3\n' + code])
    try:
        return killer.wait(process, 30)
    finally:
        process.kill()
        process.wait()


def main():
    with tempfile.TemporaryDirectory(prefix='dibs-mutator-') as folder:
        mutants = build(folder)
        killer = Killer(['sample'])
        results = [('it passes without a mutant', killer.cover(folder, {}, len(mutants)) == 0)]
        results += [('killed: ' + key, key in mutants and bool(killer.kills(folder, {}, mutants[key])))
                    for key in KILLED]
        results += [('survives: ' + EQUIVALENT, killer.kills(folder, {}, mutants[EQUIVALENT]) == 0),
                    ('what is reached is marked', killer.seen[mutants[EQUIVALENT]] == 1),
                    ('what nobody calls is not', killer.seen[mutants[UNCOVERED]] == 0),
                    ('macros are left alone', not any(k.startswith(('clamp `2', 'clamp `1', 'clamp `LIMIT')) for k in mutants)),
                    ('so is what stands outside of functions', {k.split()[0] for k in mutants} == FUNCTIONS)]
        results.append(('every program that is to be run exists', not missing_programs()))
        results.append(('every survivor that is excused is a mutant', not stale_survivors()))
        killer.patience = 1
        results.append(('a hang is a kill: ' + HANGS, bool(killer.kills(folder, {}, mutants[HANGS]))))
    results += [('so is one that sleeps', wait_for('time.sleep(60)') is None),
                ('what works is waited for', wait_for('while time.monotonic() < end: pass') == 0)]
    print('1..%d' % len(results))
    for number, (name, good) in enumerate(results, 1):
        print('%s %d - %s' % ('ok' if good else 'not ok', number, name.replace('#', '')))
    return 0 if all(good for _, good in results) else 1


if __name__ == '__main__':
    sys.exit(main())
