"""Once over HTTP."""

import json
import signal
import time

from harness import test, wait_for
from server import Client, request_id, unread

ALL = ('memory', 'sqlite', 'redis')


@test(*ALL)
def work_is_done_once(t):
    c = Client(t.serve())
    run = c.good('/v1/once/order:17/begin', 201, fingerprint='amount=100', scope='pay')
    assert run['state'] == 'running' and run['fence'] > 0 and not run['again']
    assert c.good('/v1/once/order:17/begin', 409, fingerprint='amount=100', scope='pay')['code'] == 'RUNNING'
    c.good('/v1/once/order:17/step', run=run['run'], step='charged', data='id 5')
    shown = c.get('/v1/once/order:17?scope=pay').json
    assert shown['state'] == 'running' and shown['steps'] == [{'name': 'charged', 'data': 'id 5'}]
    c.good('/v1/once/order:17/finish', run=run['run'], result='paid', code=3)
    assert c.good('/v1/once/order:17/finish', run=run['run'], result='paid', code=3), 'a repeated finish'
    assert c.good('/v1/once/order:17/undo', 410, run=run['run'])['code'] == 'LOST'
    done = c.good('/v1/once/order:17/begin', 200, fingerprint='amount=100', scope='pay')
    assert done == {'state': 'done', 'result': 'paid', 'code': 3}
    assert c.good('/v1/once/order:17/begin', 422, fingerprint='amount=200', scope='pay')['code'] == 'MISMATCH'
    assert c.good('/v1/once/order:17/begin', 201)['run'], 'another scope is another key'


@test(*ALL)
def bytes_and_failures(t):
    c = Client(t.serve())
    run = c.good('/v1/once/k/begin', 201)
    c.good('/v1/once/k/fail', run=run['run'], result_hex='ff00')
    done = c.good('/v1/once/k/begin', 200)
    assert done['state'] == 'failed' and done['result_hex'] == 'ff00' and done['result'] is None
    run = c.good('/v1/once/j/begin', 201)['run']
    for wrong in (dict(result_hex='f'), dict(result_hex='zz'), dict(result='a', result_hex='00')):
        c.good('/v1/once/j/finish', 400, run=run, **wrong)
    c.good('/v1/once/other/finish', 400, run=run)
    c.good('/v1/once/j/undo', run=run)
    assert c.good('/v1/once/j/begin', 201)['run'] != run


@test(*ALL)
def the_same_begin_gets_the_same_run(t):
    c = Client(t.serve())
    ask = dict(request=request_id(), fingerprint='a')
    first = c.good('/v1/once/k/begin', 201, **ask)
    again = c.good('/v1/once/k/begin', 200, **ask)
    assert again['run'] == first['run'] and again['fence'] == first['fence']
    c.good('/v1/once/k/begin', 422, **dict(ask, fingerprint='b'))
    c.good('/v1/once/k/undo', run=first['run'])
    assert c.good('/v1/once/k/begin', 410, **ask)['code'] == 'LOST', 'a late copy begins nothing'


@test('redis')
def a_begin_that_comes_again_during_a_step_gets_its_run(t):
    s = t.serve()
    c = Client(s)
    ask = dict(request=request_id())
    run = c.good('/v1/once/k/begin', 201, **ask)['run']
    t.server.process.send_signal(signal.SIGSTOP)
    try:
        step = Client(s)
        step.connection.request('POST', '/v1/once/k/step', json.dumps(dict(run=run, step='half')), {'Content-Type': 'application/json'})
        wait_for(lambda: unread(s.port) == 0, 'the step to be read')
        assert c.good('/v1/once/k/begin', 200, **ask)['run'] == run
    finally:
        t.server.process.send_signal(signal.SIGCONT)
    assert step.connection.getresponse().status == 200
    c.good('/v1/once/k/finish', run=run, result='r')
    assert c.good('/v1/once/k/finish', run=run, result='r')['state'] == 'ended'
    assert c.good('/v1/once/k/begin', 200, **ask)['result'] == 'r'
    assert c.good('/v1/once/other/finish', 410, run=run) and c.good('/v1/once/k/fail', 410, run=run)


