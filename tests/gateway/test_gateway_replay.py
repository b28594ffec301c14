"""Replays are the first answer again, byte for byte: a corpus of answers as applications write them."""

import gzip
import os

from gateway import Client, new_key
from harness import test, wait_for

HOP = {b'connection', b'keep-alive', b'proxy-connection', b'proxy-authenticate', b'te', b'trailer', b'transfer-encoding', b'upgrade'}
NOT_KEPT = {b'set-cookie', b'www-authenticate', b'authentication-info', b'date'}  # by default
OURS = {b'date', b'via', b'idempotent-replayed', b'dibs-first-date', b'content-length'}  # what a gateway may add
BINARY = bytes(range(256)) * 4


def length(status, body=b'', *headers, reason=b'OK', name=b'Content-Length'):
    lines = [b'HTTP/1.1 %d %s' % (status, reason), *headers, b'%s: %d' % (name, len(body))]
    return b'\r\n'.join(lines) + b'\r\n\r\n' + body


def chunked(status, pieces, *headers, trailers=(), name=b'Transfer-Encoding', extension=b'', reason=b'OK'):
    lines = [b'HTTP/1.1 %d %s' % (status, reason), *headers, name + b': chunked']
    body = b''.join(b'%x%s\r\n%s\r\n' % (len(p), extension, p) for p in pieces)
    return b'\r\n'.join(lines) + b'\r\n\r\n' + body + b'0\r\n' + b''.join(t + b'\r\n' for t in trailers) + b'\r\n'


def bare(status, *headers, reason=b'OK'):
    return b'\r\n'.join([b'HTTP/1.1 %d %s' % (status, reason), *headers]) + b'\r\n\r\n'


