"""Ten thousand waiters on one process."""

import resource
import selectors
import socket
import time

from harness import test
from server import Client

COUNT = 10000


def resident(pid):
    with open('/proc/%d/status' % pid) as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith('VmRSS'))


def threads(pid):
    with open('/proc/%d/status' % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith('Threads'))


def request(i):
    body = b'{"name":"a","wait_ms":86400000,"lease_ms":60000}'
    return (b'POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
            b'Content-Length: %d\r\n\r\n' % len(body)) + body


@test('memory')
def ten_thousand_wait_in_order(t):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(COUNT, hard - 200)
    s = t.serve('--lease', '5m')
    c = Client(s, timeout=60)
    held = c.acquire('a', lease_ms=300000)
    warm = resident(s.process.pid)
    waiting = []
    for i in range(count):
        w = socket.create_connection(('127.0.0.1', s.port), timeout=60)
        w.sendall(request(i))
        waiting.append(w)
        if i % 500 == 499:  # those that follow come behind these
            end = time.monotonic() + 30
            while c.waiters('a') < i + 1 and time.monotonic() < end:
                time.sleep(0.01)
    end = time.monotonic() + 15
    while c.waiters('a') < count and time.monotonic() < end:
        time.sleep(0.05)
    assert c.waiters('a') == count
    each = (resident(s.process.pid) - warm) / count
    t.note('%d waiters: %.0f bytes each, %d threads', count, each, threads(s.process.pid))
    assert threads(s.process.pid) < 30
    assert each < 16384
    picked = selectors.DefaultSelector()
    for i, w in enumerate(waiting):
        picked.register(w, selectors.EVENT_READ, i)
    grant, start = held['grant'], time.monotonic()
    for turn in range(200):
        c.release(grant)
        ready = [key.data for key, _ in picked.select(10)]
        assert turn in ready and min(ready) == turn, (turn, ready[:5])
        answer = waiting[turn].recv(65536)
        assert b' 201 ' in answer.split(b'\r\n')[0], answer[:200]
        picked.unregister(waiting[turn])
        grant = answer.split(b'"grant":"')[1].split(b'"')[0].decode()
    t.note('a hand-over among them takes %.2f ms', (time.monotonic() - start) * 1000 / 200)
    for w in waiting:
        w.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
