"""Malformed requests, and the status that each gets. None of them changes anything, and the server serves on."""

import json
import select
import socket
import time

import jsonschema

from harness import test, wait_for
from server import Client, send_raw

HOST = b'Host: localhost\r\n'
JSON = b'Content-Type: application/json\r\n'
END = b'Connection: close\r\n\r\n'


def get(path, head=HOST, more=b'', version=b'HTTP/1.1'):
    return b'GET ' + path + b' ' + version + b'\r\n' + head + more + END


def post(path, body, more=JSON, length=None, head=HOST):
    length = b'%d' % len(body) if length is None else length
    return b'POST ' + path + b' HTTP/1.1\r\n' + head + more + b'Content-Length: ' + length + b'\r\n' + END + body


def chunked(path, chunks, more=JSON):
    return b'POST ' + path + b' HTTP/1.1\r\n' + HOST + more + b'Transfer-Encoding: chunked\r\n' + END + chunks


A = b'/v1/acquire'

# What, the bytes, the statuses that are right; 0: the connection is closed without an answer.
TABLE = [
    # The request line
    ('no request line', b'\r\n\r\n\r\n', 0),
    ('binary noise', bytes(range(1, 256)) + b'\r\n\r\n', 400),
    ('TLS to a plain port', b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + b'\0' * 64, 400),
    ('no version', b'GET /v1\r\n' + HOST + b'\r\n', 400),
    ('HTTP/2 preface', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 505),
    ('version 3.0', get(b'/v1', version=b'HTTP/3.0'), 505),
    ('unknown method', b'BREW /v1 HTTP/1.1\r\n' + HOST + END, 405),
    ('lower case method', b'get /v1 HTTP/1.1\r\n' + HOST + END, 405),
    ('TRACE', b'TRACE /v1 HTTP/1.1\r\n' + HOST + END, 405),
    ('CONNECT', b'CONNECT localhost:1 HTTP/1.1\r\n' + HOST + END, 501),
    ('absolute form', get(b'http://localhost/v1'), 200),
    ('absolute form of another host', get(b'http://other/v1'), 400),
    ('target that is no path', get(b'v1'), 400),
    ('very long path', get(b'/v1/locks/' + b'a' * 20000), 431),
    ('space in the path', get(b'/v1/locks/a b'), 400),
    # Heads
    ('no Host', get(b'/v1', head=b''), 400),
    ('two Hosts', get(b'/v1', head=HOST + b'Host: other\r\n'), 400),
    ('head too large', get(b'/v1', more=b'X: ' + b'a' * 20000 + b'\r\n'), 431),
    ('too many headers', get(b'/v1', more=b''.join(b'X-%d: a\r\n' % i for i in range(2000))), 431),
    ('header without a colon', get(b'/v1', more=b'nonsense\r\n'), 400),
    ('space before the colon', get(b'/v1', more=b'Content-Length : 5\r\n'), 400),
    ('space before the colon of a coding', get(b'/v1', more=b'Transfer-Encoding : chunked\r\n'), 400),
    ('tab before the colon', get(b'/v1', more=b'X\t: 5\r\n'), 400),
    ('slash in the name of a header', get(b'/v1', more=b'a/b: c\r\n'), 400),
    ('UTF-8 in the name of a header', get(b'/v1', more=b'\xc3\xa4: b\r\n'), 400),
    ('NUL in the name of a header', get(b'/v1', more=b'a\0b: c\r\n'), 400),
    ('control character in the name of a header', get(b'/v1', more=b'a\x01b: c\r\n'), 400),
    ('control character in a header', get(b'/v1', more=b'X: a\x01b\r\n'), 400),
    ('DEL in a header', get(b'/v1', more=b'X: a\x7fb\r\n'), 400),
    ('tab in a header', get(b'/v1', more=b'X: a\tb\r\n'), 200),
    ('UTF-8 in a header', get(b'/v1', more=b'X: a\xc3\xa4b\r\n'), 200),
    # What stands behind a bare CR stays a part of the value, which is refused: it does not become a header of its own.
    ('bare CR in a header', get(b'/v1', more=b'X: a\rContent-Length: 5\r\n'), 400),
    ('header without a name', get(b'/v1', more=b': b\r\n'), 400),
    ('bare LF', get(b'/v1').replace(b'\r\n', b'\n'), 400),
    ('bare LF between two headers', get(b'/v1', more=b'X: a\nHost: other\r\n'), 400),
    ('folded line', get(b'/v1', more=b'X: a\r\n b\r\n'), 400),
    ('folded length', b'POST ' + A + b' HTTP/1.1\r\n' + HOST + JSON + b'Content-Length:\r\n 12\r\n' + END + b'{"name":"a"}', 400),
    ('folded line before any header', b'GET /v1 HTTP/1.1\r\n ' + HOST + END, 400),
    ('NUL in a header', get(b'/v1', more=b'X: a\0b\r\n'), 400),
    ('unknown Expect', get(b'/v1', more=b'Expect: tea\r\n'), 417),
    ('Upgrade', get(b'/v1', more=b'Connection: upgrade\r\nUpgrade: websocket\r\n'), 501),
    ('coding in HTTP/1.0', b'POST ' + A + b' HTTP/1.0\r\n' + HOST + JSON + b'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 400),
    ('foreign Origin', get(b'/v1', more=b'Origin: http://evil\r\n'), 403),
    # Smuggling
    ('length and chunked', b'POST ' + A + b' HTTP/1.1\r\n' + HOST + JSON + b'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 400),
    ('two lengths', post(A, b'{}', more=JSON + b'Content-Length: 3\r\n'), 400),
    ('two equal lengths', post(A, b'{}', more=JSON + b'Content-Length: 2\r\n'), 400),
    ('negative length', post(A, b'', length=b'-1'), 400),
    ('length with a sign', post(A, b'{}', length=b'+2'), 400),
    ('length in hexadecimal', post(A, b'{}', length=b'0x2'), 400),
    ('length of two numbers', post(A, b'{}', length=b'2, 2'), 400),
    ('length beyond 64 bits', post(A, b'', length=b'9' * 30), 400),
    ('unknown coding', b'POST ' + A + b' HTTP/1.1\r\n' + HOST + JSON + b'Transfer-Encoding: gzip\r\n' + END, 400),
    ('chunked twice', b'POST ' + A + b' HTTP/1.1\r\n' + HOST + JSON + b'Transfer-Encoding: chunked, chunked\r\n' + END, 400),
    ('coding hidden by a tab', b'POST ' + A + b' HTTP/1.1\r\n' + HOST + JSON + b'Transfer-Encoding:\x0bchunked\r\n' + END, 400),
    ('two codings', chunked(A, b'0\r\n\r\n', more=JSON + b'Transfer-Encoding: identity\r\n'), 400),
    ('chunk size that is none', chunked(A, b'zz\r\n{}\r\n0\r\n\r\n'), 400),
    ('chunk size beyond 64 bits', chunked(A, b'f' * 20 + b'\r\n{}\r\n0\r\n\r\n'), 400),
    ('length that is empty', post(A, b'', length=b''), 400),
    ('chunk longer than its size', chunked(A, b'1\r\n{}\r\n0\r\n\r\n'), 400),
    # Paths
    ('dots', get(b'/v1/locks/../locks'), 400),
    ('one dot', get(b'/v1/./locks'), 400),
    ('escaped dots', get(b'/v1/locks/%2e%2e'), 400),
    ('half escaped dots', get(b'/v1/locks/.%2E'), 400),
    ('invalid escape', get(b'/v1/locks/%zz'), 400),
    ('cut escape', get(b'/v1/locks/a%2'), 400),
    ('escaped NUL', get(b'/v1/locks/a%00b'), 400),
    ('no UTF-8', get(b'/v1/locks/%ff%fe'), 400),
    ('overlong UTF-8', get(b'/v1/locks/%c0%af'), 400),
    ('surrogate', get(b'/v1/locks/%ed%a0%80'), 400),
    ('name of 513 bytes', get(b'/v1/locks/' + b'a' * 513), 400),
    ('empty name', get(b'/v1/locks/'), 404),
    ('two slashes', get(b'//v1/locks'), 404),
    ('file outside', get(b'/..%2f..%2fetc/passwd'), (400, 404)),
    ('unknown path', get(b'/v2/locks'), 404),
    ('wrong method', post(b'/v1/locks', b'{}'), 405),
    # Queries
    ('unknown parameter', get(b'/v1/locks?colour=red'), 400),
    ('parameter twice', get(b'/v1/locks?limit=1&limit=2'), 400),
    ('limit is no number', get(b'/v1/locks?limit=many'), 400),
    ('limit is zero', get(b'/v1/locks?limit=0'), 400),
    ('limit is huge', get(b'/v1/locks?limit=99999999999999999999'), 400),
    ('idle is no boolean', get(b'/v1/locks?idle=yes'), 400),
    ('escape in the query', get(b'/v1/locks?prefix=%f'), 400),
    ('stream without Accept', get(b'/v1/locks/a/hold'), 406),
    ('stream with a bad lease', get(b'/v1/locks/a/hold?lease_ms=1', more=b'Accept: text/event-stream\r\n'), 400),
    # Bodies
    ('no JSON', post(A, b'name=a'), 400),
    ('cut JSON', post(A, b'{"name": "a"'), 400),
    ('rubbish behind JSON', post(A, b'{"name": "a"} {}'), 400),
    ('an array', post(A, b'["a"]'), 400),
    ('a text', post(A, b'"a"'), 400),
    ('nothing', post(A, b''), 400),
    ('no type', post(A, b'{"name": "a"}', more=b''), 415),
    ('form', post(A, b'name=a', more=b'Content-Type: application/x-www-form-urlencoded\r\n'), 415),
    ('type that begins alike', post(A, b'{"name": "a"}', more=b'Content-Type: application/jsonx\r\n'), 415),
    ('member twice', post(A, b'{"name": "a", "name": "b"}'), 400),
    ('unknown member', post(A, b'{"name": "a", "wait": 5}'), 400),
    ('name is a number', post(A, b'{"name": 5}'), 400),
    ('name is empty', post(A, b'{"name": ""}'), 400),
    ('name is null', post(A, b'{"name": null}'), 400),
    ('name with a NUL', post(A, b'{"name": "a\\u0000b"}'), 400),
    ('name that is no UTF-8', post(A, b'{"name": "\xff"}'), 400),
    ('name with half a surrogate', post(A, b'{"name": "\\ud800"}'), 400),
    ('name too long', post(A, b'{"name": "' + b'a' * 513 + b'"}'), 400),
    ('name and names', post(A, b'{"name": "a", "names": ["b"]}'), 400),
    ('no names', post(A, b'{"names": []}'), 400),
    ('17 names', post(A, b'{"names": [' + b','.join(b'"%d"' % i for i in range(17)) + b']}'), 400),
    ('names of numbers', post(A, b'{"names": [1]}'), 400),
    ('wait is a text', post(A, b'{"name": "a", "wait_ms": "5"}'), 400),
    ('wait is a fraction', post(A, b'{"name": "a", "wait_ms": 5.5}'), 400),
    ('wait is negative', post(A, b'{"name": "a", "wait_ms": -1}'), 400),
    ('wait is for ever', post(A, b'{"name": "a", "wait_ms": 9223372036854775807}'), 400),
    ('wait beyond 64 bits', post(A, b'{"name": "a", "wait_ms": 1e99}'), 400),
    ('lease too short', post(A, b'{"name": "a", "lease_ms": 1}'), 400),
    ('shared is a number', post(A, b'{"name": "a", "shared": 1}'), 400),
    ('weight without slots', post(A, b'{"name": "a", "weight": 2}'), 400),
    ('weight above slots', post(A, b'{"name": "a", "weight": 3, "slots": 2}'), 400),
    ('shared semaphore', post(A, b'{"name": "a", "shared": true, "slots": 2}'), 400),
    ('short request id', post(A, b'{"name": "a", "request": "short"}'), 400),
    ('request id with a space', post(A, b'{"name": "a", "request": "0123456789 abcdef"}'), 400),
    ('body too large', post(A, b'{"name": "' + b'a' * 70000 + b'"}'), 413),
    ('body said to be too large', post(A, b'', length=b'100000000'), 413),
    ('chunked body too large', chunked(A, b'20000\r\n' + b' ' * 0x20000 + b'\r\n0\r\n\r\n'), 413),
    ('nested deeply', post(A, b'{"name": ' + b'[' * 30000 + b']' * 30000 + b'}'), 400),
    ('body where there is none', post(b'/v1/locks/a/hold', b'{}'), 405),
    ('grant that is none', post(b'/v1/renew', b'{"grant": "x"}'), 400),
    ('grant of garbage', post(b'/v1/release', b'{"grant": "g1000~dibs1.AAAA.0000000000000000"}'), 400),
    ('grant of 40 texts', post(b'/v1/release', b'{"grant": "g1000' + b'~a' * 40 + b'"}'), 400),
    ('bound grant of garbage', post(b'/v1/renew', b'{"grant": "b~zz"}'), 400),
    ('run that is none', post(b'/v1/once/k/finish', b'{"run": "x"}'), 400),
    ('run of garbage', post(b'/v1/once/k/finish', b'{"run": "b~~~zz"}'), 400),
    ('on_crash that is none', post(b'/v1/once/k/begin', b'{"on_crash": "panic"}'), 400),
    ('negative counter', b'PUT /v1/counters/c HTTP/1.1\r\n' + HOST + JSON + b'Content-Length: 13\r\n' + END + b'{"value": -5}', 400),
    ('taking nothing', post(b'/v1/counters/c/take', b'{"n": 0}'), 400),
    ('cell without a condition', b'PUT /v1/cells/c HTTP/1.1\r\n' + HOST + b'Content-Length: 1\r\n' + END + b'a', 428),
    ('cell with two conditions', b'PUT /v1/cells/c HTTP/1.1\r\n' + HOST + b'If-Match: *\r\nIf-None-Match: *\r\nContent-Length: 1\r\n' + END + b'a', 400),
    ('fence beyond 63 bits', b'PUT /v1/cells/c HTTP/1.1\r\n' + HOST + b'If-None-Match: *\r\nDibs-Fence: 9223372036854775808\r\nContent-Length: 1\r\n' + END + b'a', 400),
    ('weak ETag', b'PUT /v1/cells/c HTTP/1.1\r\n' + HOST + b'If-Match: W/"5"\r\nContent-Length: 1\r\n' + END + b'a', 400),
    ('cell too large', b'PUT /v1/cells/c HTTP/1.1\r\n' + HOST + b'If-None-Match: *\r\nContent-Length: 1048577\r\n' + END, 413),
]


def status(answer):
    return int(answer.split(b' ')[1]) if answer.startswith(b'HTTP/1.') else 0


def check_raw(document, got):
    """A problem as the document has it."""
    head, _, body = got.partition(b'\r\n\r\n')
    assert b'application/problem+json' in head, got
    problem = json.loads(body)
    jsonschema.Draft202012Validator(dict(document['components']['schemas']['Problem'], components=document['components'])).validate(problem)
    assert problem['status'] == status(got), got


@test('memory')
def malformed_requests(t):
    s = t.serve('--patience', '3s')
    c = Client(s)
    assert len(TABLE) >= 60
    wrong = []
    for what, data, right in TABLE:
        answer = send_raw(s.port, data, 6)
        got = status(answer)
        if got >= 400:
            check_raw(s.openapi(), answer)
        right = right if isinstance(right, tuple) else (right,)
        if got not in right:
            wrong.append((what, got, right))
    assert not wrong, wrong
    assert s.process.popen.poll() is None
    after = Client(s)
    locks = [lock['name'] for lock in after.get('/v1/locks?idle=true').json['locks']]
    assert locks == [], 'none of them took a lock: %s' % locks
    assert after.get('/v1/once').json['keys'] == [] and after.get('/v1/counters/c').status == 404
    t.note('%d malformed requests', len(TABLE))
    c.close()


@test('memory')
def slow_requests_are_cut(t):
    s = t.serve('--patience', '1s')
    whole = post(A, b'{"name": "slow"}')
    for step in (1, 40):
        with socket.create_connection(('127.0.0.1', s.port), timeout=10) as drip:
            start, at = time.monotonic(), 0
            while not select.select([drip], [], [], 0.3)[0]:
                drip.sendall(whole[at:at + step])
                at += step
            assert status(drip.recv(1000)) == (408 if step == 1 else 201), 'a request that drips is cut'
            assert time.monotonic() - start < 4
    with socket.create_connection(('127.0.0.1', s.port), timeout=10) as idle:
        start = time.monotonic()
        assert idle.recv(10) == b'' and time.monotonic() - start < 5, 'an idle connection is closed'


@test('memory')
def keep_alive_and_pipelining(t):
    s = t.serve()
    line = b'GET /healthz HTTP/1.1\r\n' + HOST + b'\r\n'
    waiting = post(A, b'{"name": "a", "wait_ms": 300}').replace(END, b'\r\n')
    got = send_raw(s.port, line + waiting + waiting + line + get(b'/nothing'), 6)
    statuses = [int(part.split(b' ')[0]) for part in got.split(b'HTTP/1.1 ')[1:]]
    assert statuses == [200, 201, 409, 200, 404], (statuses, got)
    got = send_raw(s.port, b'HEAD /v1 HTTP/1.1\r\n' + HOST + b'\r\n' + get(b'/healthz'), 6)
    assert got.count(b'HTTP/1.1 200') == 2 and got.count(b'{') == 1, got
    got = send_raw(s.port, b'OPTIONS * HTTP/1.1\r\n' + HOST + END, 6)
    assert got.startswith(b'HTTP/1.1 204') and b'Allow: ' in got


def answers(data):
    """(status, body) of several answers, none of them to HEAD."""
    while data:
        head, _, rest = data.partition(b'\r\n\r\n')
        size = int(head.split(b'Content-Length: ')[1].split(b'\r\n')[0])
        yield status(head), rest[:size]
        data = rest[size:]


@test('memory')
def requests_come_in_pieces(t):
    """Cut in two at every byte, they are understood as when they come whole; so are their neighbours in the pipeline."""
    s = t.serve()
    Client(s).ask('PUT', '/v1/counters/c', {'value': 100000})
    piped = (post(b'/v1/counters/c/take', b'{"n": 1}') + chunked(b'/v1/counters/c/take', b'4\r\n{"n"\r\n4\r\n: 1}\r\n0\r\n\r\n')).replace(END, b'\r\n')
    piped += b'\r\n' + get(b'/v1/counters/c')  # an empty line between requests is allowed
    for cut in range(len(piped)):
        with socket.create_connection(('127.0.0.1', s.port), timeout=10) as c:
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            c.sendall(piped[:cut])
            time.sleep(0.001)
            c.sendall(piped[cut:])
            got = b''.join(iter(lambda: c.recv(65536), b''))
        parts = list(answers(got))
        assert [code for code, _ in parts] == [200, 200, 200], (cut, got)
        assert json.loads(parts[2][1])['value'] == 100000 - 2 * (cut + 1), (cut, got)


@test('memory')
def a_client_that_asks_first_is_told_to_go_on(t):
    s = t.serve()
    body = b'{"name": "a"}'
    head = b'POST ' + A + b' HTTP/1.1\r\n' + HOST + JSON + b'Expect: 100-continue\r\n'
    with socket.create_connection(('127.0.0.1', s.port), timeout=10) as c:
        c.sendall(head + b'Content-Length: %d\r\n\r\n' % len(body))
        assert c.recv(1000) == b'HTTP/1.1 100 Continue\r\n\r\n'
        c.sendall(body)
        assert status(c.recv(4000)) == 201
        c.sendall(head + b'Content-Length: 100000\r\n\r\n')
        assert status(c.recv(4000)) == 413, 'the body need not be sent'
        assert c.recv(1000) == b'', 'what would come next is not clear'


@test('memory')
def http_1_0(t):
    s = t.serve()
    got = send_raw(s.port, b'GET /healthz HTTP/1.0\r\n\r\n', 6)
    assert got.startswith(b'HTTP/1.1 200') and b'Connection: close' in got
    got = send_raw(s.port, b'GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n', 6)
    assert got.count(b'HTTP/1.1 200') == 2 and got.count(b'Connection: keep-alive') == 1, got
    with socket.create_connection(('127.0.0.1', s.port), timeout=10) as c:
        c.sendall(b'GET /v1/locks/a/hold HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n')
        got = c.recv(4000)
        while b'granted' not in got:
            got += c.recv(4000)
        assert b'chunked' not in got and b'\r\n\r\nevent: ' in got, got


@test('memory')
def connections_are_limited(t):
    s = t.serve('--connections', '20')
    held = []
    for _ in range(30):
        c = socket.create_connection(('127.0.0.1', s.port), timeout=2)
        held.append(c)
        c.sendall(b'GET /healthz HTTP/1.1\r\n' + HOST + b'\r\n')
    answered = 0
    for c in held:
        try:
            answered += c.recv(100).startswith(b'HTTP/1.1 200')
        except (TimeoutError, ConnectionError):
            pass
    assert 15 <= answered <= 20, answered
    for c in held:
        c.close()
    wait_for(lambda: b' 200 ' in send_raw(s.port, get(b'/healthz'), 2), 'room')