# name, the application's bytes, and the method if it is not POST. A name that ends with .close ends the connection.
CORPUS = [
    ('plain', length(200, b'hello')),
    ('empty', length(200)),
    ('created', length(201, b'{"id": 17}', b'Location: /orders/17', b'Content-Type: application/json', reason=b'Created')),
    ('accepted', length(202, b'later', reason=b'Accepted')),
    ('no-content', bare(204, reason=b'No Content')),
    ('no-content-headers', bare(204, b'ETag: "x"', b'X-Empty:', reason=b'No Content')),
    ('reset-content', length(205, reason=b'Reset Content')),
    ('partial', length(206, b'lo', b'Content-Range: bytes 3-4/5', reason=b'Partial Content')),
    ('moved', length(301, b'', b'Location: http://other.example/a?b=c#d', reason=b'Moved Permanently')),
    ('see-other', length(303, b'', b'Location: /orders/17', reason=b'See Other')),
    ('not-modified', bare(304, b'ETag: "y"', reason=b'Not Modified')),
    ('not-modified-length', bare(304, b'ETag: "y"', b'Content-Length: 5000', reason=b'Not Modified')),
    ('bad-request', length(400, b'{"error": 1}', reason=b'Bad Request')),
    ('unauthorized', length(401, b'who', b'WWW-Authenticate: Basic realm="a"', reason=b'Unauthorized')),
    ('payment', length(402, b'no', reason=b'Payment Required')),
    ('not-found', length(404, b'none', reason=b'Not Found')),
    ('conflict', length(409, b'already', reason=b'Conflict')),
    ('teapot', length(418, b'short', reason=b"I'm a teapot")),
    ('unknown-status', length(299, b'?', reason=b'Miscellaneous')),
    ('no-reason', length(200, b'x', reason=b'')),
    ('odd-reason', length(200, b'x', reason=b'Very   well, \xe9 "quoted"')),
    ('repeated', length(200, b'x', b'X-A: 1', b'X-B: 2', b'X-A: 3', b'X-A: 1')),
    ('links', length(200, b'x', b'Link: </a>; rel=next', b'Link: </b>; rel=prev', b'Vary: A', b'Vary: B')),
    ('odd-casing', length(200, b'x', b'x-lower: a', b'X-UPPER: B', b'x-MiXeD: c', b'eTAG: "z"', name=b'content-LENGTH')),
    ('odd-names', length(200, b'x', b"X-!#$%&'*+.^_`|~9: all of a token")),
    ('empty-values', length(200, b'x', b'X-Empty:', b'X-Space: ', b'X-Tab:\t')),
    ('inner-space', length(200, b'x', b'X-In:  a   b\tc  ')),
    ('latin-1', length(200, b'x', b'X-Name: caf\xe9')),
    ('utf-8', length(200, 'grüße 🔒'.encode(), 'X-Name: größe'.encode(), b'Content-Type: text/plain; charset=utf-8')),
    ('long-header', length(200, b'x', b'X-Long: ' + b'a' * 6000)),
    ('many-headers', length(200, b'x', *[b'X-%d: %d' % (i, i) for i in range(80)])),
    ('binary', length(200, BINARY, b'Content-Type: application/octet-stream')),
    ('zero-bytes', length(200, b'\0' * 1000)),
    ('line-ends', length(200, b'\r\n\r\nHTTP/1.1 500 No\r\n\r\n')),
    ('gzip', length(200, gzip.compress(b'hello' * 100, mtime=0), b'Content-Encoding: gzip')),
    ('large', length(200, os.urandom(300 * 1024))),
    ('chunked', chunked(200, [b'one', b'two', b'three'])),
    ('chunked-empty', chunked(200, [])),
    ('chunked-bytes', chunked(200, [bytes([i]) for i in range(200)])),
    ('chunked-binary', chunked(200, [BINARY, BINARY])),
    ('chunked-large', chunked(200, [os.urandom(16000) for _ in range(20)])),
    ('chunked-casing', chunked(200, [b'x'], name=b'tRANSFER-encoding')),
    ('chunk-extensions', chunked(200, [b'abc'], extension=b';name="a;b"')),
    ('trailers', chunked(200, [b'abc'], b'Trailer: X-Sum, X-End', trailers=(b'X-Sum: 5', b'x-end: yes'))),
    ('trailers-repeated', chunked(200, [b'abc'], trailers=(b'X-T: 1', b'X-T: 2'))),
    ('until-close.close', b'HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nuntil the end'),
    ('close-header.close', length(200, b'bye', b'Connection: close')),
    ('http-1.0.close', b'HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nold'),
    ('hop-by-hop', length(200, b'x', b'Connection: X-Private, keep-alive', b'Keep-Alive: timeout=5', b'X-Private: 1', b'Upgrade: h2c', b'X-Kept: 2')),
    ('cookies', length(200, b'x', b'Set-Cookie: a=1; HttpOnly', b'X-A: 1', b'Set-Cookie: b=2')),
    ('authentication-info', length(200, b'x', b'Authentication-Info: nextnonce="a"', b'X-A: 1')),
    ('dated', length(200, b'x', b'Date: Thu, 01 Jan 1998 00:00:00 GMT', b'Age: 5', b'Server: mine/1')),
    ('cached', length(200, b'x', b'Cache-Control: max-age=60', b'Expires: 0', b'Pragma: no-cache', b'Last-Modified: Thu, 01 Jan 1998 00:00:00 GMT')),
    ('interim', b'HTTP/1.1 102 Processing\r\nX-Step: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n' + length(200, b'done')),
    ('continue', b'HTTP/1.1 100 Continue\r\n\r\n' + length(200, b'done')),
    ('put', length(200, b'put'), 'PUT'),
    ('patch', length(200, b'patch', b'Accept-Patch: a/b'), 'PATCH'),
    ('delete', bare(204, reason=b'No Content'), 'DELETE'),
]


def expected(data):
    """(status, reason, headers that are kept, in order) of the final answer."""
    head = next(h for h in data.split(b'\r\n\r\n') if not h.startswith(b'HTTP/1.1 1'))
    line, *rest = head.split(b'\r\n')
    parts = line.split(b' ', 2)
    headers = [tuple(p.strip(b' \t') for p in h.split(b':', 1)) for h in rest]
    named = {n.strip().lower() for name, v in headers if name.lower() == b'connection' for n in v.split(b',')}
    kept = [(n, v) for n, v in headers if n.lower() not in HOP | named]
    return int(parts[1]), parts[2], kept


def without(headers, names):
    return [(n, v) for n, v in headers if n.lower() not in names]


def compare(name, data, first, again):
    """The first is what the application said; the replay is the first."""
    status, reason, kept = expected(data)
    assert (first.status, first.reason) == (again.status, again.reason) == (status, reason), (name, first, again)
    assert first.body == again.body, (name, len(first.body), len(again.body))
    assert without(first.headers, OURS | HOP) == without(kept, OURS), (name, first.headers, kept)
    assert without(again.headers, OURS | HOP) == without(kept, OURS | NOT_KEPT), (name, again.headers, kept)
    assert not first.replayed and again.replayed, (name, first, again)
    for answer in (first, again):
        lengths = [(n, v) for n, v in answer.headers if n.lower() == b'content-length']
        said = [(n, v) for n, v in kept if n.lower() == b'content-length']
        assert lengths == said or not said, (name, lengths, said)
    assert first.trailers == again.trailers, (name, first.trailers, again.trailers)
    date = [v for n, v in kept if n == b'Date']
    assert not date or (first.get('Date').encode() == date[0] and again.get('Dibs-First-Date').encode() == date[0]), (name, again)


