"""Forty processes that add to one file."""

import os

from harness import DATABASES, ENGINES, ENSEMBLES, HERE, Process, read, test

PROCESSES, ROUNDS = 40, 50


def add_up(t, prefix):
    """Every process adds ROUNDS times; what the file says in the end."""
    path = t.path('number')
    with open(path, 'w') as f:
        f.write('0\n')
    line = '%s sh %s %s' % (prefix, os.path.join(HERE, 'add.sh'), path)
    script = 'i=0; while [ $i -lt %d ]; do %s || exit 1; i=$((i + 1)); done' % (ROUNDS, line)
    started = [Process(['sh', '-c', script], t.folder, env=t.env) for _ in range(PROCESSES)]
    t.started += started
    codes = {p.wait(240) for p in started}
    assert codes <= {0} or prefix == '', (codes, [p.err for p in started if p.popen.returncode][:3])
    text = read(path).strip()
    return int(text) if text else 0


@test(*ENGINES, 'redlock', *DATABASES, *ENSEMBLES)
def forty_processes_fifty_rounds(t):
    assert add_up(t, t.dibs + ' run count --') == PROCESSES * ROUNDS


@test()
def without_dibs_updates_are_lost(t):
    total = add_up(t, '')
    assert total < PROCESSES * ROUNDS, 'no update was lost: this test proves nothing'
