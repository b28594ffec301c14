"""Locks over HTTP: acquire, wait, renew, release, several at once, semaphores, streams, listing, breaking."""

import json
import signal
import threading
import time

from harness import test, wait_for
from server import Client, Stream, request_id, resident, unread

ALL = ('memory', 'sqlite', 'redis')
BOUND = ('zookeeper', 'etcd')


def later(function, *args, **more):
    """Runs it beside the test; a list that gets its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*args, **more)), daemon=True)
    thread.start()
    return result, thread


@test(*ALL)
def a_lock_is_held_renewed_and_released(t):
    c = Client(t.serve())
    grant = c.acquire('stock:1', lease_ms=5000)
    assert 0 < grant['remaining_ms'] <= 5000 and grant['fence'] > 0
    busy = c.acquire('stock:1', status=409)
    assert busy['code'] == 'BUSY' and busy['next'] == 'later'
    time.sleep(0.3)
    assert c.renew(grant['grant'])['remaining_ms'] > 4000
    assert c.release(grant['grant']) == {'released': True}
    assert c.holders('stock:1') == []
    assert c.release(grant['grant']) == {'released': True}, 'a repeated release is answered in the same way'
    assert c.renew(grant['grant'], status=410)['code'] == 'LOST'
    assert c.acquire('stock:1')['fence'] > grant['fence']


@test(*ALL)
def waiters_are_served_in_order(t):
    s = t.serve()
    c = Client(s)
    first = c.acquire('a')
    waits = []
    for i in range(5):
        waits.append(later(Client(s).acquire, 'a', wait_ms=20000))
        wait_for(lambda: c.waiters('a') == i + 1, 'the queue')
    grant = first
    for result, thread in waits:
        c.release(grant['grant'])
        thread.join(10)
        assert result and result[0]['fence'] > grant['fence'], result
        grant = result[0]


@test(*ALL)
def a_wait_ends_in_time(t):
    s = t.serve()
    c = Client(s)
    c.acquire('a')
    start = time.monotonic()
    problem = Client(s).acquire('a', status=409, wait_ms=700)
    assert 0.6 < time.monotonic() - start < 5, time.monotonic() - start
    assert problem['code'] == 'BUSY' and problem['owner'].startswith('http#'), problem
    wait_for(lambda: c.waiters('a') == 0, 'its leaving, in the background', 3)


@test(*ALL)
def the_same_request_gets_the_same_grant(t):
    c = Client(t.serve())
    ask = dict(name='a', request=request_id(), lease_ms=5000)
    first = c.good('/v1/acquire', 201, **ask)
    again = c.good('/v1/acquire', 200, **ask)
    assert again['grant'] == first['grant'] and again['fence'] == first['fence']
    for change in (dict(name='b'), dict(lease_ms=6000), dict(shared=True), dict(owner='me')):
        assert c.good('/v1/acquire', 422, **dict(ask, **change))['code'] == 'MISMATCH'
    c.release(first['grant'])
    assert c.good('/v1/acquire', 410, **ask)['code'] == 'LOST', 'a late copy of the request gets no lock'
    assert c.holders('a') == []


@test(*ALL)
def a_place_in_the_queue_is_kept_between_slices(t):
    s = t.serve()
    c, other = Client(s), Client(s)
    held = c.acquire('a')
    ask = dict(name='a', request=request_id(), wait_ms=60000)
    waiting, thread = later(Client(s).post, '/v1/acquire', **ask)
    wait_for(lambda: c.waiters('a') == 1, 'the queue')
    second, behind = later(Client(s).post, '/v1/acquire', name='a', wait_ms=20000)
    wait_for(lambda: c.waiters('a') == 2, 'the second')
    queued = other.good('/v1/acquire', 202, **dict(ask, wait_ms=100))
    assert queued['request'] == ask['request'] and queued['kept_ms'] >= 1000 and queued['wait_ms'] > 30000
    thread.join(5)
    assert waiting[0].status == 409 and waiting[0].json['code'] == 'CANCELLED', 'answered at the newer one'
    c.release(held['grant'])  # nobody is there for it now
    grant = other.post('/v1/acquire', **ask)
    assert grant.status == 201, grant
    assert not second, 'nobody overtakes'
    other.release(grant.json['grant'])
    behind.join(10)
    assert second[0].status == 201


@test('memory')
def a_slice_takes_25_seconds(t):
    s = t.serve()
    c = Client(s)
    c.acquire('a', lease_ms=60000)
    start = time.monotonic()
    queued = Client(s, timeout=60).acquire('a', status=202, wait_ms=40000)
    assert 24 < time.monotonic() - start < 29 and 10000 < queued['wait_ms'] <= 15000, queued


@test('memory', 'redis')
def a_place_that_nobody_comes_back_for_is_left(t):
    s = t.serve()
    c = Client(s)
    held = c.acquire('a', lease_ms=60000)
    ask = dict(name='a', request=request_id(), wait_ms=60000)
    gone = Client(s)
    gone.connection.request('POST', '/v1/acquire', json.dumps(ask), {'Content-Type': 'application/json'})
    wait_for(lambda: c.waiters('a') == 1, 'the queue')
    gone.close()
    time.sleep(1)
    assert c.waiters('a') == 1, 'it may still come back'
    c.release(held['grant'])
    wait_for(lambda: c.holders('a'), 'the hand-over to it')
    wait_for(lambda: not c.holders('a'), 'the release, because nobody came', 14)


@test(*ALL)
def without_a_request_id_a_closed_connection_leaves_the_queue(t):
    s = t.serve()
    c = Client(s)
    c.acquire('a', lease_ms=60000)
    gone = Client(s)
    gone.connection.request('POST', '/v1/acquire', '{"name": "a", "wait_ms": 20000}', {'Content-Type': 'application/json'})
    wait_for(lambda: c.waiters('a') == 1, 'the queue')
    gone.close()
    wait_for(lambda: c.waiters('a') == 0, 'its leaving', 3)


@test('memory', 'redis')
def a_client_that_uses_an_id_made_by_the_server_keeps_its_place(t):
    s = t.serve('--slice', '300ms')
    c = Client(s)
    held = c.acquire('a', lease_ms=60000)
    ask = dict(name='a', wait_ms=60000)
    ask['request'] = c.acquire(**ask, status=202)['request']
    gone = Client(s)
    gone.connection.request('POST', '/v1/acquire', json.dumps(ask), {'Content-Type': 'application/json'})
    wait_for(lambda: unread(s.port) == 0, 'the request to be read')
    gone.close()
    time.sleep(0.3)
    assert c.waiters('a') == 1, 'it may still come back'
    c.release(held['grant'])
    answer = c.post('/v1/acquire', **ask)
    assert answer.status in (200, 201), 'the first in the queue: %s' % answer


@test('memory', 'redis')
def what_has_ended_is_known_for_a_while(t):
    s = t.serve()
    c = Client(s)
    warm = 0
    for i in range(3000):
        ask = dict(name='a' * 500, request=request_id(), owner='o' * 80)
        grant = c.good('/v1/acquire', 201, **ask)['grant']
        c.release(grant)
        if i == 500:
            warm = resident(s.process.pid)
        if i == 2900:
            first, first_grant = ask, grant  # a minute is not over yet, on a busy machine either
    each = (resident(s.process.pid) - warm) / 2499
    t.note('%.0f bytes for each grant that has ended', each)
    assert each < 400, 'its names are not kept'
    for request, id in ((first, first_grant), (ask, grant)):
        assert c.release(id) == {'released': True} and c.renew(id, status=410)['code'] == 'LOST'
        assert c.good('/v1/acquire', 410, **request)['code'] == 'LOST'
        assert c.good('/v1/acquire', 422, **dict(request, lease_ms=777))['code'] == 'MISMATCH'


@test(*ALL)
def several_locks_are_all_or_none(t):
    s = t.serve()
    c = Client(s)
    both = c.good('/v1/acquire', 201, names=['b', 'a', 'b'], lease_ms=5000)
    assert [lock['name'] for lock in both['locks']] == ['a', 'b']
    assert c.acquire('a', status=409) and c.acquire('b', status=409)
    assert c.renew(both['grant'])['remaining_ms'] > 4000
    c.release(both['grant'])
    held = c.acquire('b')
    assert c.good('/v1/acquire', 409, names=['a', 'b'])['code'] == 'BUSY'
    assert c.holders('a') == [], 'what it had of them is released'
    waiting, thread = later(Client(s).post, '/v1/acquire', names=['a', 'b'], wait_ms=20000, lease_ms=2000)
    wait_for(lambda: c.waiters('b') == 1, 'the queue')
    time.sleep(2.5)  # longer than the lease: what it has is renewed meanwhile
    assert len(c.holders('a')) == 1
    c.release(held['grant'])
    thread.join(10)
    assert waiting[0].status == 201, waiting
    c.release(waiting[0].json['grant'])
    assert not c.holders('a') and not c.holders('b')


@test(*ALL)
def shared_locks_and_semaphores(t):
    c = Client(t.serve())
    one, two = c.acquire('r', shared=True), c.acquire('r', shared=True)
    c.acquire('r', status=409)
    assert two['locks'][0]['floor'] == one['fence'] and '/' in two['locks'][0]['fence_text']
    for grant in (one, two):
        c.release(grant['grant'])
    three = c.acquire('s', slots=5, weight=3)
    c.acquire('s', status=409, slots=5, weight=3)
    c.acquire('s', slots=5, weight=2)
    assert c.acquire('s', status=422, slots=4)['code'] == 'MISMATCH'
    c.release(three['grant'])
    c.acquire('s', slots=5, weight=3)


@test(*ALL)
def a_silent_client_loses_the_lock_after_its_lease(t):
    s = t.serve()
    c = Client(s)
    grant = c.acquire('a', lease_ms=500)
    start = time.monotonic()
    after = Client(s).acquire('a', wait_ms=10000)
    assert 0.3 < time.monotonic() - start < 5
    assert after['fence'] > grant['fence']
    assert c.renew(grant['grant'], status=410)['code'] == 'LOST'
    assert c.release(grant['grant'], status=410)['code'] == 'LOST'
    assert len(c.holders('a')) == 1, 'a stale release changes nothing'


@test(*ALL)
def locks_are_listed_and_broken(t):
    s = t.serve()
    c = Client(s)
    odd = 'a/b%?#<script>ü'
    path = 'a%2Fb%25%3F%23%3Cscript%3E%C3%BC'
    grant = c.acquire(odd, owner='me')
    c.acquire('other')
    listed = c.get('/v1/locks?prefix=a').json['locks']
    assert [lock['name'] for lock in listed] == [odd] and listed[0]['holders'][0]['owner'].startswith('me#')
    assert c.get('/v1/locks/' + path).json['fence'] == grant['fence']
    assert len(c.get('/v1/locks?limit=1').json['locks']) == 1
    assert c.get('/v1/locks?after=a%7E').json['locks'][0]['name'] == 'other'
    assert c.get('/v1/locks/nobody').status == 404
    assert c.good('/v1/locks/%s/break' % path, 409, by='ops')['code'] == 'BUSY'
    assert c.renew(grant['grant'], status=410)['code'] == 'LOST'
    c.release(grant['grant'], status=410)
    wait_for(lambda: not c.holders(path), 'the release by its holder')
    assert c.get('/v1/locks/' + path).json['broken_by'] == 'ops'
    again = c.acquire(odd)
    assert c.good('/v1/locks/%s/break' % path, now=True) == {'done': True}
    assert c.acquire(odd)['fence'] > again['fence']


# ---- Streams ----------------------------------------------------------------------------------------------------


@test(*ALL)
def the_open_connection_is_the_lock(t):
    s = t.serve()
    c = Client(s)
    first = Stream(s, 'a', 'lease_ms=900&owner=me')
    granted = first.next('granted')[1]
    assert c.holders('a')[0]['fence'] == granted['fence'] and 'grant' not in granted
    second = Stream(s, 'a', 'lease_ms=900')
    assert second.next() == ('queued', {'name': 'a'})
    for _ in range(4):
        assert first.next('renewed')[1]['remaining_ms'] > 300
    first.close()
    assert second.next('granted')[1]['fence'] > granted['fence']
    second.close()
    wait_for(lambda: not c.holders('a'), 'the release', 2)


@test(*ALL)
def a_stream_is_renewed_before_the_last_promise_ends(t):
    """"If no `renewed` comes for `remaining_ms`, stop the work": then one must come in time, and only for a longer promise."""
    s = t.serve()
    stream = Stream(s, 'a', 'lease_ms=1500')
    left = stream.next('granted')[1]['remaining_ms']
    assert 1000 < left <= 1500, left
    until = time.monotonic() + left / 1000
    for _ in range(6):
        left = stream.next('renewed')[1]['remaining_ms']
        now = time.monotonic()
        assert now < until, 'late by %.3f s' % (now - until)
        assert now + left / 1000 > until + 0.05 and left <= 1500, (left, until - now)
        until = now + left / 1000
    if t.engine != 'redis':
        return
    t.server.process.send_signal(signal.SIGSTOP)
    try:
        event = stream.next()
        if event[0] == 'renewed':  # its answer was on the way
            until = time.monotonic() + event[1]['remaining_ms'] / 1000
            event = stream.next()
        assert event[0] == 'lost' and abs(time.monotonic() - until) < 0.3, (event, time.monotonic() - until)
    finally:
        t.server.process.send_signal(signal.SIGCONT)


@test(*ALL)
def a_stream_that_closes_in_the_queue_leaves_it(t):
    s = t.serve()
    c = Client(s)
    held = c.acquire('a', lease_ms=60000)
    waiting = Stream(s, 'a')
    waiting.next('queued')
    assert c.waiters('a') == 1
    waiting.close()
    wait_for(lambda: c.waiters('a') == 0, 'its leaving', 2)
    late = Stream(s, 'a', 'wait_ms=300')
    why = late.next('lost')[1]
    assert why['problem']['code'] == 'BUSY', why
    while not late.buffer.endswith(b'0\r\n\r\n'):
        late.buffer += late.socket.recv(100)  # the stream is ended, in order
    c.release(held['grant'])


@test(*ALL)
def a_stream_hears_of_a_break(t):
    s = t.serve()
    c = Client(s)
    stream = Stream(s, 'a')
    stream.next('granted')
    assert c.post('/v1/locks/a/break', by='ops').status == 409
    stream.next('breaking')
    assert len(c.holders('a')) == 1, 'it is still working'
    stream.close()
    wait_for(lambda: not c.holders('a'), 'the release', 2)


@test(*ALL)
def a_stream_that_is_broken_ends_with_its_lease(t):
    s = t.serve()
    c = Client(s)
    stream = Stream(s, 'a', 'lease_ms=2000')
    stream.next('granted')
    assert c.post('/v1/locks/a/break', by='ops').status == 409
    stream.next('breaking')
    start = time.monotonic()
    assert 'operator' in stream.next('lost')[1]['why']
    assert time.monotonic() - start < 2.5, 'its client does not close it'
    while not stream.buffer.endswith(b'0\r\n\r\n'):
        more = stream.socket.recv(100)
        assert more
        stream.buffer += more  # the stream is ended, in order
    wait_for(lambda: not c.holders('a'), 'the release', 2)


# ---- Every other engine -----------------------------------------------------------------------------------------


@test('redlock', 'postgresql', 'mysql', *BOUND)
def the_other_engines_serve_all_of_it(t):
    s = t.serve()
    c = Client(s)
    ask = dict(name='a', request=request_id(), lease_ms=8000)
    grant = c.good('/v1/acquire', 201, **ask)
    assert c.good('/v1/acquire', 200, **ask)['fence'] == grant['fence']
    assert c.acquire('a', status=409)['code'] == 'BUSY'
    assert [lock['name'] for lock in c.get('/v1/locks').json['locks']] == ['a'] and c.holders('a')
    assert c.renew(grant['grant'])['remaining_ms'] > 3000
    waiting, thread = later(Client(s).acquire, 'a', wait_ms=20000, lease_ms=8000)
    time.sleep(0.3)
    assert not waiting
    c.release(grant['grant'])
    thread.join(15)
    assert waiting[0]['fence'] > grant['fence']
    c.release(waiting[0]['grant'])
    first, second = Stream(s, 'h', 'lease_ms=8000'), None
    fence = first.next('granted')[1]['fence']
    second = Stream(s, 'h', 'lease_ms=8000')
    second.next('queued')
    first.close()
    assert second.next('granted')[1]['fence'] > fence
    second.close()
    if t.engine == 'redlock':
        assert c.good('/v1/once/k/begin', 501)['code'] == 'UNSUPPORTED'
        return
    run = c.good('/v1/once/k/begin', 201, fingerprint='f', lease_ms=8000)['run']
    c.good('/v1/once/k/step', run=run, step='half')
    c.good('/v1/once/k/finish', run=run, result='done')
    assert c.good('/v1/once/k/begin', 200, fingerprint='f')['result'] == 'done'
    assert [k['key'] for k in c.get('/v1/once?state=done').json['keys']] == ['k']
    token = c.good('/v1/tokens', 201)['token']
    c.good('/v1/tokens/redeem', token=token)
    c.good('/v1/tokens/redeem', 403, token=token)
    assert c.good('/v1/counters/n/add', n=2)['value'] == 2
    assert c.ask('PUT', '/v1/cells/x', b'v', {'If-None-Match': '*'}).status == 204 and c.get('/v1/cells/x').body == b'v'


# ---- Where the lease belongs to the server ----------------------------------------------------------------------


@test(*BOUND)
def a_bound_grant_names_its_server(t):
    one, two = t.serve(), t.serve()
    c, other = Client(one), Client(two)
    grant = c.acquire('a', lease_ms=5000)
    wrong = other.renew(grant['grant'], status=421)
    assert wrong['server'] == one.address, wrong
    assert other.release(grant['grant'], status=421)['server'] == one.address
    assert c.renew(grant['grant'])['remaining_ms'] > 3000
    other.acquire('a', status=409)
    c.release(grant['grant'])
    brief = other.acquire('a', lease_ms=600)
    after = Client(one).acquire('a', wait_ms=15000)
    assert after['fence'] > brief['fence'], 'a silent client loses it although its server lives'
    assert other.renew(brief['grant'], status=410)


@test(*BOUND)
def a_server_that_ends_keeps_its_word(t):
    one, two = t.serve(), t.serve()
    c, other = Client(one), Client(two)
    c.acquire('a', lease_ms=5000)
    start = time.monotonic()
    assert one.stop() == 0
    other.acquire('a', status=409)
    left = other.acquire('a', wait_ms=25000)
    assert time.monotonic() - start > 2 and left['fence'] > 0, 'its session ends by itself'
