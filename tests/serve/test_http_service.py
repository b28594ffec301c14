"""As a service of systemd: what it is told, and the unit that is handed out."""

import os
import re
import shutil
import socket
import subprocess

from harness import Skip, test, wait_for
from server import Client

UNIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs', 'dibs-serve.service')


@test('memory')
def systemd_is_told_of_the_start_and_of_the_end(t):
    for address in (t.path('notify'), '\0dibs-test-%d' % os.getpid()):  # a path, and an abstract name
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address)
            manager.settimeout(20)
            t.env['NOTIFY_SOCKET'] = address.replace('\0', '@')
            s = t.serve()
            assert manager.recv(100) == b'READY=1'
            assert Client(s).get('/healthz').status == 200, 'and it is'
            s.process.signal(15)
            assert manager.recv(100) == b'STOPPING=1'
            assert s.process.wait(15) == 0
    t.env['NOTIFY_SOCKET'] = t.path('nobody')
    assert Client(t.serve()).get('/healthz').status == 200, 'nobody listens: it serves all the same'


@test('memory')
def a_socket_is_inherited(t):
    """Also one that blocks: the server must not wait in it for its next client."""
    with socket.create_server(('127.0.0.1', 0)) as door:
        s = t.serve(listen='fd:%d' % door.fileno(), pass_fds=(door.fileno(),))
        first = Client(s)
        for c in first, Client(s), first:
            assert c.get('/healthz').status == 200


@test('memory')
def the_unit_is_one_that_systemd_takes(t):
    if not shutil.which('systemd-analyze'):
        raise Skip('systemd-analyze is not installed')
    with open(UNIT, encoding='utf-8') as f:
        text = f.read()
    command = re.search(r'^ExecStart=(\S+) serve (.*)$', text, re.MULTILINE)
    unit = t.path('dibs-serve.service')
    with open(unit, 'w', encoding='utf-8') as f:
        f.write(text.replace(command.group(1), t.dibs).replace('man:dibs-serve(1)', 'https://example.org'))
    done = subprocess.run(['systemd-analyze', 'verify', '--man=no', unit], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if 'dibs-serve.service' in line]
    assert done.returncode == 0 and not said, (done.returncode, done.stderr)
    # The command of the unit starts, with the credential and the address put in.
    url = t.path('url')
    with open(url, 'w') as f:
        f.write('memory:\n')
    words = command.group(2).replace('%d/url', url).replace('127.0.0.1:8200', '127.0.0.1:0').split()
    process = t.start('serve', *words)
    wait_for(lambda: b'serving' in process.err, 'the server', 20)
    process.signal(15)
    assert process.wait(15) == 0
