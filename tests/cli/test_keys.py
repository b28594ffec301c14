"""`dibs once ls|show|forget|resolve`: keys of once, for operators."""

import json

from harness import DATABASES, ENGINES, ENSEMBLES, test

ALL = (*ENGINES, *DATABASES, *ENSEMBLES)


def listed(t, *arguments):
    code, out, err = t.run('once', 'ls', '--json', *arguments)
    assert code == 0, err
    return {(key['scope'], key['key']): key for key in json.loads(out)['keys']}


def shown(t, *arguments):
    code, out, err = t.run('once', 'show', '--json', *arguments)
    assert code == 0, err
    return json.loads(out)


def crash(t, key, *options):
    assert t.run('once', *options, key, '--', 'sh', '-c', 'kill -9 $$')[0] == 137


@test(*ALL)
def keys_are_listed_and_shown(t):
    assert listed(t) == {}, 'a store that was never used'
    assert t.run('once', 'a', '--', 'echo', 'x')[0] == 0
    assert t.run('once', '--scope', 'pay', 'a', '--on-fail', 'keep', '--', 'sh', '-c', 'exit 3')[0] == 3
    crash(t, 'b')
    keys = listed(t)
    assert {name: key['state'] for name, key in keys.items()} == {
        ('', 'a'): 'done', ('', 'b'): 'crashed', ('pay', 'a'): 'failed'}, keys
    assert keys['', 'a']['result_size'] == 2 and keys['pay', 'a']['code'] == 3
    assert list(listed(t, '--state', 'crashed,running')) == [('', 'b')]
    assert list(listed(t, '--scope', 'pay')) == [('pay', 'a')]
    assert sorted(listed(t, 'a')) == [('', 'a'), ('pay', 'a')], 'by prefix'
    assert len(listed(t, '--limit', '2')) == 2
    key = shown(t, 'a')
    assert key['result'] == 'x\n' and key['runs'] == 1 and key['runner']['pid'] > 0 and key['decided_by'] is None, key
    code, out, _ = t.run('once', 'show', '--scope', 'pay', 'a')
    assert code == 0 and b'state:   failed' in out and b'code 3' in out, out
    code, out, _ = t.run('once', 'ls')
    assert code == 0 and len(out.splitlines()) == 4, out
    code, out, err = t.run('once', 'show', 'none')
    assert code == 1 and out == b'' and b'not used' in err, err


@test(*ENGINES)
def a_forgotten_key_is_run_again(t):
    assert t.run('once', 'a', '--', 'echo', '1')[1] == b'1\n'
    version = shown(t, 'a')['version']
    assert t.run('once', 'forget', 'a', '--version', str(version - 1))[0] == 1, 'changed since'
    assert t.run('once', 'a', '--', 'echo', '2')[1] == b'1\n'
    code, out, _ = t.run('once', 'forget', 'a', '--version', str(version), '--by', 'alice', '--json')
    assert code == 0 and json.loads(out) == {'scope': '', 'key': 'a', 'state': 'free', 'by': 'alice'}, out
    assert listed(t) == {} and listed(t, '--state', 'free')['', 'a']['decided_by'] == 'alice'
    assert t.run('once', 'a', '--', 'echo', '2')[1] == b'2\n'
    assert t.run('once', 'forget', 'none')[0] == 1


@test(*ENGINES)
def a_run_in_progress_is_forgotten_only_on_demand(t):
    process = t.start('once', '--lease', '2s', 'a', '--', *t.worker('old'))
    t.wait_started('old')
    code, _, err = t.run('once', 'forget', 'a')
    assert code == 75 and b'in progress' in err, err
    assert listed(t)['', 'a']['state'] == 'running'
    assert t.run('once', 'forget', '--running', 'a')[0] == 0
    assert t.run('once', 'a', '--', 'echo', 'new')[1] == b'new\n'
    assert process.wait(20) == 76, 'its run was lost'
    assert t.run('once', 'a', '--', 'false')[1] == b'new\n'


@test(*ENGINES)
def a_crash_is_resolved(t):
    for outcome, again in (('done', (4, b'paid', b'')), ('failed', (4, b'paid', b''))):
        crash(t, outcome)
        assert t.run('once', outcome, '--', 'true')[0] == 79
        assert t.run('once', 'resolve', outcome, outcome, '--result', 'paid', '--code', '4') == (0, b'', b'')
        assert t.run('once', outcome, '--', 'true') == again
        assert '@' in shown(t, outcome)['decided_by'], 'user@host'
    crash(t, 'free')
    assert t.run('once', 'resolve', 'free', 'free')[0] == 0
    assert t.run('once', 'free', '--', 'echo', 'x')[1] == b'x\n'
    code, _, err = t.run('once', 'resolve', 'free', 'done')
    assert code == 1 and b'is done, and not crashed' in err, err


@test('sqlite')
def keys_may_be_called_like_a_subcommand(t):
    for key in ('ls', 'show', 'forget', 'resolve', '-x'):
        dash = ('--',) if key[0] == '-' else ()
        assert t.run('once', *dash, key, '--', 'echo', key)[1] == key.encode() + b'\n'
        assert shown(t, *dash, key)['result'] == key + '\n'
        assert t.run('once', 'forget', *dash, key)[0] == 0
        assert shown(t, *dash, key)['state'] == 'free'


@test('sqlite')
def misuse_of_keys(t):
    for arguments, hint in ((('ls', 'a', 'b'), b'takes [PREFIX]'), (('show',), b'takes KEY'),
                            (('ls', '--state', 'dead'), b"invalid --state 'dead'"),
                            (('show', '--running', 'a'), b'does not accept --running'),
                            (('resolve', 'a'), b'takes KEY OUTCOME'),
                            (('resolve', 'a', 'running'), b"invalid OUTCOME 'running'"),
                            (('resolve', 'a', 'free', '--code', '1'), b'for done and failed'),
                            (('order', 'ls'), b"no '--' between"), (('ls', '--code', '1'), b'does not accept --code')):
        code, out, err = t.run('once', *arguments)
        assert code == 64 and out == b'' and hint in err, (arguments, err)
