"""What a key does, and each member of a route: a test that fails when it is ignored."""

import json
import threading
import time

from gateway import Client, Freezing, REFUSE, new_key
from harness import test, wait_for


def later(function, *args, **more):
    """Runs it beside the test; its result, or what it raised, is in the list when the thread has ended."""
    result = []

    def run():
        try:
            result.append(function(*args, **more))
        except (EOFError, OSError) as e:
            result.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return result, thread


def route(**more):
    return dict(REFUSE, **more)


# ---- The key -------------------------------------------------------------------------------------------------


@test('sqlite', 'redis')
def a_key_is_executed_once(t):
    app, _, c = t.pair()
    key = new_key()
    first = c.post('/orders', key=key)
    assert (first.status, first.reason, first.body) == (201, b'Made', b'order 1\n') and not first.replayed, first
    for _ in range(3):
        again = c.post('/orders', key=key)
        assert again.replayed and (again.status, again.reason, again.body) == (201, b'Made', b'order 1\n'), again
    assert c.post('/orders', key=new_key()).body == b'order 2\n'
    assert [len(app.runs(key)), len(app.runs())] == [1, 2]
    sent = app.log('request')[0]
    assert sent['method'] == 'POST' and sent['target'] == '/orders'


@test('sqlite')
def another_request_under_the_same_key_is_refused(t):
    app, _, c = t.pair(route(method=['POST', 'PUT']))
    key = new_key()
    assert c.post('/orders', key=key).status == 201
    for method, target, body in (('POST', '/orders', b'amount=101'), ('POST', '/orders?a=1', b'amount=100'), ('PUT', '/orders', b'amount=100'),
                                 ('POST', '/orders/1', b'amount=100'), ('POST', '/orders', b'')):
        answer = c.ask(method, target, body, key)
        assert answer.status == 422 and answer.problem['code'] == 'MISMATCH', (method, target, body, answer)
    same = c.post('/orders', key=key, Date='Thu, 01 Jan 1970 00:00:00 GMT', User_Agent='other', Content_Type='text/csv', Traceparent='00-1')
    assert same.replayed, 'headers are no part of the fingerprint'
    for target in ('/./orders', '/orders/../orders', '/%6frders'):
        assert c.post(target, key=key).replayed, target + ' is the same path'
    assert len(app.runs()) == 1


@test('sqlite')
def malformed_keys_are_refused(t):
    app, _, c = t.pair(route(key='optional'))
    long = 'k' * 256
    for value in ('""', '"%s"' % long, '"a', 'a"', '"a" "b"', '"a", "b"', '"a";p=1, x', '"\x01"', '"caf\xe9"', 'a b', '', '"a\\'):
        c.send(('POST /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nIdempotency-Key: %s\r\n\r\n' % value).encode('latin-1'))
        answer = c.read()
        assert answer.status == 400, (value, answer)
    c.send(b'POST /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nIdempotency-Key: "a"\r\nIdempotency-Key: "a"\r\n\r\n')
    assert c.read().status == 400
    assert not app.log('request'), 'none of them came through'
    assert c.post('/orders', key='k' * 255).status == 201
    c.send(b'POST /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nIdempotency-Key: bare-word\r\n\r\namount=100')
    assert not c.read().replayed
    assert c.post('/orders', key='bare-word').replayed, 'a bare word means the same as a quoted one'


@test('sqlite')
def a_duplicate_waits_for_the_first(t):
    app, g, _ = t.pair()
    app.stop_points(True)
    key = new_key()
    first, one = later(Client(g).post, '/orders?stop=run', key=key)
    app.wait_at('run')
    second, two = later(Client(g).post, '/orders?stop=run', key=key)
    time.sleep(0.4)
    assert not second
    app.stop_points(False)
    one.join(10)
    two.join(10)
    assert not first[0].replayed and second[0].replayed and second[0].body == first[0].body == b'order 1\n', (first, second)
    assert len(app.runs()) == 1


# ---- Members of a route ---------------------------------------------------------------------------------------


