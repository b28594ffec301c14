"""The page's example, the access log, metrics, TLS, and what happens when one side is away."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import harness
from gateway import Client, new_key
from harness import test, wait_for

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs', 'gateway.md')


@test('sqlite')
def five_minutes(t):
    """The commands of docs/gateway.md, at ports that are free."""
    with open(PAGE, encoding='utf-8') as f:
        section = f.read().split('\n## Five minutes')[1].split('\n## ')[0]
    text = ''.join(re.findall(r'```sh\n(.*?)```', section, re.DOTALL))
    for port in ('8300', '8301'):
        text = text.replace(port, str(harness.free_port()))
    os.mkdir(t.path('bin'))
    os.symlink(t.dibs, t.path('bin/dibs'))
    done = subprocess.run(['sh', '-eu'], input=text, text=True, capture_output=True, timeout=60, cwd=t.folder,
                          env=dict(t.env, PATH=t.path('bin') + ':' + os.environ['PATH']))
    assert done.returncode == 0, (done.stdout, done.stderr)
    statuses = re.findall(r'^HTTP/1\.1 (\d+)', done.stdout, re.MULTILINE)
    assert [s for s in statuses if s != '100'] == ['201', '201', '422', '400'], done.stdout
    assert done.stdout.count('Idempotent-Replayed: true') == 1 and done.stdout.count('ordered: one book') == 2, done.stdout
    assert done.stdout.rstrip().endswith('one book') and harness.read(t.path('orders')) == b'one book\n', done.stdout


@test('sqlite')
def an_application_that_is_away_has_done_nothing(t):
    app, _, c = t.pair({'path': '/**', 'caller': 'none'})
    key = new_key()
    app.kill()
    for path in ('/a', '/a'):
        assert c.post(path, key=key).status == 502
    assert c.post('/unguarded').status == 502
    app.start()
    answer = c.post('/a', key=key)
    assert answer.status == 201 and not answer.replayed and len(app.runs(key)) == 1, 'a retry is the first again'


@test('redis')
def an_engine_that_goes_at_the_finish_leaves_the_key_crashed(t):
    app, g, _ = t.pair({'path': '/**', 'caller': 'none', 'lease': '1s', 'wait': '0s'})
    app.stop_points(True)
    key, heard = new_key(), []

    def ask():
        try:
            heard.append(Client(g).post('/a?stop=half&size=100', key=key))
        except (EOFError, OSError) as e:
            heard.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    app.wait_at('half')
    t.server.process.send_signal(signal.SIGSTOP)
    app.stop_points(False)
    thread.join(20)
    assert isinstance(heard[0], Exception), 'it must not be taken for whole: %s' % heard
    time.sleep(1)
    t.server.process.send_signal(signal.SIGCONT)
    again = wait_for(lambda: (lambda a: a if a.status != 503 else None)(Client(g).post('/a?stop=half&size=100', key=key)), 'the engine', 20)
    if again.status != 201:
        assert again.problem['code'] == 'CRASHED', again  # else the finish had reached it: then it is replayed
    else:
        assert again.replayed, again
    assert len(app.runs(key)) == 1


@test('sqlite')
def what_operators_see(t):
    log = t.path('access')
    app, g, c = t.pair({'path': '/orders', 'key': 'required', 'caller': 'Authorization'}, args=('--access-log', log))
    for body, status in ((b'1', 201), (b'1', 201), (b'2', 422)):
        assert c.post('/orders', body, 'secret-key-1', Authorization='Bearer secret-caller').status == status
    c.post('/orders'), c.ask('GET', '/plain?card=4711')
    wait_for(lambda: harness.read(log).count(b'\n') >= 5, 'the log')
    text = harness.read(log).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(l['status'], l['outcome']) for l in lines] == [(201, 'first'), (201, 'replayed'), (422, 'refused'), (400, 'refused'), (201, 'passed')], lines
    assert [l['route'] for l in lines[:2]] == ['/orders'] * 2
    for secret in ('secret-key-1', 'secret-caller', '4711'):
        assert secret not in text and secret.encode() not in g.process.err, secret
    admin = 'http://127.0.0.1:%d' % g.address('admin')

    def page(path):
        try:
            with urllib.request.urlopen(admin + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, ''

    assert page('/healthz')[0] == page('/readyz')[0] == 200
    metrics = page('/metrics')[1]
    for outcome, count in (('first', 1), ('replayed', 1), ('refused', 2), ('passed', 1)):
        found = re.findall(r'^dibs_gateway_requests_total\{.*outcome="%s".*\} (\d+)$' % outcome, metrics, re.MULTILINE)
        assert sum(map(int, found)) == count, (outcome, found, metrics[:2000])
    for line in metrics.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) [a-z_]+ .*|[a-z_]+(\{[^}]*\})? [0-9.e+-]+', line), line


EC = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes')


def certificates(t, kind=EC):
    def openssl(*args):
        subprocess.run(['openssl', *args], check=True, capture_output=True, cwd=t.folder)

    openssl('req', '-x509', *kind, '-keyout', 'ca.key', '-out', 'ca.pem', '-days', '2', '-subj', '/CN=ca')
    with open(t.path('ext'), 'w') as f:
        f.write('subjectAltName=DNS:localhost,IP:127.0.0.1\n')
    for name, subject in (('server', '/CN=server'), ('alice', '/CN=alice'), ('bob', '/CN=bob'), ('nameless', '/O=shop'), ('other', '/O=other')):
        openssl('req', *kind, '-keyout', name + '.key', '-out', name + '.csr', '-subj', subject)
        openssl('x509', '-req', '-in', name + '.csr', '-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-days', '2', '-out', name + '.pem',
                '-extfile', 'ext')


class Secure(Client):
    def __init__(self, t, gateway, name=None):
        super().__init__(gateway)
        self.context = ssl.create_default_context(cafile=t.path('ca.pem'))
        if name:
            self.context.load_cert_chain(t.path(name + '.pem'), t.path(name + '.key'))

    def send(self, data):
        if not self.socket:
            self.socket = self.context.wrap_socket(socket.create_connection(('127.0.0.1', self.gateway.port), 20), server_hostname='localhost')
            self.buffer = b''
        self.socket.sendall(data)


class Local(Client):
    """A client at a unix socket."""

    def send(self, data):
        if not self.socket:
            self.socket, self.buffer = socket.socket(socket.AF_UNIX), b''
            self.socket.settimeout(self.timeout)
            self.socket.connect(self.gateway)
        self.socket.sendall(data)


@test('sqlite')
def tls_and_callers_by_certificate(t):
    certificates(t)
    app = t.application()
    args = ('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'), '--client-ca', t.path('ca.pem'))
    g = t.gateway(app, ({'path': '/**', 'caller': 'certificate'},), args=(*args, '--listen', 'unix:' + t.path('socket')))
    key = new_key()
    for name, replayed in (('alice', False), ('alice', True), ('bob', False), ('bob', True)):
        assert Secure(t, g, name).post('/a', key=key).replayed == replayed, name
    assert len(app.runs(key)) == 2
    for name in ('nameless', 'other'):
        refused = Secure(t, g, name).post('/a', key=key)
        assert refused.status == 403 and 'common name' in refused.problem['detail'], 'they would have the same keys: %s' % refused
        assert Secure(t, g, name).post('/a').status == 201, 'without a key it does not matter'
    named = {n.lower(): v for n, v in app.log('request')[-1]['headers']}
    assert named['x-forwarded-proto'] == 'https'
    try:
        stranger = Secure(t, g).post('/a', key=key)
        assert stranger.status in (400, 401, 403), stranger
    except (OSError, EOFError):
        pass
    local = Local(t.path('socket'))  # which has no TLS
    assert local.post('/a', key=key).status == 403 and local.post('/a').status == 201
    assert len(app.runs(key)) == 2


@test('sqlite')
def tls_to_the_application(t):
    """Another gateway with TLS stands for the application's own; its certificate is checked."""
    certificates(t)
    app = t.application()
    inner = t.gateway(app, (), args=('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key')))

    class Address:
        address = 'https://127.0.0.1:%d' % inner.port

    trusting = t.gateway(Address, ({'path': '/**', 'caller': 'none'},), args=('--upstream-ca', t.path('ca.pem')))
    key = new_key()
    c = Client(trusting)
    assert c.post('/a', key=key).status == 201 and c.post('/a', key=key).replayed and len(app.runs(key)) == 1
    distrusting = t.gateway(Address, ({'path': '/**', 'caller': 'none'},))
    assert Client(distrusting).post('/a', key=new_key()).status == 502 and len(app.runs()) == 1


