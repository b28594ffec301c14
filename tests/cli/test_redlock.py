"""The command on five independent nodes."""

import os
import time

from harness import test, wait_for


@test('redlock')
def show_has_the_state_of_each_node(t):
    holder = t.start('run', 'job', '--', *t.worker('a', 'seconds=30'))
    wait_for(lambda: t.held_by('job'), 'a holder')
    lock = t.lock('job')
    assert len(lock['notes']) == 5, lock
    assert sum('voted for' in note for note in lock['notes']) >= 3, lock
    code, out, _ = t.run('show', 'job')
    assert code == 0 and b'note:    node 1 of 5' in out, out
    holder.signal(15)


@test('redlock')
def never_two_commands_of_one_owner(t):
    """The nodes keep no queue, so the first is not asked to stop: the second waits until it is done."""
    old = t.start('run', '--owner', 'me', 'twice', '--', *t.worker('old', 'seconds=1.5'))
    t.wait_started('old')
    code, _, err = t.run('run', '--owner', 'me', '--no-wait', 'twice', '--', *t.worker('try'))
    assert code == 75, err
    new = t.start('run', '--owner', 'me', 'twice', '--', *t.worker('next', 'seconds=0.2'))
    assert (old.wait(), new.wait()) == (0, 0), (old.err, new.err)
    assert t.last_log_time('old') < t.started_at('next')[0]
    assert int(t.started_at('next')[4]) > int(t.started_at('old')[4])
    assert not t.started_at('try')


@test('redlock')
def what_it_cannot_do_has_a_reason(t):
    for option in (('--shared',), ('--slots', '3')):
        code, _, err = t.run('run', *option, 'job', '--', 'true')
        assert code == 64 and b'redlock: no' in err and len(err) > 60, (option, code, err)


@test('redlock')
def keys_and_values_are_refused_with_the_reason(t):
    """They would need consensus. A command that is not run once is not run at all."""
    for verb, *words in (('once', 'key', '--', 'touch', t.path('ran')), ('token issue',), ('token redeem', 'x'),
                         ('token reissue', 'x'), ('counter get', 'n'), ('counter set', 'n', '1'),
                         ('counter add', 'n', '1'), ('counter take', 'n'), ('cell get', 'c'),
                         ('cell put', 'c', 'value'), ('cell delete', 'c')):
        for more in ((), ('--json',)):
            code, out, err = t.run(*verb.split(), *more, *words)
            assert code == 64 and out == b'', (verb, code, out)
            assert err.count(b'\n') == 1 and err.startswith(b'dibs: redlock: ') and b'consensus' in err, (verb, err)
    assert not os.path.exists(t.path('ran'))


@test('redlock')
def without_a_majority_it_exits_69(t):
    """The last test on these nodes: three of them are gone afterwards."""
    for node in t.server.nodes[:3]:
        node.kill()
    start = time.monotonic()
    code, _, err = t.run('run', '--wait', '2s', 'job', '--', 'true')
    assert code == 69, (code, err)
    assert b'2 of 5 nodes answer, and 3 are needed' in err, err
    t.note('refused after %.1f s', time.monotonic() - start)
    assert time.monotonic() - start < 15