@test('sqlite')
def member_method(t):
    app, _, c = t.pair({'path': '/a', 'caller': 'none', 'method': 'DELETE'}, {'path': '/b', 'caller': 'none', 'method': ['PUT', 'PATCH']},
                       {'path': '/c', 'caller': 'none'})
    guarded = {('DELETE', '/a'), ('PUT', '/b'), ('PATCH', '/b'), ('POST', '/c'), ('PUT', '/c'), ('PATCH', '/c')}
    for path in ('/a', '/b', '/c'):
        for method in ('GET', 'POST', 'PUT', 'PATCH', 'DELETE'):
            key = new_key()
            c.ask(method, path, b'', key)
            assert c.ask(method, path, b'', key).replayed == ((method, path) in guarded), (method, path)


@test('sqlite')
def member_path(t):
    app, _, c = t.pair({'path': '/one', 'caller': 'none'}, {'path': '/seg/*/x', 'caller': 'none'}, {'path': '/rest/**', 'caller': 'none'})
    for path, guarded in (('/one', True), ('/one/', False), ('/one/two', False), ('/on%65', True), ('/x/../one', True), ('/two', False),
                          ('/seg/1/x', True), ('/seg/1/2/x', False), ('/seg/1', False), ('/rest/a', True), ('/rest/a/b/c', True), ('/resting', False),
                          ('/one%2Ftwo', False), ('/seg/a%2Fb/x', True), ('//one', True), ('/one;a=b', True), ('/seg;a/1;b/x;c', True), ('/;a/one', True),
                          ('/one%3Ba', False)):
        key = new_key()
        c.post(path, key=key)
        assert c.post(path, key=key).replayed == guarded, path
    key = new_key()  # an application may still tell them apart: it sees them, and they are another request
    assert c.post('/one;a=b', key=key).status == 201 and app.log('request')[-1]['target'] == '/one;a=b'
    assert c.post('/one;a=c', key=key).status == c.post('/one', key=key).status == 422
    before = len(app.log())
    for path in ('/x/..;/one', '/.;a/one', '/x/%2e%2E;a=b/one'):
        assert c.post(path, key=new_key()).status == 400, path
    assert len(app.log()) == before


@test('sqlite')
def without_a_file_every_path_is_guarded(t):
    app = t.application()
    c = Client(t.gateway(app, None))
    for method in ('POST', 'PUT', 'PATCH'):
        for path in ('/', '/?a=1', '//', '/orders', '/orders/1/items'):
            key = new_key()
            assert c.ask(method, path, b'', key).status == 201
            assert c.ask(method, path, b'', key).replayed and len(app.runs(key)) == 1, (method, path)
    before = len(app.runs())
    assert c.post('/').status == c.post('/').status == 201 and len(app.runs()) == before + 2, 'without a key'


@test('sqlite')
def another_spelling_does_not_get_past_a_route(t):
    """An application decodes the path, and some take post for POST."""
    app, _, c = t.pair({'path': '/users/me@home/a+b', 'key': 'required', 'caller': 'none'},
                       {'path': '/token', 'key': 'optional', 'caller': 'none', 'token': 'required'},
                       {'path': '/stock/*', 'key': 'optional', 'caller': 'none', 'fence': 'stock:{segment}'})
    for method, path, status in (('POST', '/users/me%40home/a%2Bb', 400), ('POST', '/users/me%40home/a%2bb', 400), ('post', '/users/me@home/a+b', 400),
                                 ('pAtch', '/users/me@home/a+b', 400), ('post', '/token', 403), ('Put', '/stock/1', 400)):
        answer = c.ask(method, path, b'')
        assert answer.status == status and not app.log('request'), (method, path, answer)
    key = new_key()
    for method, target in (('post', '/users/me%40home/a%2Bb?x=%40'), ('POST', '/users/me@home/a+b?x=%40')):
        own = key if method == 'post' else new_key()
        assert c.ask(method, target, b'', own).status == 201 and c.ask(method, target, b'', own).replayed
        sent = app.log('request')[-1]
        assert (sent['method'], sent['target']) == (method, target), 'it is sent on as it came'
    assert c.ask('POST', '/users/me%40home/a%2Bb?x=%40', b'', key).status == 422, 'another request'
    assert c.post('/stock/a@b', Dibs_Fence='12').status == 201 and c.post('/stock/a%40b', Dibs_Fence='11').status == 409, 'one name'
    assert len(app.runs()) == 3


