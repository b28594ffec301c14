"""Ten thousand waiters on one process."""

import resource
import selectors
import socket
import time

from harness import test, wait_for
from server import Client, resident

COUNT = 10000
MOST = 4096  # bytes of memory for each


def threads(pid):
    with open('/proc/%d/status' % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith('Threads'))


def request(i):
    body = b'{"name":"a","wait_ms":86400000,"lease_ms":60000}'
    return (b'POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
            b'Content-Length: %d\r\n\r\n' % len(body)) + body


def waiting(c):
    """How many; a listing of each of them would take more memory than they do."""
    locks = c.get('/v1/locks?prefix=a').json['locks']
    return locks[0]['waiter_count'] if locks else 0


def queue_up(s, c, count, earlier):
    """Connections that wait, in this order, after an earlier request with a large head or without one; bytes that each takes."""
    warm, queue = resident(s.process.pid), []
    for i in range(count):
        w = socket.create_connection(('127.0.0.1', s.port), timeout=60)
        if earlier:
            w.sendall(b'GET /healthz HTTP/1.1\r\nHost: localhost\r\nCookie: %s\r\n\r\n' % (b'a' * 7000))
            assert w.recv(1000).startswith(b'HTTP/1.1 200')
        w.sendall(request(i))
        queue.append(w)
        if i % 500 == 499:  # those that follow come behind these
            wait_for(lambda: waiting(c) == i + 1, 'the queue', 30)
    wait_for(lambda: waiting(c) == count, 'the queue', 15)
    return queue, (resident(s.process.pid) - warm) / count


def hand_over(t, c, grant, queue):
    """Two hundred times; each time the first in the queue is answered, and nobody else."""
    picked, start = selectors.DefaultSelector(), time.monotonic()
    for i, w in enumerate(queue):
        picked.register(w, selectors.EVENT_READ, i)
    for turn in range(200):
        c.release(grant)
        ready = [key.data for key, _ in picked.select(10)]
        assert ready == [turn], (turn, ready[:5])
        answer = queue[turn].recv(65536)
        assert b' 201 ' in answer.split(b'\r\n')[0], answer[:200]
        picked.unregister(queue[turn])
        grant = answer.split(b'"grant":"')[1].split(b'"')[0].decode()
    t.note('a hand-over among them takes %.2f ms', (time.monotonic() - start) * 1000 / 200)


@test('memory')
def ten_thousand_wait_in_order(t):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(COUNT, hard - 200)
    for earlier in (False, True):
        s = t.serve('--lease', '5m', '--slice', '10m')
        c = Client(s, timeout=60)
        grant = c.acquire('a', lease_ms=300000)['grant']
        queue, each = queue_up(s, c, count, earlier)
        t.note('%d waiters%s: %.0f bytes each, %d threads', count, ', each after an earlier request' if earlier else '', each, threads(s.process.pid))
        assert threads(s.process.pid) < 30
        assert each < MOST
        hand_over(t, c, grant, queue)
        for w in queue:
            w.close()
        s.stop()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
