"""`dibs token`, `dibs counter` and `dibs cell`: spent once, never below zero, changed only if still as read."""

import json
import time

from harness import DATABASES, ENGINES, ENSEMBLES, PYTHON, Process, test, wait_for

ALL = (*ENGINES, *DATABASES, *ENSEMBLES)


def issue(t, *args):
    code, out, err = t.run('token', 'issue', *args)
    assert code == 0 and err == b'', (code, err)
    token = out.decode()
    assert token.endswith('\n') and token.count('\n') == 1 and token[:-1].isprintable() and ' ' not in token
    assert 20 <= len(token) < 64
    return token[:-1]


def number(t, *args, code=0):
    got, out, err = t.run('counter', *args)
    assert got == code, (args, got, out, err)
    return int(out) if code == 0 else (out, err)


# ---- Tokens -----------------------------------------------------------------------------------------------------


@test(*ALL)
def token_is_redeemed_once(t):
    token = issue(t, '--scope', 'checkout')
    for args in ((token,), ('--scope', 'other', token)):
        code, out, err = t.run('token', 'redeem', *args)
        assert code == 77 and out == b'' and err.count(b'\n') == 1, (args, code, err)
    assert t.run('token', 'redeem', '--scope', 'checkout', token) == (0, b'', b''), 'that did not spend it'
    code, out, err = t.run('token', 'redeem', '--scope', 'checkout', token)
    assert code == 77 and out == b'' and err.startswith(b'dibs: ')
    assert len({issue(t) for _ in range(5)}) == 5


@test(*ALL)
def many_redeem_and_one_wins(t):
    for _ in range(3):
        token = issue(t)
        crowd = [t.start('token', 'redeem', token) for _ in range(64)]
        codes = sorted(p.wait(60) for p in crowd)
        assert codes == [0] + [77] * 63, codes


@test(*ALL)
def token_ends(t):
    token = issue(t, '--ttl', '300ms')
    late = issue(t, '--ttl', '1h')
    time.sleep(0.4)  # its time to live passes
    assert t.run('token', 'redeem', token)[0] == 77
    assert t.run('token', 'redeem', late)[0] == 0


@test(*ALL)
def token_is_reissued_after_a_failure(t):
    token = issue(t, '--scope', 's')
    assert t.run('token', 'reissue', '--scope', 's', token)[0] == 77, 'it is not spent'
    assert t.run('token', 'redeem', '--scope', 's', token)[0] == 0
    code, fresh, err = t.run('token', 'reissue', '--scope', 's', token)
    assert code == 0 and fresh.strip() != token.encode(), err
    assert t.run('token', 'reissue', '--scope', 's', token) == (0, fresh, b''), 'the same one when asked again'
    assert t.run('token', 'redeem', '--scope', 's', token)[0] == 77
    assert t.run('token', 'redeem', '--scope', 's', fresh.strip())[0] == 0
    assert t.run('token', 'redeem', '--scope', 's', fresh.strip())[0] == 77


@test(*ALL)
def tokens_that_are_none(t):
    token = issue(t)
    for bad in ('', 'x', ' ' + token, token + ' ', token[:-1], token + '0', token.swapcase(), 'x' * 100000, '\xff\n',
                "'; DROP TABLE dibs_cell; --"):
        code, out, err = t.run('token', 'redeem', '--', bad)
        assert code in (77, 64) and out == b'' and err.count(b'\n') == 1 and len(err) < 3000, (bad[:80], code, err)
    assert t.run('token', 'redeem', token)[0] == 0


@test(*ENGINES)
def token_as_json(t):
    issued = t.json('token', 'issue', '--json', '--scope', 's')
    token = issued.pop('token')
    assert issued == {'scope': 's', 'issued': True}
    assert t.json('token', 'redeem', '--json', '--scope', 's', token) == {'scope': 's', 'token': token, 'redeemed': True}
    code, out, _ = t.run('token', 'redeem', '--json', '--scope', 's', token)
    assert code == 77 and json.loads(out)['redeemed'] is False


# ---- Counters ---------------------------------------------------------------------------------------------------


@test(*ALL)
def counter_never_falls_below_zero(t):
    assert number(t, 'get', 'a', code=1)[0] == b''
    assert number(t, 'set', 'a', '5') == 5 and number(t, 'get', 'a') == 5
    assert number(t, 'take', 'a') == 4 and number(t, 'take', 'a', '3') == 1
    out, err = number(t, 'take', 'a', '2', code=1)
    assert out == b'' and b'1' in err, err
    assert number(t, 'add', 'a', '10') == 11 and number(t, 'add', 'a', '-4') == 7
    number(t, 'add', 'a', '-8', code=1)
    assert number(t, 'get', 'a') == 7
    assert number(t, 'add', 'new', '2') == 2 and number(t, 'set', 'zero', '0') == 0
    number(t, 'take', 'zero', code=1)
    number(t, 'take', 'none', code=1)
    assert number(t, 'set', 'big', str(2 ** 63 - 1)) == 2 ** 63 - 1
    assert t.run('counter', 'add', 'big', '1')[0] == 64 and number(t, 'get', 'big') == 2 ** 63 - 1


