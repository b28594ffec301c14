#!/usr/bin/env python3
"""The runner tested: fake programs that pass, fail, crash, hang, lie or say nothing. A runner that is
green for any of the bad ones would hide every other test."""

import json
import os
import stat
import subprocess
import sys
import tempfile

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'run.py')

# name, script, exit code of the runner, closing line, and a text that must be shown
CASES = [
    ('good', 'echo 1..2; echo ok 1 - a; echo ok 2 - b', 0, '2 passed, 0 failed, 0 skipped', ''),
    ('plan at the end', 'echo ok 1 - a; echo 1..1', 0, '1 passed, 0 failed, 0 skipped', ''),
    ('bad', 'echo 1..2; echo "# why it is bad"; echo not ok 1 - a; echo ok 2 - b; exit 1', 1,
     '1 passed, 1 failed, 0 skipped', 'why it is bad'),
    ('bad but exits 0', 'echo 1..1; echo not ok 1 - a', 1, '0 passed, 1 failed, 0 skipped', 'not ok 1'),
    ('good but exits 3', 'echo 1..1; echo ok 1 - a; exit 3', 1, '1 passed, 1 failed, 0 skipped', 'exited with 3'),
    ('skip', 'echo 1..1; echo "ok 1 - a # SKIP no server"', 0, '0 passed, 0 failed, 1 skipped', ''),
    ('skip as cmocka says it', 'echo 1..1; echo "not ok 1 # SKIP a"', 0, '0 passed, 0 failed, 1 skipped', ''),
    ('skip of everything', 'echo "1..0 # SKIP no server"', 0, '0 passed, 0 failed, 1 skipped', 'no server'),
    ('crash', 'echo 1..2; echo ok 1 - a; kill -SEGV $$', 1, '1 passed, 1 failed, 0 skipped', 'SIGSEGV'),
    ('crash after the last test', 'echo 1..1; echo ok 1 - a; kill -ABRT $$', 1,
     '1 passed, 1 failed, 0 skipped', 'SIGABRT'),
    ('hang', 'echo 1..1; echo ok 1 - a; sleep 1000', 1, '1 passed, 1 failed, 0 skipped', 'hung'),
    ('hang with a child', 'echo 1..1; sleep 1000 & sleep 1000', 1, '0 passed, 1 failed, 0 skipped', 'hung'),
    ('a stray process keeps its output', 'echo 1..1; setsid sleep 4 & echo ok 1', 0,
     '1 passed, 0 failed, 0 skipped', ''),
    ('fewer than planned', 'echo 1..3; echo ok 1 - a', 1, '1 passed, 1 failed, 0 skipped', 'planned 3'),
    ('more than planned', 'echo 1..1; echo ok 1 - a; echo ok 2 - b', 1,
     '2 passed, 1 failed, 0 skipped', 'planned 1'),
    ('silent', 'exit 0', 1, '0 passed, 1 failed, 0 skipped', 'no TAP plan'),
    ('nothing planned', 'echo 1..0', 1, '0 passed, 1 failed, 0 skipped', 'no test'),
]


def write_program(folder, name, script):
    path = os.path.join(folder, name)
    with open(path, 'w') as f:
        f.write('#!/bin/sh\n' + script + '\n')
    os.chmod(path, stat.S_IRWXU)
    return path


def make_build(folder, programs):
    os.mkdir(os.path.join(folder, 'meson-info'))
    tests = [{'name': name, 'cmd': [write_program(folder, 'p%d' % i, script)], 'env': {}, 'timeout': 2,
              'suite': ['dibs:c'], 'is_parallel': i % 2 == 0, 'workdir': None}
             for i, (name, script) in enumerate(programs)]
    with open(os.path.join(folder, 'meson-info', 'intro-tests.json'), 'w') as f:
        json.dump(tests, f)


