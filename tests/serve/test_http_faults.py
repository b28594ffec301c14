"""Cut connections, killed servers, ends: no lock is leaked, none is lost that its client keeps."""

import contextlib
import json
import resource
import signal
import socket
import subprocess
import threading
import time

from harness import boottime, test, wait_for
from server import JSON, Client, Stream, request_id, send_raw, unread

ALL = ('memory', 'sqlite', 'redis')


def acquire_bytes(body):
    text = json.dumps(body).encode()
    return (b'POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n'
            % len(text)) + text


def read_answer(s):
    """One whole answer: (status, body)."""
    got = b''
    while b'\r\n\r\n' not in got:
        more = s.recv(4096)
        assert more
        got += more
    head, body = got.split(b'\r\n\r\n', 1)
    size = int(head.lower().split(b'content-length: ')[1].split(b'\r\n')[0])
    while len(body) < size:
        body += s.recv(4096)
    return int(head.split()[1]), json.loads(body)


def cut(port, data, sent, read):
    """Sends so many bytes, reads so many of the answer, and is gone."""
    with socket.create_connection(('127.0.0.1', port), timeout=10) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')  # a reset, not an end
        s.sendall(data[:sent])
        if read is not None:
            s.recv(read) if read else None


def whole_answer(c, port, body):
    """How many bytes an answer has."""
    got = send_raw(port, acquire_bytes(body).replace(b'Host: localhost', b'Host: localhost\r\nConnection: close'))
    c.release(json.loads(got.split(b'\r\n\r\n')[1])['grant'])
    return len(got)


@test(*ALL)
def a_connection_cut_at_every_byte(t):
    s = t.serve()
    c = Client(s)
    body = dict(name='a', request='x' * 36, lease_ms=60000)
    size = len(acquire_bytes(body))
    points = [(i, None) for i in range(0, size)] + [(size, i) for i in range(0, whole_answer(c, s.port, body))]
    leaked = retried = 0
    for sent, read in points:
        body['request'] = request_id()
        cut(s.port, acquire_bytes(body), sent, read)
        answer = c.post('/v1/acquire', **dict(body))
        assert answer.status in (200, 201), (sent, read, answer)
        retried += answer.status == 200
        c.release(answer.json['grant'])
        leaked += bool(c.holders('a')) + c.waiters('a')
    t.note('%d cuts, %d retries got the grant of the first, %d leaked', len(points), retried, leaked)
    assert leaked == 0 and retried > 0


@test(*ALL)
def a_connection_cut_while_it_waits(t):
    s = t.serve()
    c = Client(s)
    for after in (0, 0.01, 0.05, 0.3):
        held = c.acquire('a')
        body = dict(name='a', request=request_id(), wait_ms=20000, lease_ms=60000)
        with socket.create_connection(('127.0.0.1', s.port)) as gone:
            gone.sendall(acquire_bytes(body))
            time.sleep(after)
        result = []
        retry = threading.Thread(target=lambda: result.append(Client(s).post('/v1/acquire', **body)))
        retry.start()
        wait_for(lambda: c.waiters('a') == 1, 'the queue')
        c.release(held['grant'])
        retry.join(10)
        assert result[0].status in (200, 201), result
        c.release(result[0].json['grant'])
        assert not c.holders('a') and not c.waiters('a')


