"""Wrong arguments, help, and URLs that cannot be used."""

import os
import socket
import subprocess
import time

from harness import DATABASES, ENGINES, free_port, test

COMMANDS = ('run', 'once', 'token', 'counter', 'cell', 'ls', 'show', 'break', 'watch', 'doctor', 'engines', 'schema')


def refused(t, *args, says, code=64):
    got, out, err = t.run(*args)
    text = err.decode()
    assert got == code, (args, got, text)
    assert says in text and text.startswith('dibs: ') and text.count('\n') == 1, (args, text)
    assert out == b'', out


@test()
def help_fits_a_screen(t):
    for args in [('--help',)] + [(c, '--help') for c in COMMANDS]:
        code, out, err = t.run(*args)
        lines = out.decode().splitlines()
        assert code == 0 and err == b'', (args, code, err)
        assert 3 < len(lines) <= 24 and max(map(len, lines)) <= 80, (args, len(lines), max(map(len, lines)))
        assert 'usage: dibs' in out.decode()


@test()
def version(t):
    code, out, _ = t.run('--version')
    assert code == 0 and out.startswith(b'dibs ') and out.split()[1].count(b'.') == 2, out


@test()
def no_arguments(t):
    code, out, err = t.run()
    assert code == 64 and out == b'' and b'usage: dibs' in err


@test()
def wrong_arguments(t):
    refused(t, 'frobnicate', says="no command 'frobnicate'")
    refused(t, '--frobnicate', says='unknown option')
    for c in COMMANDS:
        refused(t, c, '--frobnicate', says="unknown option '--frobnicate' (see: dibs %s --help)" % c)
    refused(t, 'run', says="no '--'")
    refused(t, 'run', 'a', says="no '--'")
    refused(t, 'run', '--', 'true', says='no lock NAME')
    refused(t, 'run', 'a', '--', says='no COMMAND')
    refused(t, 'run', '--wait', '1s', '--no-wait', 'a', '--', 'true', says='exclude each other')
    refused(t, 'run', '--wait', says='--wait needs a value')
    refused(t, 'run', '--no-wait=1', 'a', '--', 'true', says='--no-wait takes no value')
    refused(t, 'run', '--weight', '2', 'a', '--', 'true', says='--weight needs --slots')
    refused(t, 'run', '--slots', '0', 'a', '--', 'true', says="--slots '0'")
    refused(t, 'run', '-E', '256', 'a', '--', 'true', says="-E '256'")
    refused(t, 'run', '-E', 'x', 'a', '--', 'true', says="-E 'x'")
    refused(t, 'once', says="no '--'")
    refused(t, 'once', '--', 'true', says='no KEY')
    refused(t, 'once', 'a', 'b', '--', 'true', says='one KEY, not 2')
    refused(t, 'once', 'a', '--', says='no COMMAND')
    refused(t, 'once', '--on-crash', 'x', 'a', '--', 'true', says="--on-crash 'x' is neither refuse nor rerun")
    refused(t, 'once', '--on-fail', 'x', 'a', '--', 'true', says="--on-fail 'x' is neither forget nor keep")
    refused(t, 'once', '--fingerprint', '', 'a', '--', 'true', says='--fingerprint is empty')
    refused(t, 'once', '--keep', '1h', '--keep-forever', 'a', '--', 'true', says='exclude each other')
    refused(t, 'once', '--keep', '0s', 'a', '--', 'true', says='out of range')
    refused(t, 'token', says='which? issue, redeem or reissue')
    refused(t, 'token', 'steal', says="there is no 'steal', only issue, redeem or reissue")
    refused(t, 'token', 'issue', 'x', says='issue takes no operands')
    refused(t, 'token', 'redeem', says='redeem takes TOKEN')
    refused(t, 'token', 'redeem', '--ttl', '1s', 'x', says='redeem does not know --ttl')
    refused(t, 'counter', 'take', says='take takes NAME [N]')
    refused(t, 'counter', 'take', 'a', '1', '2', says='got 3 operands')
    refused(t, 'counter', 'add', 'a', says='add takes NAME N')
    for n in ('x', '', '1x', '0x1', '1.5', '+1', ' 1', '-', str(2 ** 63)):
        refused(t, 'counter', 'add', 'a', n, says="'%s' is no whole number" % n)
    refused(t, 'counter', 'set', 'a', '-1', says='no whole number from 0 to 9223372036854775807')
    refused(t, 'counter', 'take', 'a', '0', says='no whole number from 1')
    refused(t, 'counter', 'take', 'a', '-1', says='no whole number from 1')
    refused(t, 'counter', 'take', '--keep', '1s', 'a', says='--keep needs --request')
    refused(t, 'counter', 'get', '--request', 'x', 'a', says='get does not know --request')
    refused(t, 'cell', 'get', '--if', '1', 'a', says='get does not know --if')
    refused(t, 'cell', 'delete', '--keep', '1s', 'a', says='delete does not know --keep')
    refused(t, 'cell', 'delete', '--if', '0', 'a', says='cannot be deleted')
    refused(t, 'cell', 'put', '--if', '-1', 'a', 'x', says="--if '-1'")
    refused(t, 'cell', 'put', '--fence', '0', 'a', 'x', says="--fence '0'")
    refused(t, 'show', says='no lock NAME')
    refused(t, 'show', 'a', 'b', says='one lock NAME')
    refused(t, 'break', says='no lock NAME')
    refused(t, 'break', '--by', '', 'a', says='--by is empty')
    refused(t, 'ls', 'a', 'b', says='one PREFIX')
    refused(t, 'watch', '--interval', '1ms', says='out of range')
    refused(t, 'engines', 'x', says='takes no operands')
    refused(t, 'schema', 'x', says='takes no operands')