@test(*ALL)
def counter_requests_count_once(t):
    number(t, 'set', 'a', '10')
    assert number(t, 'take', '--request', 'r1', 'a', '3') == 7
    assert number(t, 'take', '--request', 'r2', 'a') == 6
    assert number(t, 'take', '--request', 'r1', 'a', '3') == 7, 'what it was told then'
    assert number(t, 'get', 'a') == 6
    assert number(t, 'add', '--request', 'r3', 'a', '4') == 10 and number(t, 'add', '--request', 'r3', 'a', '4') == 10
    assert number(t, 'take', '--request', 'r1', '--keep', '1h', 'b', code=1), 'of another counter'
    assert number(t, 'set', '--request', 'r4', 'c', '5') == 5 and number(t, 'add', 'c', '2') == 7
    assert number(t, 'set', '--request', 'r4', 'c', '5') == 7, 'it is not set back'
    assert t.json('counter', 'take', '--json', '--request', 'r2', 'a') == {
        'name': 'a', 'value': 6, 'changed': False, 'already': True}


@test(*ALL)
def many_take_and_none_is_sold_twice(t):
    """12 loops of 15 takes from 120: 120 get one. Every third asks again under its own id, as after a lost answer."""
    number(t, 'set', 'stock', '120')
    script = 'i=0; while [ $i -lt 15 ]; do %s counter take --request $0-$i stock >/dev/null 2>&1 && echo got; ' \
             'if [ $((i %% 3)) = 0 ]; then %s counter take --request $0-$i stock >/dev/null 2>&1; fi; ' \
             'i=$((i + 1)); done; :' % (t.dibs, t.dibs)
    loops = [Process(['sh', '-c', script, str(i)], t.folder, env=t.env) for i in range(12)]
    t.started += loops
    assert [p.wait(120) for p in loops] == [0] * 12
    assert sum(p.out.count(b'got') for p in loops) <= 120, 'sold more than there were'
    assert number(t, 'get', 'stock') == 0


@test(*ENGINES)
def counter_as_json(t):
    assert t.json('counter', 'set', '--json', 'a', '2') == {'name': 'a', 'value': 2, 'changed': True, 'already': False}
    assert t.json('counter', 'get', '--json', 'a') == {'name': 'a', 'value': 2, 'changed': False, 'already': False}
    code, out, _ = t.run('counter', 'take', '--json', 'a', '3')
    assert code == 1 and json.loads(out) == {'name': 'a', 'value': 2, 'changed': False, 'already': False}
    for words in (('get', '--json', 'none'), ('take', '--json', 'none')):
        code, out, _ = t.run('counter', *words)
        assert code == 1 and json.loads(out) == {'name': 'none', 'value': None, 'changed': False, 'already': False}


# ---- Cells ------------------------------------------------------------------------------------------------------


def put(t, *args, code=0, **more):
    got, out, err = t.run('cell', 'put', *args, **more)
    assert got == code, (args, got, err)
    return out.decode().strip() if code == 0 else err


@test(*ALL)
def cell_changes_only_as_read(t):
    assert t.run('cell', 'get', 'a')[0] == 1 and t.run('cell', 'delete', 'a')[0] == 1
    first = put(t, '--if', '0', 'a', 'one')
    assert b'dibs: ' in put(t, '--if', '0', 'a', 'two', code=1)
    assert t.run('cell', 'get', 'a') == (0, b'one', b'')
    second = put(t, '--if', first, 'a', 'two')
    assert int(second) > int(first)
    put(t, '--if', first, 'a', 'three', code=1)
    assert t.run('cell', 'delete', '--if', first, 'a')[0] == 1
    third = put(t, 'a', 'three')
    assert int(third) > int(second) and t.run('cell', 'get', 'a')[1] == b'three'
    assert t.run('cell', 'delete', '--if', third, 'a') == (0, b'', b'')
    assert t.run('cell', 'get', 'a')[0] == 1
    put(t, '--if', third, 'a', 'x', code=1)
    assert int(put(t, 'a', '')) > int(third), 'also over a deletion'
    assert t.run('cell', 'get', 'a') == (0, b'', b'')


@test(*ALL)
def cell_values_of_any_bytes(t):
    most = t.value_max()
    assert 10 ** 6 <= most <= 2 ** 20
    for value in (b'', b'\0', bytes(range(256)), b'x' * most):
        with open(t.path('value'), 'wb') as f:
            f.write(value)
        with open(t.path('value'), 'rb') as f:
            version = put(t, 'a', stdin=f)
        assert t.run('cell', 'get', 'a') == (0, value, b''), len(value)
        assert t.json('cell', 'get', '--json', 'a')['version'] == int(version)
    with open('/dev/zero', 'rb') as f:
        assert b'%d' % most in put(t, 'a', code=64, stdin=f)
    assert len(t.run('cell', 'get', 'a')[1]) == most, 'untouched'