@test('sqlite', 'redis')
def replays_are_byte_exact(t):
    app, g, c = t.pair({'path': '/raw/*', 'method': ['POST', 'PUT', 'PATCH', 'DELETE'], 'caller': 'none'})
    assert len(CORPUS) >= 40
    for name, data, *method in CORPUS:
        app.raw(name, data)
        key, method = new_key(), method[0] if method else 'POST'
        first = c.ask(method, '/raw/' + name, b'a=1', key)
        again = c.ask(method, '/raw/' + name, b'a=1', key)
        compare(name, data, first, again)
        assert again.interim == [], 'interim answers are not stored'
        assert len(app.runs(key)) == 1, name
    t.note('%d answers', len(CORPUS))


@test('sqlite')
def interim_answers_and_trailers_are_passed_on(t):
    app, g, c = t.pair({'path': '/raw/*', 'caller': 'none'})
    for name, data, *_ in CORPUS:
        if name in ('interim', 'trailers', 'trailers-repeated'):
            app.raw(name, data)
    assert [a.status for a in c.post('/raw/interim', key=new_key()).interim] == [102, 103]
    for ask in (c.post('/raw/trailers', key=new_key()), c.ask('GET', '/raw/trailers')):
        assert ask.trailers == [(b'X-Sum', b'5'), (b'x-end', b'yes')], ask.trailers
    assert c.post('/raw/trailers-repeated').trailers == [(b'X-T', b'1'), (b'X-T', b'2')]


@test('sqlite', 'redis')
def an_answer_that_is_too_large_is_never_run_again(t):
    app, g, c = t.pair({'path': '/**', 'caller': 'none'}, limits={'answer': 50000})
    for query in ('size=60000', 'size=60000&chunked=1', 'size=5000000'):
        key, target = new_key(), '/a?' + query
        first = c.post(target, key=key)
        assert first.status == 201 and len(first.body) == int(query.split('&')[0][5:])
        for _ in range(2):
            again = c.post(target, key=key)
            assert again.status == 409 and 'not kept' in again.problem['detail'], again
        assert len(app.runs(key)) == 1
    key = new_key()
    assert c.post('/a?size=49000', key=key).status == 201 and c.post('/a?size=49000', key=key).replayed


@test('sqlite')
def a_broken_answer_is_not_replayed(t):
    """What the application did not finish is unknown, and the client must not take it for whole."""
    app, g, _ = t.pair({'path': '/raw/*', 'caller': 'none'})
    for name, data in (('short.close', b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc'),
                       ('chunks.close', b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n'),
                       ('head.close', b'HTTP/1.1 200 OK\r\nContent-Le'), ('nothing.close', b''),
                       ('garbage.close', b'hello, world\r\n\r\n'), ('two-lengths.close', b'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab'),
                       ('both.close', b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n'),
                       ('bad-chunk.close', b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n'),
                       ('folded.close', b'HTTP/1.1 200 OK\r\nX-A: 1\r\n 2\r\nContent-Length: 0\r\n\r\n'),
                       ('space.close', b'HTTP/1.1 200 OK\r\nX-A : 1\r\nContent-Length: 0\r\n\r\n')):
        app.raw(name, data)
        key, c = new_key(), Client(g)
        try:
            answer = c.post('/raw/' + name, key=key)
            assert answer.status == 502, (name, answer)
        except (EOFError, OSError):
            assert name in ('short.close', 'chunks.close', 'bad-chunk.close'), name
        again = Client(g).post('/raw/' + name, key=key)
        assert again.status == 409 and again.problem['code'] == 'CRASHED', (name, again)
        assert len(app.runs(key)) == 1, name


@test('sqlite')
def a_client_that_goes_away_finds_the_answer_later(t):
    app, g, _ = t.pair({'path': '/**', 'caller': 'none'})
    app.stop_points(True)
    keys = {}
    for point in ('read', 'run', 'status', 'half', 'sent'):
        gone, keys[point] = Client(g), new_key()
        gone.start('POST', '/a?size=1000&stop=' + point, b'amount=100', keys[point])
        app.wait_at(point)
        gone.close()
    app.stop_points(False)
    for point, key in keys.items():
        answer = wait_for(lambda: (lambda a: a if a.status == 201 else None)(Client(g).post('/a?size=1000&stop=' + point, key=key)), point)
        assert answer.replayed and len(answer.body) == 1000 and len(app.runs(key)) == 1, point