@test()
def durations(t):
    for bad in ('', '5', 's', '5x', '-5s', '1.5s', '5 s', '0x5s', '1w'):
        refused(t, 'run', '--wait', bad, 'a', '--', 'true', says='is no duration')
    for bad in ('99999999999999999999s', '9999999h', '366d', '9223372036854775807d'):
        refused(t, 'run', '--wait', bad, 'a', '--', 'true', says='out of range: 0ms to 365d')
    refused(t, 'run', '--lease', '0s', 'a', '--', 'true', says='out of range: 1ms to 365d')
    refused(t, 'watch', '--interval', '1d', says='out of range: 10ms to 1h')
    for good in ('500ms', '5s', '2m', '1h', '7d', '365d'):
        code, _, err = t.run('run', '--wait', good, 'a', '--', 'true')
        assert code == 0, err


@test(*ENGINES, *DATABASES)
def unknown_url_parameter(t):
    refused(t, 'ls', '--url', t.url + '?frobnicate=1', says='frobnicate')
    refused(t, 'run', '--url', t.url + '?frobnicate=1', 'a', '--', 'true', says='frobnicate')


@test()
def bad_urls(t):
    refused(t, 'ls', '--url', 'gopher://host', says='gopher')
    refused(t, 'ls', '--url', 'redis://127.0.0.1:99999', says='99999')
    refused(t, 'run', '--url', 'no url', 'a', '--', 'true', says='no url')


@test()
def memory_is_refused(t):
    for args in (('once', 'a', '--', 'true'), ('token', 'issue'), ('counter', 'get', 'a'), ('cell', 'get', 'a'),
                 ('run', 'a', '--', 'true'), ('ls',), ('show', 'a'), ('break', 'a'), ('watch',)):
        refused(t, args[0], '--url', 'memory:', *args[1:], says='lives inside one process')


@test()
def url_from_environment_and_default(t):
    env = dict(t.env, DIBS_URL='gopher://host')
    code, _, err = t.run('ls', env=env)
    assert code == 64 and b'gopher' in err
    code, out, err = t.run('run', 'a', '--', 'sh', '-c', 'echo $DIBS_NAME')
    assert (code, out) == (0, b'a\n'), err
    assert os.listdir(t.path('state')), 'the embedded store is in the state folder'


@test()
def server_down_at_open(t):
    start = time.monotonic()
    refused(t, 'run', '--url', 'redis://127.0.0.1:%d' % free_port(), 'a', '--', 'true', says='', code=69)
    assert time.monotonic() - start < 15


@test()
def silent_server_at_open(t):
    """A server that takes the connection and says nothing: 5 s, whatever --wait says."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen(8)
        url = 'redis://127.0.0.1:%d' % s.getsockname()[1]
        start = time.monotonic()
        refused(t, 'run', '--url', url, '--wait', '1h', 'a', '--', 'true', says='', code=69)
        assert time.monotonic() - start < 15


@test()
def output_that_cannot_be_written(t):
    with open('/dev/full', 'wb') as full:
        code = subprocess.run([t.dibs, 'engines'], env=t.env, stdout=full, stderr=subprocess.DEVNULL).returncode
    assert code == 74, code