@test('redis')
def another_server_takes_up_grants_and_retries(t):
    one, two = t.serve(), t.serve()
    c, other = Client(one), Client(two)
    ask = dict(name='a', request=request_id(), lease_ms=5000)
    grant = c.good('/v1/acquire', 201, **ask)
    again = other.renew(grant['grant'])
    assert again['fence'] == grant['fence'] and again['locks'][0]['name'] == 'a' and again['remaining_ms'] > 4000
    assert c.renew(grant['grant'])['remaining_ms'] > 4000, 'and back again'
    assert other.release(grant['grant']) == {'released': True}
    assert c.release(grant['grant'], status=410)
    # The answer was lost, and the retry goes to the other server: the first one gives way.
    ask['request'] = request_id()
    lost = c.good('/v1/acquire', 201, **ask)
    start = time.monotonic()
    moved = other.good('/v1/acquire', 201, **dict(ask, wait_ms=10000))
    assert time.monotonic() - start < 2, 'before the lease ends'
    assert moved['fence'] > lost['fence']
    c.renew(lost['grant'], status=410)
    assert len(other.holders('a')) == 1
    # A lease that is over at one server, because it was renewed at the other, is not released by it.
    grant = c.acquire('b', lease_ms=1000)
    for _ in range(8):
        time.sleep(0.3)
        other.renew(grant['grant'])
    assert other.holders('b')[0]['fence'] == grant['fence']
    assert c.renew(grant['grant'])['fence'] == grant['fence']


@test('redis')
def a_lease_that_ended_here_is_left_to_the_other_server(t):
    """A renewal is done, and its answer is read when the lease is over by the clock of the server that asked: what the engine
    has then belongs to whoever renewed it since, and is not given back."""
    one, two = t.serve(), t.serve()
    c, other = Client(one), Client(two)
    grant = c.acquire('a', lease_ms=2000)
    for _ in range(3):  # the keeper may see the end of the lease before the answer is read
        assert c.renew(grant['grant'])['fence'] == grant['fence']
        assert other.renew(grant['grant'])['fence'] == grant['fence']
        t.server.process.send_signal(signal.SIGSTOP)
        try:
            c.connection.request('POST', '/v1/renew', json.dumps({'grant': grant['grant']}), JSON)
            wait_for(lambda: unread(t.server.port), 'the renewal to be sent')
            one.process.signal(signal.SIGSTOP)
        finally:
            t.server.process.send_signal(signal.SIGCONT)
        for _ in range(9):
            time.sleep(0.25)
            assert other.renew(grant['grant'])['fence'] == grant['fence']
        one.process.signal(signal.SIGCONT)
        c.connection.getresponse().read()
        c.get('/v1/locks/a')  # what was started before it has reached the engine
        assert [h['fence'] for h in other.holders('a')] == [grant['fence']]
        assert other.renew(grant['grant'])['fence'] == grant['fence']


@contextlib.contextmanager
def stopped(process):
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def send(s, path, **body):
    """A request whose answer is read later."""
    c = Client(s)
    c.connection.request('POST', path, json.dumps(body), JSON)
    return c


def metric(c, line):
    return float(next(l for l in c.get('/metrics').body.decode().splitlines() if l.startswith(line)).split()[-1])


def deaf_client(port):
    """A connection that asks for much and reads nothing."""
    deaf = socket.create_connection(('127.0.0.1', port))
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(b'GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n' * 200)
    seen = [0]

    def is_stuck():
        seen.append(unread(port, sent=True))
        time.sleep(0.05)
        return seen[-1] > 0 and seen[-5:] == seen[-1:] * 5

    wait_for(is_stuck, 'answers that are not read')
    return deaf


def refuses(port):
    try:
        socket.create_connection(('127.0.0.1', port), timeout=5).close()
        return False
    except ConnectionRefusedError:
        return True


@test('redis')
def a_retry_of_a_request_that_does_not_wait_gets_its_answer(t):
    s = t.serve()
    ask = dict(name='a', request=request_id(), lease_ms=60000)
    Client(s).acquire('warm')
    with stopped(t.server.process):
        send(s, '/v1/acquire', **ask).close()
        wait_for(lambda: unread(s.port) == 0, 'the request to be read')
        again = send(s, '/v1/acquire', **ask)
        wait_for(lambda: unread(s.port) == 0, 'the retry to be read')
    answer = again.connection.getresponse()
    assert answer.status in (200, 201), (answer.status, answer.read())