@test('sqlite')
def the_first_route_that_matches_decides(t):
    app, _, c = t.pair({'path': '/orders/free', 'key': 'ignored'}, route())
    assert c.post('/orders/free').status == 201 and c.post('/orders/other').status == c.post('/orders').status == 400


@test('sqlite')
def member_key(t):
    app, _, c = t.pair({'path': '/required', 'key': 'required', 'caller': 'none'}, {'path': '/optional', 'key': 'optional', 'caller': 'none'},
                       {'path': '/ignored', 'key': 'ignored', 'caller': 'none'}, {'path': '/default', 'caller': 'none'})
    missing = c.post('/required')
    assert missing.status == 400 and 'Idempotency-Key' in missing.problem['detail'] and not app.runs(), missing
    for path, replays in (('/required', True), ('/optional', True), ('/default', True), ('/ignored', False)):
        key = new_key()
        assert c.post(path, key=key).status == 201
        assert c.post(path, key=key).replayed == replays, path
        if path != '/required':
            assert c.post(path).status == c.post(path).status == 201, path
    assert c.post('/elsewhere').status == 201, 'no route: passed through'


@test('sqlite')
def member_caller(t):
    app, _, c = t.pair({'path': '/auth'}, {'path': '/tenant', 'caller': 'X-Tenant'}, {'path': '/none', 'caller': 'none'})
    key = new_key()
    for path, header, shared in (('/auth', 'Authorization', False), ('/tenant', 'X-Tenant', False), ('/none', 'Authorization', True)):
        assert not c.post(path, key=key, **{header: 'secret-one'}).replayed
        assert c.post(path, key=key, **{header: 'secret-one'}).replayed
        assert c.post(path, key=key, **{header: 'two'}).replayed == shared, path
    assert c.post('/tenant', key=key, X_Tenant='secret-one', Authorization='another').replayed
    shown = t.run('once', 'ls', '--state', 'done', '--json', '--url', t.url)[1]
    assert b'secret-one' not in shown and b'done' in shown, 'no credential is stored as it is'


@test('sqlite')
def member_wait(t):
    app, g, _ = t.pair({'path': '/brief', 'caller': 'none', 'wait': '300ms'}, {'path': '/none', 'caller': 'none', 'wait': '0s'})
    app.stop_points(True)
    for path, least, most in (('/brief', 0.25, 3), ('/none', 0, 0.25)):
        key = new_key()
        first, thread = later(Client(g).post, path + '?stop=run', key=key)
        app.wait_at('run', 1 if path == '/brief' else 2)
        start = time.monotonic()
        busy = Client(g).post(path + '?stop=run', key=key)
        took = time.monotonic() - start
        assert busy.status == 409 and busy.problem['code'] == 'RUNNING' and int(busy.get('Retry-After')) >= 1, busy
        assert least <= took < most, took
    app.stop_points(False)
    thread.join(10)
    assert len(app.runs()) == 2


@test('sqlite')
def members_keep_and_tombstone(t):
    app, _, c = t.pair({'path': '/brief', 'caller': 'none', 'keep': '1s'}, {'path': '/long', 'caller': 'none'},
                       {'path': '/tombstone', 'caller': 'none', 'keep': '1s', 'tombstone': '1h'})
    key = new_key()
    for path in ('/brief', '/long', '/tombstone'):
        assert not c.post(path, key=key).replayed and c.post(path, key=key).replayed
    time.sleep(1.5)
    again, kept, gone = [c.post(path, key=key) for path in ('/brief', '/long', '/tombstone')]
    assert again.status == 201 and not again.replayed and kept.replayed
    assert gone.status == 410 and gone.problem['code'] == 'EXPIRED', gone
    assert len(app.runs()) == 4


