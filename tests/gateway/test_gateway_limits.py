"""What is bounded stays bounded, and what waits goes on: descriptors, connections to the application, addresses that change."""

import contextlib
import resource
import socket

import harness
from gateway import Client
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
        with contextlib.suppress(TimeoutError):
            while True:
                self.inside.append(socket.create_connection(('127.0.0.1', self.port), 0.3))

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