@test('redis')
def a_broken_grant_of_another_server_may_be_released_late(t):
    """A server that took up the grant forgets it a lease after it was broken: not while its release is out."""
    t.poison()
    one, two = t.serve(), t.serve()
    c, other = Client(one), Client(two)
    grant = c.acquire('a', lease_ms=2500)['grant']
    other.renew(grant)
    assert c.post('/v1/locks/a/break', by='ops').status == 409
    wait_for(lambda: metric(other, 'dibs_lock_losses_total{cause="broken"}') == 1, 'the other server to hear of it', 5)
    with stopped(t.server.process):
        late = send(two, '/v1/release', grant=grant)
        wait_for(lambda: unread(two.port) == 0, 'the request to be read')
        time.sleep(3)  # longer than the lease
    answer = late.connection.getresponse()
    assert answer.status in (200, 410, 504), answer.read()
    assert other.acquire('b')['fence'] > 0


@test('redis')
def hundreds_of_operations_on_one_grant_end_in_order(t):
    """What waits behind a release is answered from a loop: the stack is a small one here."""
    s = t.serve()
    resource.prlimit(s.process.pid, resource.RLIMIT_STACK, (192 * 1024, 192 * 1024))
    c = Client(s)
    grant = c.acquire('a', lease_ms=60000)['grant']
    with stopped(t.server.process):
        first = send(s, '/v1/release', grant=grant)
        wait_for(lambda: unread(s.port) == 0, 'the release to be read')
        waiting = [send(s, '/v1/renew' if i % 10 else '/v1/release', grant=grant) for i in range(300)]
        wait_for(lambda: unread(s.port) == 0, 'the others to be read')
    assert first.connection.getresponse().status == 200
    statuses = [w.connection.getresponse().status for w in waiting]
    assert statuses == [410 if i % 10 else 200 for i in range(300)], statuses
    assert c.acquire('a')


@test('etcd')
def an_answer_that_comes_when_the_server_has_ended(t):
    """A grant is left to the session, so the process waits for its last outcomes: they belong to exchanges that are over."""
    t.poison()
    s = t.serve('--patience', '10m')
    c = Client(s)
    c.acquire('a', lease_ms=20000)
    grant = c.acquire('b', lease_ms=20000)['grant']
    with deaf_client(s.port) as deaf:  # it holds up the end for five seconds
        s.process.signal(15)
        wait_for(lambda: refuses(s.port), 'the end to begin')
        time.sleep(3)
        with stopped(t.server.nodes[0].process):
            c.connection.request('POST', '/v1/release', json.dumps(dict(grant=grant)), JSON)
            wait_for(lambda: unread(s.port) == 0, 'the request to be read')
            with contextlib.suppress(OSError):
                while c.connection.sock.recv(100):  # until the server closes it
                    pass
        assert s.process.wait(15) == 0
        assert deaf


@test('redis')
def a_server_that_drains_begins_nothing(t):
    s = t.serve('--patience', '10m')
    clients = [Client(s) for _ in range(4)]
    for c in clients:
        c.get('/healthz')
    with deaf_client(s.port):  # it holds up the end for five seconds
        s.process.signal(15)
        wait_for(lambda: refuses(s.port), 'the end to begin')
        asked = (('POST', '/v1/once/k/begin', {}), ('POST', '/v1/acquire', {'name': 'a'}), ('GET', '/v1/locks/b/hold', None), ('GET', '/readyz', None))
        for c, (method, path, body) in zip(clients, asked):
            answer = c.ask(method, path, body, {'Accept': 'text/event-stream'})
            assert answer.status == 503 and 'shutting down' in answer.json['detail'], (path, answer)


