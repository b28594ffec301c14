"""A private `dibs gateway` with an application behind it (application.py), and a client that sees every byte of an answer."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import uuid

import harness
from harness import wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
REFUSE = {'path': '/**', 'key': 'required', 'caller': 'none'}  # a route that most tests use


class Context(harness.Context):
    """One test's surroundings; its gateways are checked for clean ends."""

    def __init__(self, dibs, engine, servers, folder):
        super().__init__(dibs, engine, servers, folder)
        self.gateways, self.applications = [], []

    def application(self):
        a = Application(self)
        self.applications.append(a)
        return a

    def gateway(self, application, routes=(REFUSE,), args=(), url=None, limits=None):
        """Routes None: without a file."""
        g = Gateway(self, application, routes, limits, args, url or self.url)
        self.gateways.append(g)
        return g

    def pair(self, *routes, **more):
        """An application, a gateway with these routes, and a client of it."""
        a = self.application()
        g = self.gateway(a, routes or (REFUSE,), **more)
        return a, g, Client(g)

    def finish(self):
        for g in self.gateways:
            if g.process.popen.poll() is None:
                g.process.signal(signal.SIGTERM)
                assert g.process.wait(15) == 0, g.process.err

    def close(self):
        super().close()
        for a in self.applications:
            a.kill()


class Application:
    def __init__(self, t):
        self.folder = os.path.join(t.folder, 'application%d' % len(t.applications))
        os.mkdir(self.folder)
        self.port = harness.free_port()
        self.address = 'http://127.0.0.1:%d' % self.port
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, '-S', os.path.join(HERE, 'application.py'), str(self.port), self.folder])
        wait_for(self.answers, 'the application')

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', self.port), 1):
            return True

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def log(self, *events):
        whole = harness.read(os.path.join(self.folder, 'log')).rpartition(b'\n')[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if not events or line['event'] in events]

    def runs(self, key=None):
        """What was executed, or how often for this key."""
        return [line for line in self.log('run') if key is None or (line['key'] or '').strip('"') == key]

    def stop_points(self, on):
        path = os.path.join(self.folder, 'stop')
        if on:
            open(path, 'w').close()
        else:
            os.unlink(path)

    def wait_at(self, point, count=1):
        wait_for(lambda: sum(line['point'] == point for line in self.log('at')) >= count, 'the application at ' + point, 20)

    def raw(self, name, data):
        """What it answers to /raw/NAME."""
        with open(os.path.join(self.folder, name), 'wb') as f:
            f.write(data)


class Gateway:
    def __init__(self, t, application, routes, limits, args, url):
        self.t, self.config = t, t.path('gateway%d.json' % len(t.gateways))
        if routes is not None:
            self.configure(routes, limits)
        self.args = ('gateway', '--upstream', application.address, '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0',
                     *(() if routes is None else ('--config', self.config)), '--url', url, *args)
        self.port = None
        self.start()

    def configure(self, routes, limits=None):
        with open(self.config, 'w') as f:
            json.dump({'routes': list(routes), **({'limits': limits} if limits else {})}, f)

    def start(self):
        """At the same port as before."""
        args = [a if not (a == '127.0.0.1:0' and i == 4 and self.port) else '127.0.0.1:%d' % self.port for i, a in enumerate(self.args)]
        self.process = self.t.start(*args)
        self.port = self.port or self.address('listen')
        wait_for(self.answers, 'the gateway', 30)

    def address(self, what):
        """The port that it says it serves at: clients', or the operator's."""
        line = re.compile(rb'gateway to .* at https?://\S+:(\d+)\n' if what == 'listen' else rb'admin at https?://\S+:(\d+)\n')
        wait_for(lambda: line.search(self.process.err) or self.process.popen.poll() is not None, 'the gateway', 30)
        said = line.search(self.process.err)
        assert said, self.process.err
        return int(said.group(1))

    def metric(self, name):
        """A gauge of /metrics."""
        with urllib.request.urlopen('http://127.0.0.1:%d/metrics' % self.address('admin'), timeout=10) as answer:
            return int(re.search(r'^dibs_gateway_%s (\d+)$' % name, answer.read().decode(), re.MULTILINE).group(1))

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', self.port), 1):
            return True
        assert self.process.popen.poll() is None, self.process.err

    def kill(self):
        self.process.popen.kill()
        self.process.wait()


class Answer:
    """As it came: the interim heads, status, reason, headers in order, the body without its transfer coding, trailers."""

    def __init__(self, head, interim):
        line, *rest = head.split(b'\r\n')
        found = re.fullmatch(rb'HTTP/1\.1 (\d{3}) (.*)', line)
        assert found, line
        self.status, self.reason = int(found.group(1)), found.group(2)
        self.headers = [tuple(part.strip(b' \t') for part in h.split(b':', 1)) for h in rest]
        self.interim, self.body, self.trailers, self.whole = interim, b'', [], True

    def all(self, name):
        return [v.decode('latin-1') for n, v in self.headers if n.lower() == name.lower().encode()]

    def get(self, name):
        return next(iter(self.all(name)), None)

    @property
    def replayed(self):
        return self.get('Idempotent-Replayed') == 'true'

    @property
    def problem(self):
        assert self.get('Content-Type') == 'application/problem+json', self
        return json.loads(self.body)

    def __repr__(self):
        return '<%d %r %r>' % (self.status, self.headers, self.body[:300])