@test('sqlite')
def member_lease_and_its_renewal(t):
    """A silent gateway is considered dead after the lease; one that works renews it. A late answer is everybody's or nobody's."""
    app, g, _ = t.pair(route(lease='1s'))
    other = Client(t.gateway(app, (route(lease='1s', wait='0s'),)))
    app.stop_points(True)
    key = new_key()
    first, thread = later(Client(g).post, '/orders?stop=run', key=key)
    app.wait_at('run')
    time.sleep(2.5)
    assert other.post('/orders?stop=run', key=key).problem['code'] == 'RUNNING', 'renewed for two leases'
    g.process.signal(19)
    wait_for(lambda: other.post('/orders?stop=run', key=key).problem['code'] == 'CRASHED', 'the end of the lease', 5)
    app.stop_points(False)
    g.process.signal(18)
    thread.join(10)
    late, again = first[0], other.post('/orders?stop=run', key=key)
    if isinstance(late, Exception):  # it noticed its loss before the answer came
        assert again.problem['code'] == 'CRASHED', again
    else:  # the answer came first and was recorded: nobody had taken the run over
        assert again.replayed and (again.status, again.body) == (late.status, late.body), (late, again)
    assert len(app.runs()) == 1


@test('sqlite')
def member_timeout(t):
    app, g, c = t.pair(route(timeout='500ms'))
    app.stop_points(True)
    for point in ('run', 'read'):
        key = new_key()
        start = time.monotonic()
        silent = c.post('/orders?stop=' + point, key=key)
        took = time.monotonic() - start
        assert silent.status == 504 and 0.4 < took < 5, (point, took, silent)
        assert c.post('/orders?stop=' + point, key=key).problem['code'] == 'CRASHED'
    key = new_key()
    try:
        half = Client(g).post('/orders?stop=half&size=100', key=key)
        assert False, half
    except (EOFError, OSError):
        pass
    assert c.post('/orders?stop=half&size=100', key=key).problem['code'] == 'CRASHED'
    app.stop_points(False)
    wait_for(lambda: len(app.runs()) == 3, 'what was silent')  # and nothing else


@test('sqlite')
def member_on_crash(t):
    app, _, c = t.pair({'path': '/refuse', 'caller': 'none'}, {'path': '/rerun', 'caller': 'none', 'on_crash': 'rerun'})
    for path in ('/refuse', '/rerun'):
        key = new_key()
        assert c.post(path + '?drop=1', key=key).status == 502
        again = c.post(path + '?drop=1', key=key)
        if path == '/refuse':
            assert again.status == 409 and again.problem['code'] == 'CRASHED' and len(app.runs(key)) == 1, again
        else:
            assert again.status == 502
            assert [run['attempt'] for run in app.runs(key)] in ([None, '2'], ['1', '2']), app.runs(key)


@test('sqlite')
def member_on_error(t):
    app, _, c = t.pair({'path': '/default', 'caller': 'none'}, {'path': '/forget', 'caller': 'none', 'on_error': 'forget'},
                       {'path': '/keep', 'caller': 'none', 'on_error': 'keep'}, {'path': '/unknown', 'caller': 'none', 'on_error': 'unknown'})
    for path, status, second in (('/default', 500, 'CRASHED'), ('/default', 503, 'CRASHED'), ('/default', 429, 'again'), ('/default', 400, 'replayed'),
                                 ('/forget', 500, 'again'), ('/forget', 429, 'again'), ('/keep', 503, 'replayed'), ('/keep', 429, 'replayed'),
                                 ('/unknown', 500, 'CRASHED'), ('/unknown', 429, 'CRASHED'), ('/forget', 404, 'replayed')):
        key, target = new_key(), '%s?status=%d' % (path, status)
        first = c.post(target, key=key)
        assert first.status == status and first.body.startswith(b'order '), (target, first)
        again = c.post(target, key=key)
        got = 'replayed' if again.replayed else again.problem['code'] if again.status == 409 else 'again'
        assert got == second and len(app.runs(key)) == (2 if second == 'again' else 1), (target, got, again)


@test('redis')
def member_engine_down(t):
    app, _, c = t.pair({'path': '/default', 'caller': 'none'}, {'path': '/closed', 'caller': 'none', 'engine_down': 'closed'},
                       {'path': '/open', 'caller': 'none', 'engine_down': 'open'})
    t.server.kill()
    try:
        for path in ('/default', '/closed'):
            answer = c.post(path, key=new_key())
            assert answer.status == 503 and int(answer.get('Retry-After')) >= 1 and answer.problem['code'] == 'UNAVAILABLE', answer
        assert not app.log('request'), 'fails closed'
        key = new_key()
        assert c.post('/open', key=key).status == 201 and c.post('/open', key=key).status == 201 and len(app.runs(key)) == 2
        assert c.post('/open').status == 201 and c.ask('GET', '/default').status == 201, 'what needs no engine goes on'
    finally:
        t.server.start()
    wait_for(lambda: c.post('/closed', key=new_key()).status == 201, 'the engine', 20)