class Worker(threading.Thread):
    """Takes one lock again and again, at whichever server answers, and writes down when it surely held it."""

    def __init__(self, servers, history, stop):
        super().__init__(daemon=True)
        self.servers, self.history, self.stop_at, self.errors = servers, history, stop, []
        self.lost = self.moved = 0

    def ask(self, path, body):
        """Tries the servers in turn until one answers."""
        for attempt in range(40):
            s = self.servers[attempt % 2]
            try:
                answer = Client(s, checked=False, timeout=12).post(path, **body)
                if answer.status not in (502, 503, 504):
                    self.moved += attempt > 0
                    return answer
            except (OSError, ValueError, __import__('http').client.HTTPException):
                pass
            time.sleep(0.05)
        raise AssertionError('no server answers')

    def run(self):
        try:
            while boottime() < self.stop_at:
                self.turn()
        except Exception as e:  # the test looks at it
            self.errors.append(repr(e))

    def turn(self):
        body = dict(name='a', request=request_id(), wait_ms=8000, lease_ms=2000)
        answer = self.ask('/v1/acquire', body)
        if answer.status not in (200, 201):
            return
        grant = answer.json['grant']
        sent = boottime()
        first = self.ask('/v1/renew', {'grant': grant})
        if first.status != 200:
            self.lost += 1
            return
        until = sent + first.json['remaining_ms'] / 1000
        begin = boottime()
        time.sleep(0.05)
        sent = boottime()
        again = self.ask('/v1/renew', {'grant': grant})
        if again.status != 200:
            self.lost += 1
        if begin < until:
            self.history.append((begin, min(sent, until), answer.json['fence']))
        self.ask('/v1/release', {'grant': grant})


@test('redis')
def a_server_is_killed_under_load(t):
    one, two = t.serve(), t.serve()
    history, stop = [], boottime() + 12
    workers = [Worker((one, two) if i % 2 else (two, one), history, stop) for i in range(8)]
    for w in workers:
        w.start()
    wait_for(lambda: len(history) > 20, 'some work', 20)
    before = len(history)
    one.kill()
    for w in workers:
        w.join(60)
    assert not [e for w in workers for e in w.errors], [w.errors for w in workers]
    assert len(history) > before + 20, 'the work goes on'
    history.sort()
    overlaps = [(a, b) for a, b in zip(history, history[1:]) if b[0] < a[1] - 0.001]
    fences = [fence for _, _, fence in history]
    assert not overlaps, overlaps[:3]
    assert fences == sorted(fences) and len(set(fences)) == len(fences), 'fences grow'
    t.note('%d turns, %d at the other server after the kill, %d grants lost that were renewed', len(history),
           sum(w.moved for w in workers), sum(w.lost for w in workers))
    assert sum(w.lost for w in workers) == 0
    wait_for(lambda: not Client(two).holders('a') and not Client(two).waiters('a'), 'all to be free', 15)


@test('memory', 'redis')
def a_hold_that_closes_hands_over_at_once(t):
    s = t.serve()
    times, held = [], Stream(s, 'a', 'lease_ms=20000')
    held.next('granted')
    for _ in range(200):
        waiting = Stream(s, 'a', 'lease_ms=20000')
        waiting.next('queued')
        start = time.monotonic()
        held.close()
        waiting.next('granted')
        times.append((time.monotonic() - start) * 1000)
        held = waiting
    times.sort()
    t.note('closed to next holder: p50 %.2f ms, p99 %.2f ms, worst %.2f ms', times[100], times[197], times[199])
    assert times[100] < 10 and times[197] < 50, times[190:]
    client = subprocess.Popen(['curl', '-sN', '-H', 'Accept: text/event-stream', s.address + '/v1/locks/k/hold'], stdout=subprocess.PIPE)
    assert b'granted' in client.stdout.readline()
    waiting = Stream(s, 'k')
    waiting.next('queued')
    start = time.monotonic()
    client.kill()
    waiting.next('granted')
    t.note('killed to next holder: %.2f ms', (time.monotonic() - start) * 1000)
    assert time.monotonic() - start < 1
    client.wait()
    client.stdout.close()


