"""Malformed requests and attempts at smuggling: nothing reaches the application that the gateway understood differently."""

import contextlib
import socket
import time

from gateway import Client, new_key
from harness import test, wait_for

HOST = b'Host: shop.example\r\n'
KEY = b'Idempotency-Key: "k"\r\n'
INNER = b'GET /smuggled HTTP/1.1\r\nHost: shop.example\r\n\r\n'


def get(target=b'/a', headers=HOST, version=b'HTTP/1.1', method=b'GET'):
    return method + b' ' + target + b' ' + version + b'\r\n' + headers + b'\r\n'


def post(headers, body=b'', target=b'/orders'):
    return b'POST ' + target + b' HTTP/1.1\r\n' + HOST + headers + b'\r\n' + body


def both(name, *headers_and_body):
    """On a route that is guarded, and on one that is not: the two ways a body goes through."""
    headers, body, right = headers_and_body
    return [(name, post(headers, body, b'/plain'), right), (name + ', guarded', post(b'Idempotency-Key: "%s"\r\n' % name.replace(' ', '-').encode() + headers, body), right)]


CHUNKED = b'Transfer-Encoding: chunked\r\n'
# What, the bytes, the statuses that are right (0: closed without an answer; -1: it may come through, as one clean request).
TABLE = [
    # The request line
    ('nothing but line ends', b'\r\n\r\n\r\n', (0, 400)),
    ('noise', bytes(range(128, 256)) + b'\r\n\r\n', (0, 400)),
    ('TLS to a plain port', b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + b'\0' * 64 + b'\r\n\r\n', (0, 400)),
    ('HTTP/2 preface', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', (0, 400, 501, 505)),
    ('no version', b'GET /a\r\n' + HOST + b'\r\n', (400,)),
    ('version 1.2', get(version=b'HTTP/1.2'), (400, 505)),
    ('version 2.0', get(version=b'HTTP/2.0'), (400, 505)),
    ('version in lower case', get(version=b'http/1.1'), (400, 505)),
    ('version 1.1x', get(version=b'HTTP/1.1x'), (400, 505)),
    ('two spaces', get(b' /a'), (400,)),
    ('a tab as separator', b'GET\t/a\tHTTP/1.1\r\n' + HOST + b'\r\n', (400,)),
    ('a space at the end', b'GET /a HTTP/1.1 \r\n' + HOST + b'\r\n', (400, 505)),
    ('a space in the target', get(b'/a b'), (400,)),
    ('a control character in the target', get(b'/a\x01b'), (400,)),
    ('NUL in the target', get(b'/a\0b'), (400,)),
    ('a byte above 127 in the target', get(b'/caf\xe9'), (400, -1)),
    ('a fragment', get(b'/a#b'), (400,)),
    ('no slash', get(b'a'), (400,)),
    ('empty target', get(b''), (400,)),
    ('invalid escape', get(b'/a%zz'), (400, -1)),
    ('escaped NUL', get(b'/a%00'), (400, -1)),
    ('method with a bad character', get(method=b'GE(T'), (400, 501)),
    ('CONNECT', get(b'other.example:80', method=b'CONNECT'), (400, 501)),
    ('very long target', get(b'/' + b'a' * 20000), (414, 431, 400)),
    ('absolute form of another host', get(b'http://other.example/a'), (400, 421)),
    ('absolute form with a user', get(b'http://a@shop.example/a'), (400, -1)),
    # Heads
    ('no Host', get(headers=b''), (400,)),
    ('no Host in HTTP/1.0', b'GET /a HTTP/1.0\r\n\r\n', (400,)),
    ('two Hosts', get(headers=HOST + b'Host: other\r\n'), (400,)),
    ('two equal Hosts', get(headers=HOST + HOST), (400,)),
    ('Host with a space', get(headers=b'Host: a b\r\n'), (400,)),
    ('Host with a slash', get(headers=b'Host: a/b\r\n'), (400,)),
    ('Host with a comma', get(headers=b'Host: a,b\r\n'), (400, -1)),
    ('space before the colon', get(headers=HOST + b'X-A : 1\r\n'), (400,)),
    ('tab before the colon', get(headers=HOST + b'X-A\t: 1\r\n'), (400,)),
    ('folded line', get(headers=HOST + b'X-A: 1\r\n 2\r\n'), (400,)),
    ('folded by a tab', get(headers=HOST + b'X-A: 1\r\n\tContent-Length: 5\r\n'), (400,)),
    ('first line folded', b'GET /a HTTP/1.1\r\n Host: x\r\n' + HOST + b'\r\n', (400,)),
    ('no colon', get(headers=HOST + b'nonsense\r\n'), (400,)),
    ('no name', get(headers=HOST + b': value\r\n'), (400,)),
    ('bad character in a name', get(headers=HOST + b'X(A): 1\r\n'), (400,)),
    ('NUL in a value', get(headers=HOST + b'X-A: a\0b\r\n'), (400,)),
    ('control character in a value', get(headers=HOST + b'X-A: a\x01b\r\n'), (400,)),
    ('delete in a value', get(headers=HOST + b'X-A: a\x7fb\r\n'), (400,)),
    ('bare CR in a value', get(headers=HOST + b'X-A: a\rX-B: b\r\n'), (400,)),
    ('bare CR and a smuggled header', get(headers=HOST + b'X-A: a\rTransfer-Encoding: chunked\r\n'), (400,)),
    ('bare LF line ends', b'GET /a HTTP/1.1\nHost: shop.example\n\n', (400, -1)),
    ('one bare LF', b'GET /a HTTP/1.1\r\nHost: shop.example\nX-A: 1\r\n\r\n', (400, -1)),
    ('head too large', get(headers=HOST + b'X-A: ' + b'a' * 20000 + b'\r\n'), (431, 400)),
    ('too many headers', get(headers=HOST + b''.join(b'X-%d: 1\r\n' % i for i in range(101))), (431, 400)),
    ('Upgrade', get(headers=HOST + b'Connection: Upgrade\r\nUpgrade: websocket\r\n'), (501, 400)),
    ('h2c', get(headers=HOST + b'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n'), (501, 400)),
    ('unknown expectation', post(b'Expect: miracles\r\nContent-Length: 0\r\n', target=b'/plain'), (417, 400, -1)),
    # Bodies
    *both('length and chunked', b'Content-Length: 4\r\n' + CHUNKED, b'0\r\n\r\n' + INNER, (400,)),
    *both('chunked and length', CHUNKED + b'Content-Length: 6\r\n', b'0\r\n\r\nG', (400,)),
    *both('two lengths', b'Content-Length: 5\r\nContent-Length: 6\r\n', b'hello' + INNER, (400,)),
    *both('two equal lengths', b'Content-Length: 5\r\nContent-Length: 5\r\n', b'hello', (400,)),
    *both('a list of lengths', b'Content-Length: 5, 5\r\n', b'hello', (400,)),
    *both('negative length', b'Content-Length: -1\r\n', b'', (400,)),
    *both('length with a sign', b'Content-Length: +5\r\n', b'hello', (400,)),
    *both('hexadecimal length', b'Content-Length: 0x5\r\n', b'hello', (400,)),
    *both('length with a space', b'Content-Length: 1 0\r\n', b'hello' * 2, (400,)),
    *both('empty length', b'Content-Length: \r\n', b'hello', (400,)),
    *both('length that is no number', b'Content-Length: five\r\n', b'hello', (400,)),
    *both('length beyond 64 bits', b'Content-Length: 18446744073709551621\r\n', b'hello', (400, 413)),
    *both('length with a vertical tab', b'Content-Length: \x0b5\r\n', b'hello', (400,)),
    *both('length by another name', b'Content_Length: 40\r\nContent-Length: 0\r\n', INNER[:0], (-1,)),
    *both('space before the colon of a length', b'Content-Length : 5\r\n', b'hello', (400,)),
    *both('coding gzip', b'Transfer-Encoding: gzip\r\n', b'hello', (400, 501)),
    *both('coding gzip, chunked', b'Transfer-Encoding: gzip, chunked\r\n', b'0\r\n\r\n', (400, 501)),
    *both('coding chunked, gzip', b'Transfer-Encoding: chunked, gzip\r\n', b'0\r\n\r\n', (400, 501)),
    *both('coding chunked, chunked', b'Transfer-Encoding: chunked, chunked\r\n', b'0\r\n\r\n', (400, 501)),
    *both('coding identity', b'Transfer-Encoding: identity\r\nContent-Length: 5\r\n', b'hello', (400, 501)),
    *both('coding xchunked', b'Transfer-Encoding: xchunked\r\n', b'0\r\n\r\n', (400, 501)),
    *both('coding in quotes', b'Transfer-Encoding: "chunked"\r\n', b'0\r\n\r\n', (400, 501)),
    *both('coding with a parameter', b'Transfer-Encoding: chunked;a=b\r\n', b'0\r\n\r\n', (400, 501)),
    *both('coding behind a vertical tab', b'Transfer-Encoding: \x0bchunked\r\n', b'0\r\n\r\n', (400, 501)),
    *both('two codings', CHUNKED + CHUNKED, b'0\r\n\r\n', (400, 501)),
    *both('coding folded', b'Transfer-Encoding:\r\n chunked\r\n', b'0\r\n\r\n', (400, 501)),
    *both('coding with a tab', b'Transfer-Encoding:\tchunked\r\n', b'0\r\n\r\n', (-1,)),
    *both('coding in capitals', b'TRANSFER-ENCODING: CHUNKED\r\n', b'0\r\n\r\n', (-1,)),
    *both('chunk size that is none', CHUNKED, b'zz\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('chunk size with 0x', CHUNKED, b'0x5\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('chunk size with a sign', CHUNKED, b'+5\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('chunk size with a space', CHUNKED, b' 5\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('empty chunk size', CHUNKED, b'\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('chunk size beyond 64 bits', CHUNKED, b'10000000000000005\r\nhello\r\n0\r\n\r\n', (0, 400, 413)),
    *both('chunk longer than its size', CHUNKED, b'3\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('chunk shorter than its size', CHUNKED, b'7\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('chunk line ended by LF', CHUNKED, b'5\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('chunk data ended by LF', CHUNKED, b'5\r\nhello\n0\r\n\r\n', (0, 400)),
    *both('LF in a chunk extension', CHUNKED, b'5;a\nx\r\nhello\r\n0\r\n\r\n' + INNER, (0, 400)),
    *both('CR in a chunk extension', CHUNKED, b'5;a\rx\r\nhello\r\n0\r\n\r\n', (0, 400)),
    *both('a long chunk extension', CHUNKED, b'5;' + b'a' * 70000 + b'\r\nhello\r\n0\r\n\r\n', (0, 400, 413, 431)),
    *both('a trailer that is a length', CHUNKED, b'0\r\nContent-Length: 50\r\n\r\n', (-1, 0, 400)),
    *both('a folded trailer', CHUNKED, b'0\r\nX-A: 1\r\n 2\r\n\r\n', (0, 400)),
    *both('a trailer with a space', CHUNKED, b'0\r\nX-A : 1\r\n\r\n', (0, 400)),
    *both('endless trailers', CHUNKED, b'0\r\n' + b'X-A: 1\r\n' * 20000 + b'\r\n', (0, 400, 413, 431)),
    ('chunked by HTTP/1.0', b'POST /plain HTTP/1.0\r\n' + HOST + CHUNKED + b'\r\n0\r\n\r\n', (400, 501)),
    ('hop-by-hop key', post(KEY + b'Connection: Idempotency-Key\r\nContent-Length: 0\r\n', target=b'/required'), (-1, 400)),
    ('hop-by-hop length', post(b'Connection: Content-Length\r\nContent-Length: 45\r\n', INNER, b'/plain'), (-1, 400)),
    ('hop-by-hop Host', get(headers=HOST + b'Connection: Host\r\n'), (-1, 400)),
    ('GET with a body', get(headers=HOST + b'Content-Length: 45\r\n')[:-2] + b'\r\n' + INNER, (-1, 400)),
    ('guarded body too large', post(KEY + b'Content-Length: 2000000\r\n'), (413,)),
    ('guarded chunked body too large', post(KEY + CHUNKED, b''.join(b'10000\r\n' + b'a' * 65536 + b'\r\n' for _ in range(20)) + b'0\r\n\r\n'), (413,)),
]
ROUTES = ({'path': '/orders', 'key': 'required', 'caller': 'none'}, {'path': '/required', 'key': 'required', 'caller': 'none'})


def send(port, data, seconds=5):
    """Everything that comes back until the gateway closes, or is silent for a moment after an answer."""
    got = b''
    with socket.create_connection(('127.0.0.1', port), timeout=seconds) as s:
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)  # no more will come: what is not whole now never will be
            while more := s.recv(65536):
                got += more
        except (TimeoutError, ConnectionError):
            pass
    return got


def status(answer):
    return int(answer.split(b' ')[1]) if answer.startswith(b'HTTP/1.1 ') else 0


@test('sqlite')
def nothing_is_smuggled(t):
    app, g, c = t.pair(*ROUTES)
    wrong = []
    for what, data, right in TABLE:
        before = len(app.log('request'))
        answer = send(g.port, data)
        requests = app.log('request')[before:]
        through = len(requests) > 0
        if status(answer) not in right and not (through and -1 in right):
            wrong.append((what, answer[:200], [r['target'] for r in requests]))
        if len(app.runs()) and through and -1 not in right and status(answer) < 400:
            wrong.append((what, 'came through', requests))
        if len(requests) > 1 and status(answer) in (0, 400):
            wrong.append((what, 'became %d requests' % len(requests), requests))
    assert not app.log('garbage'), app.log('garbage')
    smuggled = [r for r in app.log('request') if 'smuggled' in r['target']]
    assert not smuggled, smuggled
    assert not wrong, '\n'.join(map(str, wrong))
    assert c.post('/orders', key=new_key()).status == 201, 'it serves on'
    t.note('%d malformed requests', len(TABLE))


@test('sqlite')
def what_is_understood_is_written_anew(t):
    """The application gets what was understood, in one clean form; hop-by-hop headers stay behind."""
    app, g, c = t.pair(*ROUTES)
    c.send(b'POST /plain?a=1 HTTP/1.1\r\nHost: shop.example\r\nX-One:   1  \r\nx-TWO:2\r\nConnection: X-Private, keep-alive\r\nX-Private: 1\r\n'
           b'Keep-Alive: timeout=5\r\nTE: trailers\r\nProxy-Authorization: Basic x\r\nTransfer-Encoding: chunked\r\n\r\n'
           b'3;x=1\r\nabc\r\n2\r\nde\r\n0\r\n\r\n')
    assert c.read().status == 201
    request, run = app.log('request')[-1], app.runs()[-1]
    names = [n.lower() for n, _ in request['headers']]
    assert request['target'] == '/plain?a=1' and run['size'] == 5
    assert ['X-One', '1'] in request['headers'] and ['x-TWO', '2'] in request['headers']
    assert not {'x-private', 'keep-alive', 'proxy-authorization'} & set(names), names
    assert 'via' in names
    named = {n.lower(): v for n, v in request['headers']}
    assert (named['x-forwarded-for'], named['x-forwarded-proto'], named['x-forwarded-host']) == ('127.0.0.1', 'http', 'shop.example'), named
    for said in ('X-Forwarded-For: 6.6.6.6', 'X-Forwarded-Proto: evil', 'X-Forwarded-Host: evil', 'Forwarded: for=6.6.6.6', 'Dibs-Attempt: 666',
                 'X_Forwarded_For: 6.6.6.6', 'x-forwarded_host: evil', 'X_FORWARDED-PROTO: evil', 'Dibs_Attempt: 666', 'Idempotency_Key: evil',
                 'Dibs_Token: evil', 'dibs-fence: 1\r\ndibs_fence: 666', 'Content_Length: 666', 'Transfer_Encoding: evil',
                 'X.Forwarded.For: 6.6.6.6', 'X-Forwarded~Host: evil', 'dibs!attempt: 666', 'Idempotency.Key: evil', 'Content|Length: 666'):
        c.send(b'GET /a HTTP/1.1\r\nHost: shop.example\r\nX_Own: 1\r\nX.Own: 1\r\n%s\r\n\r\n' % said.encode())
        c.read('GET')
        headers = app.log('request')[-1]['headers']
        assert ['X_Own', '1'] in headers and ['X.Own', '1'] in headers and not any(evil in str(headers) for evil in ('6.6.6.6', '666', 'evil')), (said, headers)
        c.send(b'POST /plain HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n%s\r\n\r\n' % said.encode())
        assert c.read().status == 201 and app.runs()[-1]['trailers'] == [['X-Sum', '1']], (said, app.runs()[-1])
    trusting = Client(t.gateway(app, ROUTES, limits={'trusted': ['127.0.0.0/8']}))
    trusting.ask('GET', '/a', X_Forwarded_For='6.6.6.6')
    assert {n.lower(): v for n, v in app.log('request')[-1]['headers']}['x-forwarded-for'].startswith('6.6.6.6'), app.log('request')[-1]


@test('sqlite')
def keep_alive_pipelining_and_expect(t):
    app, g, c = t.pair(*ROUTES)
    one = b'POST /orders HTTP/1.1\r\n' + HOST + b'Idempotency-Key: "p"\r\nContent-Length: 3\r\n\r\nabc'
    c.send(one + one + b'GET /a HTTP/1.1\r\n' + HOST + b'\r\n' + one)
    answers = [c.read() for _ in range(4)]
    assert [a.status for a in answers] == [201] * 4 and [a.replayed for a in answers] == [False, True, False, True], answers
    assert answers[0].body == answers[1].body == answers[3].body
    for path, key in (('/orders', b'Idempotency-Key: "e"\r\n'), ('/plain', b'')):
        c.send(b'POST ' + path.encode() + b' HTTP/1.1\r\n' + HOST + key + b'Expect: 100-continue\r\nContent-Length: 3\r\n\r\n')
        assert b' 100 ' in c.until(b'\r\n\r\n'), path
        c.send(b'abc')
        assert c.read().status == 201
    head = c.ask('HEAD', '/a')
    assert head.status == 201 and head.body == b'' and int(head.get('Content-Length')) > 0
    assert c.ask('OPTIONS', '/a').status == c.ask('BREW', '/a').status == 201
    connections = {r['connection'] for r in app.log('request')}
    assert len(connections) <= 3, 'the connection to the application is kept: %s' % connections


@test('sqlite')
def slow_clients_are_bounded(t):
    app, g, _ = t.pair(*ROUTES, limits={'slow': '1s', 'connections': 50})
    for data in (b'POST /orders HTTP/1.1\r\n', post(KEY + b'Content-Length: 100\r\n', b'abc'), post(b'Content-Length: 100\r\n', b'abc', b'/plain')):
        with socket.create_connection(('127.0.0.1', g.port), timeout=10) as s:
            s.sendall(data)
            start = time.monotonic()
            got = b''
            try:
                while more := s.recv(1000):
                    got += more
            except ConnectionError:
                pass
            assert time.monotonic() - start < 6 and status(got) in (0, 400, 408, 502), (data, got)
    assert not app.runs()
    held = [socket.create_connection(('127.0.0.1', g.port), timeout=3) for _ in range(60)]

    def served():
        with contextlib.suppress(EOFError, OSError):
            return Client(g, 3).post('/plain').status == 201

    wait_for(served, 'room for others after the slow', 15)
    for s in held:
        s.close()


@test('sqlite')
def large_bodies_stream_through(t):
    """Unguarded, both ways, in bounded memory."""
    app, g, c = t.pair(*ROUTES)
    body = b'0123456789abcdef' * 65536 * 16
    answer = c.post('/plain?size=%d' % len(body), body)
    assert answer.status == 201 and len(answer.body) == len(body) == app.runs()[-1]['size']
    with open('/proc/%d/status' % g.process.pid) as f:
        peak = next(int(line.split()[1]) for line in f if line.startswith('VmHWM'))
    t.note('%d MiB in and out; the gateway had at most %d MiB', len(body) >> 20, peak >> 10)
    assert peak < 100 * 1024, peak


@test('sqlite')
def the_queue_to_the_application_is_bounded(t):
    app, g, _ = t.pair(*ROUTES, limits={'upstream': 2})
    app.stop_points(True)
    clients = [Client(g) for _ in range(5)]
    for n, c in enumerate(clients[:4]):
        c.start('GET', '/a?stop=run')
        if n < 2:
            app.wait_at('run', n + 1)
    time.sleep(0.3)
    assert clients[4].ask('GET', '/a?stop=run').status == 503, 'two are served, two wait'
    app.stop_points(False)
    assert [c.read('GET').status for c in clients[:4]] == [201] * 4