@test(*ALL)
def a_silent_client_has_crashed(t):
    c = Client(t.serve())
    run = c.good('/v1/once/k/begin', 201, lease_ms=600)['run']
    for _ in range(4):
        time.sleep(0.3)
        c.good('/v1/once/k/renew', run=run)
    wait_for(lambda: c.post('/v1/once/k/begin').json['code'] == 'CRASHED', 'the crash', 5)
    assert c.good('/v1/once/k/finish', 410, run=run)['code'] == 'LOST'
    assert [k['key'] for k in c.get('/v1/once?state=crashed').json['keys']] == ['k']
    assert c.good('/v1/once/k/begin', 201, on_crash='rerun')['again']


@test(*ALL)
def a_waiter_gets_the_result(t):
    s = t.serve()
    c = Client(s)
    run = c.good('/v1/once/k/begin', 201)['run']
    waiter = Client(s)
    waiter.connection.request('POST', '/v1/once/k/begin', '{"wait_ms": 10000}', {'Content-Type': 'application/json'})
    time.sleep(0.3)
    c.good('/v1/once/k/finish', run=run, result='r')
    assert b'"result":"r"' in waiter.connection.getresponse().read()


@test(*ALL)
def a_begin_whose_client_is_gone_leaves_the_key_as_it_was(t):
    s = t.serve()
    c = Client(s)
    run = c.good('/v1/once/k/begin', 201)['run']
    gone = Client(s)
    gone.connection.request('POST', '/v1/once/k/begin', '{"wait_ms": 20000}', {'Content-Type': 'application/json'})
    time.sleep(0.3)
    gone.close()
    time.sleep(0.3)
    c.good('/v1/once/k/undo', run=run)
    wait_for(lambda: c.get('/v1/once/k').json['state'] == 'free', 'the key', 5)


@test('redis')
def a_run_belongs_to_its_server(t):
    one, two = t.serve(), t.serve()
    run = Client(one).good('/v1/once/k/begin', 201)['run']
    wrong = Client(two).good('/v1/once/k/finish', 421, run=run)
    assert wrong['server'] == one.address
    Client(one).good('/v1/once/k/finish', run=run)
    assert Client(two).good('/v1/once/k/begin', 200)['state'] == 'done'


@test(*ALL)
def operators_list_forget_and_resolve(t):
    c = Client(t.serve())
    for i in range(5):
        run = c.good('/v1/once/k%d/begin' % i, 201)['run']
        c.good('/v1/once/k%d/abandon' % i, run=run)
    seen, after = [], ''
    while after is not None:
        page = c.get('/v1/once?limit=2&state=crashed' + ('&after=' + after if after else '')).json
        seen += [k['key'] for k in page['keys']]
        after = page['next']
    assert seen == ['k%d' % i for i in range(5)], seen
    version = c.get('/v1/once/k0').json['version']
    assert c.good('/v1/once/k0/resolve', 409, outcome='done', version=version + 1)['code'] == 'CONFLICT'
    c.good('/v1/once/k0/resolve', outcome='done', result='by hand', version=version, by='ops')
    assert c.good('/v1/once/k0/begin', 200)['result'] == 'by hand'
    assert c.get('/v1/once/k0').json['decided_by'] == 'ops'
    c.good('/v1/once/k1/forget')
    assert c.good('/v1/once/k1/begin', 201)
    assert c.good('/v1/once/k1/forget', 409)['code'] == 'RUNNING'
    c.good('/v1/once/nothing/forget', 404)
    c.good('/v1/once/k2/resolve', 400, outcome='maybe')
    assert c.get('/v1/once/nothing').status == 404
