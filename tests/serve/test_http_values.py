"""Tokens, counters and cells over HTTP; what the server says of itself."""

from harness import test, wait_for
from server import Client

ALL = ('memory', 'sqlite', 'redis')


@test(*ALL)
def a_token_is_redeemed_once(t):
    c = Client(t.serve())
    token = c.good('/v1/tokens', 201, scope='form')['token']
    assert c.good('/v1/tokens/redeem', 403, token=token)['code'] == 'REFUSED'
    c.good('/v1/tokens/redeem', token=token, scope='form')
    c.good('/v1/tokens/redeem', 403, token=token, scope='form')
    again = c.good('/v1/tokens/reissue', token=token, scope='form')['token']
    assert again != token
    c.good('/v1/tokens/redeem', token=again, scope='form')


@test(*ALL)
def a_counter_counts_a_request_once(t):
    c = Client(t.serve())
    assert c.get('/v1/counters/seats').status == 404
    assert c.ask('PUT', '/v1/counters/seats', {'value': 5}).status == 200
    for repeated in (False, True):
        assert c.good('/v1/counters/seats/take', n=3, request='mail-1') == {'value': 2, 'repeated': repeated}
    assert c.good('/v1/counters/seats/take', 409, n=3)['code'] == 'TOO_FEW'
    assert c.good('/v1/counters/seats/add', n=-2)['value'] == 0
    assert c.good('/v1/counters/seats/add')['value'] == 1
    assert c.get('/v1/counters/seats').json['value'] == 1


@test(*ALL)
def a_cell_is_written_only_if_it_is_unchanged(t):
    c = Client(t.serve())
    path, data = '/v1/cells/conf%2Fig', bytes(range(256))
    assert c.ask('PUT', path, data).status == 428
    assert c.ask('PUT', path, data, {'If-Match': '*'}).status == 412
    first = c.ask('PUT', path, data, {'If-None-Match': '*'})
    assert first.status == 204 and c.ask('PUT', path, data, {'If-None-Match': '*'}).status == 412
    read = c.get(path)
    assert read.body == data and read.headers['ETag'] == first.headers['ETag']
    assert c.get(path, If_None_Match=read.headers['ETag']).status == 304
    second = c.ask('PUT', path, b'two', {'If-Match': read.headers['ETag']})
    assert second.status == 204 and second.headers['ETag'] != first.headers['ETag']
    lost = c.ask('PUT', path, b'three', {'If-Match': read.headers['ETag']})
    assert lost.status == 412 and lost.headers['ETag'] == second.headers['ETag'] and lost.json['code'] == 'CONFLICT'
    for much in (2**64 - 1, 10**20 - 1):  # the largest number stands for every version
        assert c.ask('PUT', path, b'three', {'If-Match': '"%d"' % much}).status == 400
    head = c.ask('HEAD', path)
    assert head.status == 200 and head.body == b'' and head.headers['Content-Length'] == '3'
    assert c.ask('DELETE', path, None, {'If-Match': read.headers['ETag']}).status == 412
    assert c.ask('DELETE', path, None, {'If-Match': second.headers['ETag']}).status == 204
    assert c.get(path).status == 404


@test(*ALL)
def an_old_fence_writes_nothing(t):
    c = Client(t.serve())
    grants = [c.acquire('lock')]
    c.release(grants[0]['grant'])
    grants.append(c.acquire('lock'))
    old, new = ({'Dibs-Fence': g['locks'][0]['fence_text']} for g in grants)
    assert c.ask('POST', '/v1/cells/x/pass', None, new).status == 204, 'there is no value yet'
    refused = c.ask('PUT', '/v1/cells/x', b'old', dict(old, **{'If-None-Match': '*'}))
    assert refused.status == 412 and refused.json['code'] == 'FENCED' and refused.json['fence'] == grants[1]['fence']
    assert c.ask('PUT', '/v1/cells/x', b'new', dict(new, **{'If-None-Match': '*'})).status == 204
    assert c.ask('POST', '/v1/cells/x/pass', None, old).status == 412
    assert c.ask('POST', '/v1/cells/x/pass', None, new).body == b'new'
    for wrong in ('', 'x', '0', '-1', '5/', '5/6', '5/0', '1.5', '9' * 30):
        assert c.ask('POST', '/v1/cells/x/pass', None, {'Dibs-Fence': wrong}).status == 400, wrong
    assert c.ask('POST', '/v1/cells/x/pass').status == 428


@test(*ALL)
def a_cell_expires(t):
    import time
    c = Client(t.serve())
    assert c.ask('PUT', '/v1/cells/x?keep_ms=400', b'v', {'If-None-Match': '*'}).status == 204
    assert 0 < int(c.get('/v1/cells/x').headers['Dibs-Expires-Ms']) <= 400
    time.sleep(0.6)
    assert c.get('/v1/cells/x').status == 404


@test(*ALL)
def health_and_the_document(t):
    s = t.serve()
    c = Client(s)
    assert c.get('/healthz').json == {'ok': True} and c.get('/readyz').json == {'ok': True}
    assert c.get('/v1').json['engine'] == t.engine
    document = s.openapi()
    assert document['openapi'] == '3.1.0' and len(document['paths']) >= 25
    names = [r for p in document['paths'].values() for o in p.values() for r in o['responses']]
    assert '421' in names and 'default' in names
    for path, operations in document['paths'].items():
        for method in operations:
            allowed = c.ask('OPTIONS', path.replace('{', '').replace('}', '')).headers['Allow']
            assert method.upper() in allowed, (path, method, allowed)


@test('redis')
def not_ready_without_its_engine(t):
    s = t.serve('--patience', '60s')
    c = Client(s)
    assert c.get('/readyz').status == 200
    t.server.process.send_signal(19)
    try:
        wait_for(lambda: c.get('/readyz').status == 503, 'the next question to the engine')  # one a second
        assert c.get('/healthz').status == 200
    finally:
        t.server.process.send_signal(18)