@test('redis')
def what_only_the_engine_can_answer_fails_closed(t):
    """Tokens come from the engine: the application knows nothing of a request for one, and must not see its body as a request."""
    app, _, c = t.pair({'path': '/open', 'key': 'optional', 'caller': 'none', 'token': 'optional', 'engine_down': 'open'})
    t.server.kill()
    try:
        answer = c.post('/.dibs/token?route=/open', b'GET /smuggled HTTP/1.1\r\nHost: shop.example\r\n\r\n', Origin='http://shop.example')
        assert answer.status == 503 and answer.problem['code'] == 'UNAVAILABLE', answer
        assert not app.log(), app.log()
    finally:
        t.server.start()


@test('sqlite')
def member_token(t):
    app, g, c = t.pair({'path': '/required', 'key': 'optional', 'caller': 'none', 'token': 'required'},
                       {'method': 'PUT', 'path': '/optional', 'caller': 'none'},  # another route with the same path
                       {'path': '/optional', 'key': 'optional', 'caller': 'none', 'token': 'optional'}, {'path': '/ignored', 'caller': 'none'})

    def token(path):
        answer = c.post('/.dibs/token?route=' + path, b'', Origin='http://shop.example')
        assert answer.status in (200, 201), answer
        return json.loads(answer.body)['token']

    assert c.post('/required').status == 403 and c.post('/optional').status == 201 and c.post('/ignored', Dibs_Token='nonsense').status == 201
    for path in ('/required', '/optional'):
        one, wrong = token(path), token('/optional' if path == '/required' else '/required')
        assert c.post(path, Dibs_Token=one).status == 201
        assert c.post(path, Dibs_Token=one).status == 409 and c.post(path, Dibs_Token=wrong).status == 409
        assert c.post(path, Dibs_Token='nonsense').status in (400, 409)
    assert len(app.runs()) == 4 and not any(r['target'].startswith('/.dibs') for r in app.log('request'))
    for origin in ('http://evil.example', 'null'):
        assert c.post('/.dibs/token?route=/required', b'', Origin=origin).status == 403
    for path in ('/nothing', '/ignored'):
        assert c.post('/.dibs/token?route=' + path, b'', Origin='http://shop.example').status == 404, path
    one = token('/required')
    app.kill()
    gone = c.post('/required', Dibs_Token=one)
    assert gone.status == 502 and gone.get('Dibs-Token') not in (None, one), 'a replacement, since nothing was sent'
    app.start()
    assert c.post('/required', Dibs_Token=gone.get('Dibs-Token')).status == 201


@test('sqlite')
def member_fence(t):
    app, _, c = t.pair({'path': '/stock/*', 'key': 'optional', 'caller': 'none', 'fence': 'stock:{segment}'},
                       {'path': '/open', 'key': 'optional', 'caller': 'none', 'fence': 'open', 'engine_down': 'open'})
    assert c.post('/stock/1').status == 400, 'a fence is required'
    for fence, status in (('10', 201), ('12', 201), ('11', 409), ('12', 201), ('15/14', 201), ('13', 409), ('x', 400), ('0', 400), ('9/10', 400),
                          ('9223372036854775808', 400), ('9999999999999999999', 400), ('18446744073709551617', 400)):
        answer = c.post('/stock/1', Dibs_Fence=fence)
        assert answer.status == status, (fence, answer)
        assert status != 409 or answer.problem['code'] == 'FENCED'
    assert c.post('/stock/1;a=b', Dibs_Fence='11').status == 409, 'parameters make no other name'
    assert c.post('/stock/2', Dibs_Fence='11').status == 201, 'another name'
    assert len(app.runs()) == 5, 'what was refused never came'
    assert c.post('/open', Dibs_Fence='9999999999999999999').status == 400, 'a number that no engine takes is not an engine that is down'
    assert len(app.runs()) == 5