@test(*ALL)
def cell_ends(t):
    put(t, '--keep', '1s', 'a', 'x')
    put(t, '--keep', '1h', 'b', 'x')
    wait_for(lambda: t.run('cell', 'get', 'a')[0] == 1, 'the end of a cell')
    assert 3500000 < t.json('cell', 'get', '--json', 'b')['left_ms'] <= 3600000


@test(*ALL)
def cell_refuses_an_older_fence(t):
    """Raise, read, write, under a lock; then an old holder comes back."""
    script = '%s cell get --fence $DIBS_FENCE balance 2>/dev/null; ' \
             '%s cell put --fence $DIBS_FENCE balance $1 >/dev/null || exit; echo $DIBS_FENCE' % (t.dibs, t.dibs)
    _, old, _ = t.run('run', 'l', '--', 'sh', '-c', script, 'sh', '10')
    code, out, _ = t.run('run', 'l', '--', 'sh', '-c', script, 'sh', '20')
    assert code == 0 and out.startswith(b'10'), out
    old = old.decode().strip()
    for args in (('get', '--fence', old, 'balance'), ('put', '--fence', old, 'balance', '5'),
                 ('delete', '--fence', old, 'balance')):
        code, _, err = t.run('cell', *args)
        assert code == 76, (args, code, err)
    assert t.run('cell', 'get', 'balance')[1] == b'20'


@test(*ENGINES)
def cell_put_with_a_fence_raises_it(t):
    assert t.run('cell', 'put', '--fence', '200', 'a', 'new')[0] == 0
    for args in (('put', '--fence', '100', 'a', 'old'), ('delete', '--fence', '100', 'a'), ('get', '--fence', '100', 'a')):
        code, out, err = t.run('cell', *args)
        assert code == 76 and out == b'', (args, code, out, err)
    assert t.run('cell', 'get', 'a')[1] == b'new'
    assert t.run('cell', 'delete', '--fence', '200', 'a')[0] == 0
    assert t.run('cell', 'put', '--fence', '100', 'a', 'old')[0] == 76, 'also after a deletion'


@test(*ALL)
def many_change_a_cell_and_none_is_lost(t):
    """Read, add one, write if still as read; again if not."""
    put(t, 'a', '0')
    script = 'import json, subprocess, sys\n' \
             'dibs = sys.argv[1]\n' \
             'for _ in range(5):\n' \
             '    while True:\n' \
             '        cell = json.loads(subprocess.check_output([dibs, "cell", "get", "--json", "a"]))\n' \
             '        if subprocess.call([dibs, "cell", "put", "--if", str(cell["version"]), "a",\n' \
             '                            str(int(cell["value"]) + 1)], stdout=subprocess.DEVNULL,\n' \
             '                           stderr=subprocess.DEVNULL) == 0:\n' \
             '            break\n'
    workers = [Process([PYTHON, '-S', '-c', script, t.dibs], t.folder, env=t.env) for _ in range(6)]
    t.started += workers
    assert [p.wait(120) for p in workers] == [0] * 6
    assert t.run('cell', 'get', 'a')[1] == b'30'


@test(*ENGINES)
def cell_as_json(t):
    made = t.json('cell', 'put', '--json', 'a', 'täst')
    assert made['changed'] is True
    assert t.json('cell', 'get', '--json', 'a') == {
        'name': 'a', 'version': made['version'], 'left_ms': None, 'value': 'täst'}
    code, out, _ = t.run('cell', 'put', '--json', '--if', '1', 'a', 'x')
    assert code == 1 and json.loads(out) == {'name': 'a', 'changed': False, 'version': made['version']}
    assert t.json('cell', 'delete', '--json', 'a') == {'name': 'a', 'changed': True, 'version': None}
    code, out, _ = t.run('cell', 'delete', '--json', 'a')
    assert code == 1 and json.loads(out)['changed'] is False
    for more in ((), ('--fence', '7')):
        code, out, err = t.run('cell', 'get', '--json', *more, 'none')
        assert code == 1 and json.loads(out) == {'name': 'none', 'version': None, 'left_ms': None, 'value': None}
        assert err == b"dibs: 'none': no such cell\n", err
    with open(t.path('value'), 'wb') as f:
        f.write(b'\xff\0')
    with open(t.path('value'), 'rb') as f:
        put(t, 'b', stdin=f)
    cell = t.json('cell', 'get', '--json', 'b')
    assert cell['value'] is None and cell['value_hex'] == 'ff00'


@test(*ALL)
def kinds_do_not_mix(t):
    """A cell, a counter, a key and a lock of one name are four things."""
    put(t, 'a', 'x')
    assert number(t, 'add', 'a', '3') == 3
    assert t.run('once', 'a', '--', 'echo', 'o')[1] == b'o\n'
    assert t.run('run', 'a', '--', 'true')[0] == 0
    assert t.run('cell', 'get', 'a')[1] == b'x' and number(t, 'get', 'a') == 3