class SlowHandshake:
    """TLS 1.2 with a key exchange for which the server needs its key again at the end; stops before that."""

    def __init__(self, t, gateway):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(t.path('ca.pem'))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers('AES128-GCM-SHA256')
        self.come, self.go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.come, self.go, server_hostname='localhost')
        self.socket = socket.create_connection(('127.0.0.1', gateway.port), 20)

    def until(self, done):
        """Goes on with the handshake until `done`; what is to be sent last stays here."""
        while True:
            try:
                self.tls.do_handshake()
                wants = False
            except ssl.SSLWantReadError:
                wants = True
            if done(wants):
                return
            self.socket.sendall(self.go.read())
            if wants:
                self.come.write(self.socket.recv(65536) or b'')

    def ask(self):
        self.tls.write(b'GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
        self.socket.sendall(self.go.read())
        self.come.write(self.socket.recv(65536))
        return self.tls.read(65536)


@test('sqlite')
def certificates_are_read_twice_within_a_handshake(t):
    t.env.update(MALLOC_PERTURB_='85', GLIBC_TUNABLES='glibc.malloc.tcache_count=0')  # what is freed is overwritten
    certificates(t, ('-newkey', 'rsa:2048', '-nodes'))
    app = t.application()
    g = t.gateway(app, (), args=('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key')))
    slow, hello = SlowHandshake(t, g), []
    slow.until(lambda wants: hello or hello.append(1))  # the server has sent its certificate; the client's part is not sent yet
    for n in range(1, 4):
        g.process.signal(1)
        wait_for(lambda: g.process.err.count(b'reloaded') == n, 'the certificate')
    slow.until(lambda wants: not wants)
    assert slow.ask().startswith(b'HTTP/1.1 201'), 'the handshake goes on with the key that it began with'