class Client:
    """A connection, opened when it is needed."""

    def __init__(self, gateway, timeout=30):
        self.gateway, self.timeout, self.socket, self.buffer = gateway, timeout, None, b''

    def send(self, data):
        if not self.socket:
            self.socket, self.buffer = socket.create_connection(('127.0.0.1', self.gateway.port), self.timeout), b''
        self.socket.sendall(data)

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def more(self):
        got = self.socket.recv(65536)
        if not got:
            raise EOFError(self.buffer)
        self.buffer += got

    def until(self, mark):
        while mark not in self.buffer:
            self.more()
        part, self.buffer = self.buffer.split(mark, 1)
        return part

    def exactly(self, size):
        while len(self.buffer) < size:
            self.more()
        part, self.buffer = self.buffer[:size], self.buffer[size:]
        return part

    def read(self, method='POST'):
        """The answer to one request. EOFError: there is none, or it was cut (e.args[0] has what came)."""
        interim = []
        while True:
            answer = Answer(self.until(b'\r\n\r\n'), interim)
            if answer.status >= 200:
                break
            interim.append(answer)
        if method == 'HEAD' or answer.status in (204, 304):
            return answer
        if 'chunked' in (answer.get('Transfer-Encoding') or '').lower():
            while True:
                size = int(self.until(b'\r\n').split(b';')[0], 16)
                if size == 0:
                    break
                answer.body += self.exactly(size)
                assert self.exactly(2) == b'\r\n'
            while True:
                line = self.until(b'\r\n')
                if not line:
                    break
                answer.trailers.append(tuple(part.strip() for part in line.split(b':', 1)))
        elif answer.get('Content-Length') is not None:
            answer.body = self.exactly(int(answer.get('Content-Length')))
        else:
            with contextlib.suppress(EOFError):
                while True:
                    self.more()
            answer.body, self.buffer = self.buffer, b''
        if (answer.get('Connection') or '').lower() == 'close':
            self.close()
        return answer

    def ask(self, method, target, body=b'', key=None, **headers):
        """Keys are quoted, as the draft has them. Raises EOFError and ConnectionError."""
        self.start(method, target, body, key, **headers)
        try:
            return self.read(method)
        except (EOFError, OSError):
            self.close()
            raise

    def start(self, method, target, body=b'', key=None, **headers):
        named = {'Host': 'shop.example', **{k.replace('_', '-'): v for k, v in headers.items()}}
        if key is not None:
            named['Idempotency-Key'] = '"%s"' % key
        if body or method in ('POST', 'PUT', 'PATCH'):
            named['Content-Length'] = str(len(body))
        head = '%s %s HTTP/1.1\r\n%s\r\n' % (method, target, ''.join('%s: %s\r\n' % h for h in named.items()))
        try:
            self.send(head.encode('latin-1') + body)
        except (BrokenPipeError, ConnectionResetError):  # it was kept alive, and is gone
            self.close()
            self.send(head.encode('latin-1') + body)

    def post(self, target, body=b'amount=100', key=None, **headers):
        return self.ask('POST', target, body, key, **headers)


class Freezing(threading.Thread):
    """Forwards connections to a port, until the bytes for it have had `mark` so often: those (or only the answers, if they
    are to arrive) and what follows stay here until it thaws."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.to, self.mark, self.frozen, self.thawed = port, None, threading.Event(), threading.Event()
        self.listener = socket.create_server(('127.0.0.1', 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.start()

    def freeze_at(self, mark, count=1, arrives=False):
        self.frozen.clear()
        self.thawed.clear()
        self.count, self.arrives, self.mark = count, arrives, mark

    def thaw(self, lose=False):
        """What stayed here goes on, or is lost with its connection."""
        self.mark, self.lose = None, lose
        self.frozen.clear()
        self.thawed.set()

    def run(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(('127.0.0.1', self.to))
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, sink, source is client), daemon=True).start()

    def pump(self, source, sink, asks):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                mark, arrives = self.mark, False
                if asks and mark and not self.frozen.is_set():
                    self.count -= data.count(mark)
                    arrives = self.arrives
                    if self.count <= 0:
                        self.frozen.set()
                if self.frozen.is_set() and not arrives:
                    self.thawed.wait()
                    if self.lose:
                        break
                sink.sendall(data)
        for s in (source, sink):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


def new_key():
    return str(uuid.uuid4())
