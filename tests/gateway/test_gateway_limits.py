"""What is bounded stays bounded, and what waits goes on: descriptors, connections to the application, addresses that change."""

import contextlib
import resource
import socket
import time

from gateway import Client, new_key
from harness import test, wait_for


def later(client, *args, **more):
    """Sends a request whose answer is read later."""
    client.start(*args, **more)
    return client


class Deaf:
    """A port whose backlog is full: a connection to it is neither accepted nor refused, until it is closed."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind(('127.0.0.1', 0))
        self.listener.listen(0)
        self.port = self.listener.getsockname()[1]
        self.address = 'http://127.0.0.1:%d' % self.port
        self.inside = []
        while not self.syn_sent():
            self.inside.append(socket.socket())
            self.inside[-1].setblocking(False)
            self.inside[-1].connect_ex(('127.0.0.1', self.port))
        self.inside.pop().close()  # the first that has to knock

    def syn_sent(self):
        """Connections that knock."""
        with open('/proc/net/tcp') as f:
            return sum(line.split()[2].endswith(':%04X' % self.port) and line.split()[3] == '02' for line in f)

    def close(self):
        self.listener.close()
        for s in self.inside:
            s.close()


@test('sqlite')
def addresses_change_while_a_connection_is_being_made(t):
    t.env.update(MALLOC_PERTURB_='85', GLIBC_TUNABLES='glibc.malloc.tcache_count=0')  # what is freed is overwritten
    app = Deaf()
    g = t.gateway(app, ())
    knocking = later(Client(g), 'GET', '/a')
    wait_for(app.syn_sent, 'a connection that is being made')
    g.process.signal(1)
    wait_for(lambda: b'reloaded' in g.process.err, 'the new addresses')
    app.close()
    assert knocking.read('GET').status == 502, 'it was refused at the address that it had'
    assert Client(g).ask('GET', '/a').status == 502


def files(g, limit):
    """Sets how many descriptors it may have; how many it might have before."""
    soft, hard = resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE, (limit, hard))
    return soft


@test('sqlite')
def a_queue_goes_on_when_no_connection_can_be_opened(t):
    """The connection that was sent over is gone, and there is none for the second try: the next in the queue must be told, too."""
    app, g, first = t.pair(limits={'upstream': 1})
    assert first.ask('GET', '/a').status == 201
    app.stop_points(True)
    later(first, 'GET', '/a?stop=run')  # over the same connection: it may be sent again
    app.wait_at('run')
    waiting = later(Client(g, 15), 'GET', '/a')
    wait_for(lambda: g.metric('upstream_queue') == 1, 'the queue')
    before = files(g, 3)
    app.kill()
    assert first.read('GET').status == 502
    assert waiting.read('GET').status == 502
    files(g, before)
    app.stop_points(False)
    app.start()
    assert Client(g).ask('GET', '/a').status == 201, 'it serves on'


@test('sqlite')
def clients_that_came_without_a_descriptor_are_served_later(t):
    app, g, kept = t.pair()
    assert kept.ask('GET', '/a').status == 201
    before = files(g, 3)
    late = later(Client(g, 15), 'GET', '/a')
    wait_for(lambda: b'waits to be accepted' in g.process.err, 'the lack of descriptors')
    assert kept.ask('GET', '/a').status == 201, 'who is there is served'
    files(g, before)
    assert late.read('GET').status == 201, 'and nobody has come after it'


@test('sqlite')
def clients_leave_descriptors_for_the_application(t):
    app, g, kept = t.pair(limits={'upstream': 20, 'connections': 10000})
    resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE, (200, 200))
    g.process.signal(1)
    wait_for(lambda: b'limits.connections is 116' in g.process.err and b'reloaded' in g.process.err, 'the limit')
    assert kept.ask('GET', '/a').status == 201
    crowd = [socket.create_connection(('127.0.0.1', g.port), 10) for _ in range(250)]
    wait_for(lambda: g.metric('connections') == 116, 'the crowd')
    for s in crowd[115:]:  # they are closed, not left waiting
        with contextlib.suppress(ConnectionResetError):
            assert s.recv(1) == b''
    assert kept.post('/a', key=new_key()).status == 201 and b'waits to be accepted' not in g.process.err
    for s in crowd:
        s.close()


@test('sqlite')
def a_body_that_is_kept_has_to_be_whole_one_day(t):
    """Each piece comes in time; a guarded one is in memory meanwhile."""
    app, g, _ = t.pair({'path': '/orders', 'caller': 'none'}, limits={'slow': '30s', 'upload': '1s'})
    for chunked in (False, True):
        c, start = Client(g), time.monotonic()
        head = 'POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "k"\r\n%s\r\n\r\n'
        c.send((head % ('Transfer-Encoding: chunked' if chunked else 'Content-Length: 1000')).encode())
        c.socket.settimeout(0.05)
        answer = None
        while not answer and time.monotonic() - start < 15:
            with contextlib.suppress(TimeoutError):
                answer = c.read()
            with contextlib.suppress(OSError):
                c.send(b'1\r\na\r\n' if chunked else b'a')
        assert answer and answer.status == 408 and answer.get('Connection') == 'close', answer
    assert not app.runs()
    streaming, start = Client(g), time.monotonic()  # what is passed on has no such limit
    streaming.send(b'POST /plain HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n')
    for _ in range(20):
        time.sleep(0.1)
        streaming.send(b'a')
    assert streaming.read().status == 201 and time.monotonic() - start > 1.5