def run(folder, *args):
    done = subprocess.run([sys.executable, RUNNER, folder, *args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, timeout=60)
    return done.returncode, done.stdout


def last_line(text):
    return text.rstrip('\n').split('\n')[-1]


def check_case(name, script, code, closing, shown):
    with tempfile.TemporaryDirectory() as folder:
        make_build(folder, [(name, script)])
        got, text = run(folder)
        return got == code and last_line(text) == closing and shown in text, text


def check_all_at_once():
    with tempfile.TemporaryDirectory() as folder:
        make_build(folder, [(c[0], c[1]) for c in CASES if 'hang' not in c[0] and 'stray' not in c[0]])
        code, text = run(folder)
        return code == 1 and last_line(text) == '10 passed, 9 failed, 3 skipped', text


def check_selection():
    with tempfile.TemporaryDirectory() as folder:
        make_build(folder, [('one', 'echo 1..1; echo ok 1'), ('two', 'exit 1')])
        code, text = run(folder, 'one')
        none, _ = run(folder, 'three')
        return code == 0 and none != 0 and last_line(text) == '1 passed, 0 failed, 0 skipped', text


def check_wrapper():
    with tempfile.TemporaryDirectory() as folder:
        make_build(folder, [('one', 'echo 1..1; echo ok 1')])
        code, text = run(folder, '--wrapper', 'false')
        return code == 1 and last_line(text) == '0 passed, 1 failed, 0 skipped', text


def check_sanitizer_report():
    with tempfile.TemporaryDirectory() as folder:
        make_build(folder, [('one', 'echo 1..1; echo ok 1; echo a race > %s/report.7; exit 99' % folder)])
        code, text = run(folder)
        return code == 1 and 'a race' in text, text


UNSTEADY = 'echo 1..1; test -e %s && echo ok 1 && exit; touch %s; '


def check_second_chance():
    with tempfile.TemporaryDirectory() as folder:
        mark = os.path.join(folder, 'mark')
        make_build(folder, [('one', UNSTEADY % (mark, mark) + 'echo "# why"; echo not ok 1; exit 1')])
        code, text = run(folder, '--second-chance')
        os.unlink(mark)
        without, _ = run(folder)
        good = code == 0 and last_line(text) == '1 passed, 0 failed, 0 skipped'
        return good and without == 1 and '# why' in text and 'UNSTEADY: passed only alone: one' in text, text


def check_leaks_of_a_failed_test():
    """They are no finding of their own: the second run, in which nothing fails, shows what leaks."""
    with tempfile.TemporaryDirectory() as folder:
        mark = os.path.join(folder, 'mark')
        leak = 'echo "ERROR: LeakSanitizer: leaks" > %s/report.$$; ' % folder
        make_build(folder, [('one', UNSTEADY % (mark, mark) + leak + 'echo not ok 1; exit 1')])
        code, text = run(folder, '--second-chance')
        left = [name for name in os.listdir(folder) if name.startswith('report.')]
        always = 'echo 1..1; if test -e %s; then echo ok 1; %s exit 23; fi; touch %s; echo not ok 1; exit 1' % (mark, leak, mark)
        os.unlink(mark)
        write_program(folder, 'p0', always)
        twice, said = run(folder, '--second-chance')
        return code == 0 and not left and twice == 1 and 'LeakSanitizer' in said, text + said


def check_no_second_chance():
    """For what is a fault however it ends: failing twice, crashing, a sanitizer's finding."""
    with tempfile.TemporaryDirectory() as folder:
        mark = os.path.join(folder, 'mark')
        found = 'echo not ok 1; echo a race > %s/report.7; exit 1' % folder
        make_build(folder, [('twice', 'echo 1..1; echo not ok 1; exit 1'),
                            ('crash', UNSTEADY % (mark + 'c', mark + 'c') + 'kill -SEGV $$'),
                            ('finding', UNSTEADY % (mark + 'f', mark + 'f') + found)])
        code, text = run(folder, '--second-chance')
        return code == 1 and last_line(text) == '0 passed, 3 failed, 0 skipped', text


def check_tally():
    with tempfile.TemporaryDirectory() as folder:
        make_build(folder, [('one', 'echo 1..1; echo ok 1'), ('two', 'echo 1..1; echo not ok 1')])
        path = os.path.join(folder, 'tally')
        first, _ = run(folder, 'two', '--tally', path)
        second, text = run(folder, '--tally', path, 'one')
        return first == 1 and second == 0 and last_line(text) == '1 passed, 1 failed, 0 skipped', text


def main():
    checks = [(c[0], lambda c=c: check_case(*c)) for c in CASES]
    checks += [('all at once', check_all_at_once), ('selection', check_selection),
               ('wrapper', check_wrapper), ('tally', check_tally), ('sanitizer', check_sanitizer_report),
               ('second chance', check_second_chance), ('leaks of a failed test', check_leaks_of_a_failed_test),
               ('no second chance', check_no_second_chance)]
    bad = 0
    print('1..%d' % len(checks))
    for i, (name, check) in enumerate(checks, 1):
        good, text = check()
        bad += not good
        print('\n'.join('# ' + line for line in text.splitlines()) if not good else '# ' + last_line(text))
        print('%s %d - the runner and a program: %s' % ('ok' if good else 'not ok', i, name))
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