@test(*ALL)
def a_server_drains(t):
    s = t.serve()
    c = Client(s)
    held = c.acquire('a', lease_ms=4000)
    stream = Stream(s, 'b')
    stream.next('granted')
    waiting = Client(s, checked=False)
    waiting.connection.request('POST', '/v1/acquire', json.dumps(dict(name='a', wait_ms=20000)), {'Content-Type': 'application/json'})
    wait_for(lambda: c.waiters('a') == 1, 'the queue')
    start = time.monotonic()
    s.process.signal(15)
    assert waiting.connection.getresponse().status == 503
    assert 'shutting down' in stream.next('lost')[1]['why']
    stream.close()
    assert s.process.wait(10) == 0 and time.monotonic() - start < 8
    if t.engine == 'memory':
        return
    after = t.serve()
    d = Client(after)
    assert not d.holders('b'), 'a stream released'
    assert d.renew(held['grant'])['fence'] == held['fence'], 'a grant stayed with its lease'
    assert not d.waiters('a')


@test('memory')
def a_client_that_does_not_read_holds_up_no_end(t):
    """Nothing else happens in this server: the end of the time to drain has to end it by itself."""
    s = t.serve('--patience', '10m')
    with deaf_client(s.port):
        start = time.monotonic()
        s.process.signal(15)
        assert s.process.wait(30) == 0 and time.monotonic() - start < 8, time.monotonic() - start


@test('redis')
def a_silent_engine_is_unknown(t):
    s = t.serve()
    c = Client(s)
    grant = c.acquire('a', lease_ms=60000)
    t.server.process.send_signal(signal.SIGSTOP)
    try:
        answer = c.post('/v1/renew', grant=grant['grant'])
        assert (answer.status, answer.json['code']) in ((504, 'UNKNOWN'), (503, 'UNAVAILABLE')), answer
        assert c.get('/healthz').status == 200
    finally:
        t.server.process.send_signal(signal.SIGCONT)
    wait_for(lambda: c.post('/v1/renew', grant=grant['grant']).status == 200, 'the engine', 20)
    c.release(grant['grant'])


@test('redis')
def a_run_that_is_given_up_holds_up_nobody(t):
    """Its client is silent and the engine as well: the server answers others all the time."""
    s = t.serve()
    c = Client(s)
    c.good('/v1/once/k/begin', 201, lease_ms=8000)
    time.sleep(7.5)
    slowest = 0
    with stopped(t.server.process):
        end = time.monotonic() + 12
        while time.monotonic() < end:
            start = time.monotonic()
            assert c.get('/healthz').status == 200
            slowest = max(slowest, time.monotonic() - start)
            time.sleep(0.05)
    assert slowest < 1, slowest
    wait_for(lambda: c.post('/v1/once/k/begin').json['code'] == 'CRASHED', 'the crash', 10)


@test('redis')
def an_engine_that_is_gone_is_unavailable(t):
    """Every route says so, in time and with the time to come back; what the engine lost is lost."""
    s = t.serve()
    c = Client(s)
    grant = c.acquire('a', lease_ms=60000)['grant']
    stream = Stream(s, 'h', 'lease_ms=1500')
    stream.next('granted')
    t.server.kill()
    try:
        for method, path, body in (('POST', '/v1/acquire', {'name': 'b'}), ('POST', '/v1/renew', {'grant': grant}), ('GET', '/v1/locks', None),
                                   ('GET', '/v1/locks/a', None), ('POST', '/v1/locks/a/break', {}), ('POST', '/v1/once/k/begin', {}),
                                   ('GET', '/v1/once', None), ('POST', '/v1/tokens', {}), ('POST', '/v1/counters/n/add', {}),
                                   ('GET', '/v1/cells/x', None), ('GET', '/readyz', None)):
            start = time.monotonic()
            answer = c.ask(method, path, body)
            assert answer.status == 503 and answer.json['code'] == 'UNAVAILABLE' and answer.headers['Retry-After'], (path, answer)
            assert time.monotonic() - start < 8, (path, time.monotonic() - start)
        assert c.get('/healthz').status == 200 and b'dibs_engine_up 0' in c.get('/metrics').body
        assert 'engine' in stream.next('lost')[1]['why']
    finally:
        t.server.start()
    wait_for(lambda: c.get('/readyz').status == 200, 'the engine', 20)
    c.renew(grant, status=410)  # this server keeps nothing on disk
    assert c.acquire('a')['fence'] > 0