@test('sqlite')
def member_set_cookie(t):
    app, _, c = t.pair({'path': '/default', 'caller': 'none'}, {'path': '/drop', 'caller': 'none', 'set_cookie': 'drop'},
                       {'path': '/keep', 'caller': 'none', 'set_cookie': 'keep'})
    for path, kept in (('/default', []), ('/drop', []), ('/keep', ['s=3'])):
        key = new_key()
        assert c.post(path + '?cookie=1', key=key).all('Set-Cookie')
        assert c.post(path + '?cookie=1', key=key).all('Set-Cookie') == kept, path


@test('redis')
def member_prove(t):
    """A gateway that died before it recorded that it sends is known to have sent nothing."""
    route = {'path': '/orders', 'caller': 'none', 'prove': True, 'lease': '1s', 'wait': '0s'}
    app, between, key = t.application(), Freezing(t.server.port), new_key()
    between.freeze_at(b'sent')
    dying = t.gateway(app, (route,), url='redis://127.0.0.1:%d' % between.port)
    later(Client(dying).post, '/orders', key=key)
    assert between.frozen.wait(10), 'the record'
    dying.kill()
    assert not app.log('request')
    c = Client(t.gateway(app, (route,)))
    proven = wait_for(lambda: (lambda a: a if a.status != 409 else None)(c.post('/orders', key=key)), 'the run', 5)
    assert proven.status == 201 and not proven.replayed and len(app.runs(key)) == 1
    dropped = new_key()  # one that was sent is still refused
    assert c.post('/orders?drop=1', key=dropped).status == 502
    assert c.post('/orders?drop=1', key=dropped).problem['code'] == 'CRASHED' and len(app.runs(dropped)) == 1


# ---- The file -------------------------------------------------------------------------------------------------


@test()
def bad_files_are_refused(t):
    app = t.application()
    for routes in ([{'path': '/a', 'colour': 'red'}], [{}], [{'path': 'a'}], [{'path': '/a', 'key': 'maybe'}], [{'path': '/a', 'wait': 'long'}],
                   [{'path': '/a', 'wait': 5}], [{'path': '/a', 'method': 'BREW'}], [{'path': '/a', 'lease': '0s'}], [{'path': '/a'}, {'path': '/a'}],
                   [{'path': '/**'}, {'path': '/a'}], [{'path': '/a', 'fence': 'x:{segment}'}], [{'path': '/ö'}],
                   'routes', [5]):
        with open(t.path('bad.json'), 'w') as f:
            json.dump({'routes': routes}, f)
        code, _, err = t.run('gateway', '--upstream', app.address, '--listen', '127.0.0.1:0', '--config', t.path('bad.json'), '--url', 'memory:')
        assert code == 64 and err.startswith(b'dibs: ') and b'bad.json' in err, (routes, code, err)
    for text in ('', '{', '{"routes": []} x', '{"limits": {"heads": 5}}', '{"limits": {"body": -1}}', '[]'):
        with open(t.path('bad.json'), 'w') as f:
            f.write(text)
        code, _, err = t.run('gateway', '--upstream', app.address, '--listen', '127.0.0.1:0', '--config', t.path('bad.json'), '--url', 'memory:')
        assert code == 64 and b'bad.json' in err, (text, code, err)
    for args in ((), ('--upstream', 'ftp://a'), ('--upstream', app.address, '--listen', '0.0.0.0:0', 'operand'), ('--upstream', app.address, '--nope')):
        assert t.run('gateway', '--url', 'memory:', *args)[0] == 64, args


@test('sqlite')
def routes_are_read_again(t):
    app, g, c = t.pair(route(key='optional'))
    assert c.post('/orders').status == 201
    g.configure([route(key='required')])
    g.process.signal(1)
    wait_for(lambda: c.post('/orders').status == 400, 'the new file')
    with open(g.config, 'w') as f:
        f.write('{"routes": [{"path": 5}]}')
    before = len(g.process.err)
    g.process.signal(1)
    wait_for(lambda: len(g.process.err) > before, 'a complaint')
    assert c.post('/orders').status == 400, 'what was there stays'