@test('sqlite')
def a_file_is_not_taken_for_a_socket(t):
    app, notes = t.application(), t.path('notes.txt')
    with open(notes, 'w') as f:
        f.write('mine')
    code, _, err = t.run('gateway', '--upstream', app.address, '--listen', 'unix:' + notes, '--url', t.url)
    assert code != 0 and b'notes.txt' in err, (code, err)
    assert harness.read(notes) == b'mine', 'it is left alone'


@test('sqlite')
def clients_of_another_ca(t):
    """SIGHUP rereads the CA of clients."""
    certificates(t)
    args = ('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'), '--client-ca', t.path('clients.pem'))
    shutil.copy(t.path('ca.pem'), t.path('clients.pem'))
    g = t.gateway(t.application(), (), args=args)
    assert Secure(t, g, 'alice').ask('GET', '/a').status == 201
    subprocess.run(['openssl', 'req', '-x509', *EC, '-keyout', 'new.key', '-out', 'clients.pem', '-days', '2', '-subj', '/CN=new'],
                   check=True, capture_output=True, cwd=t.folder)
    g.process.signal(1)
    wait_for(lambda: b'reloaded' in g.process.err, 'the new CA')
    try:
        refused = Secure(t, g, 'alice').ask('GET', '/a')
        assert False, refused
    except (OSError, EOFError):
        pass
