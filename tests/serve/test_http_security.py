"""Who may do what. No request of a client that is not allowed changes anything."""

import contextlib
import hashlib
import http.client
import json
import os
import socket
import ssl
import subprocess

from harness import Skip, test, wait_for
from server import Client, Stream, send_raw

ALL_VERBS = ('read', 'lock', 'break', 'admin')


def tokens(t, *lines):
    """A token file of (secret, verbs, prefixes...)."""
    path = t.path('tokens')
    with open(path, 'w') as f:
        f.write('# who may do what\n\n')
        for secret, verbs, *prefixes in lines:
            f.write(' '.join([secret.split('-')[0], hashlib.sha256(secret.encode()).hexdigest(), verbs, *prefixes]) + '\n')
    return path


def certificates(t):
    """(server's certificate, its key, a CA, a client's certificate with its key) as files."""
    def openssl(*args):
        subprocess.run(['openssl', *args], check=True, capture_output=True, cwd=t.folder)

    openssl('req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', 'ca.key', '-out', 'ca.pem',
            '-days', '2', '-subj', '/CN=ca')
    for name in ('server', 'client', 'stranger'):
        openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', name + '.key',
                '-out', name + '.csr', '-subj', '/CN=' + name)
        with open(t.path('ext'), 'w') as f:
            f.write('subjectAltName=DNS:localhost,IP:127.0.0.1\n')
        signer = ['-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial'] if name != 'stranger' else ['-signkey', 'stranger.key']
        openssl('x509', '-req', '-in', name + '.csr', *signer, '-days', '2', '-out', name + '.pem', '-extfile', 'ext')


def secure(t, s, client=None):
    context = ssl.create_default_context(cafile=t.path('ca.pem'))
    if client:
        context.load_cert_chain(t.path(client + '.pem'), t.path(client + '.key'))
    c = Client(s, checked=False)
    c.connection = http.client.HTTPSConnection('localhost', s.port, context=context, timeout=20)
    return c


def every_request(document):
    """(method, path) of everything that changes something or tells something."""
    for path, operations in document['paths'].items():
        for method, said in operations.items():
            if said.get('security') != []:
                yield method.upper(), path.replace('{name}', 'shop:a').replace('{key}', 'shop:a')


def state(t, c):
    """All that is there, as an allowed client sees it."""
    return [c.get(path).body for path in ('/v1/locks?idle=true', '/v1/once?state=running', '/v1/counters/shop:a', '/v1/cells/shop:a')]


BODIES = {'/v1/acquire': {'name': 'shop:new'}, '/v1/renew': {'grant': 'g'}, '/v1/release': {'grant': 'g'},
          'value': {'value': 9}, 'resolve': {'outcome': 'done'}, 'redeem': {'token': 't'}, 'reissue': {'token': 't'}}


def body_for(path, grant, run):
    last = path.rsplit('/', 1)[1]
    if path in ('/v1/renew', '/v1/release'):
        return {'grant': grant}
    if last in ('step', 'finish', 'fail', 'undo', 'abandon', 'renew'):
        return {'run': run, 'step': 's'} if last == 'step' else {'run': run}
    return BODIES.get(path) or BODIES.get(last) or ({'value': 9} if 'counters' in path and last == 'shop:a' else {})


@test('memory', 'redis')
def nothing_is_changed_by_those_who_may_not(t):
    path = tokens(t, ('boss-1', 'all'), ('reader-2', 'read'), ('other-3', 'all', 'other:'), ('locker-4', 'lock'))
    s = t.serve('--tokens', path)
    boss = Client(s, token='boss-1')
    grant = boss.acquire('shop:a', lease_ms=60000)['grant']
    run = boss.good('/v1/once/shop:a/begin', 201, lease_ms=60000)['run']
    boss.ask('PUT', '/v1/counters/shop:a', {'value': 5})
    boss.ask('PUT', '/v1/cells/shop:a', b'v', {'If-None-Match': '*'})
    count = 0
    for secret in (None, 'wrong', 'reader-2', 'other-3', 'locker-4'):
        c = Client(s, token=secret)
        for method, where in every_request(s.openapi()):
            if secret == 'reader-2' and method == 'GET' and not where.endswith('/hold'):
                continue
            if secret == 'other-3' and ('shop:a' not in where or where.endswith('/hold')) and where != '/v1/acquire':
                continue
            if secret == 'locker-4' and method != 'GET' and not where.endswith(('break', 'forget', 'resolve')):
                continue
            if secret == 'locker-4' and where.endswith('/hold'):
                continue
            raw = where.startswith('/v1/cells/')
            headers = {'Accept': 'text/event-stream', **({'If-Match': '*', 'Dibs-Fence': '9'} if raw else {})}
            body = b'stolen' if raw else body_for(where, grant, run) if method in ('POST', 'PUT') else None
            before = state_of_time_free(boss)
            answer = c.ask(method, where, body, headers)
            count += 1
            assert answer.status in (401, 403, 429), (secret, method, where, answer)
            assert state_of_time_free(boss) == before, (secret, method, where)
    t.note('%d requests were refused', count)
    assert count >= 80
    assert boss.renew(grant) and boss.good('/v1/once/shop:a/finish', run=run)


def state_of_time_free(c):
    """What there is, without what only time changes."""
    locks = [{k: v for k, v in lock.items() if k != 'holders'} | {'fences': [h['fence'] for h in lock['holders']]}
             for lock in c.get('/v1/locks?idle=true').json['locks']]
    keys = [(k['key'], k['state'], k['step_count']) for k in c.get('/v1/once').json['keys']]
    return locks, keys, c.get('/v1/counters/shop:a').body, c.get('/v1/cells/shop:a').body


@test('memory')
def tokens_have_prefixes_and_verbs(t):
    path = tokens(t, ('shop-1', 'lock,read', 'shop:', 'a%20b'), ('ops-2', 'break,read'))
    s = t.serve('--tokens', path)
    shop, ops = Client(s, token='shop-1'), Client(s, token='ops-2')
    assert shop.acquire('shop:1') and shop.acquire('a b c')
    assert shop.holders('shop:1')[0]['owner'].startswith('shop#')
    assert shop.good('/v1/acquire', 403, names=['shop:2', 'x'])['code'] == 'DENIED'
    assert not ops.holders('shop:2')
    assert shop.get('/v1/locks').status == 403 and shop.get('/v1/locks?prefix=shop').status == 403
    assert shop.get('/v1/locks?prefix=shop:').status == 200
    assert shop.good('/v1/locks/shop:1/break', 403) and ops.good('/v1/locks/shop:1/break', now=True)
    assert ops.acquire('x', status=403)
    both = send_raw(s.port, b'GET /v1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer shop-1\r\n'
                            b'Authorization: Bearer ops-2\r\nConnection: close\r\n\r\n', 3)
    assert b' 400 ' in both, both


@test('memory')
def a_request_id_is_the_clients_own(t):
    s = t.serve('--tokens', tokens(t, ('one-1', 'all'), ('two-2', 'all')))
    one, two = Client(s, token='one-1'), Client(s, token='two-2')
    ask = dict(name='a', request='0123456789abcdef')
    grant = one.good('/v1/acquire', 201, **ask)['grant']
    assert two.good('/v1/acquire', 409, **ask)['code'] == 'BUSY', 'the grant is not given to another client'
    shown = two.get('/v1/locks/a').body
    assert b'0123456789abcdef' not in shown and grant.encode() not in shown


@test('memory')
def wrong_tokens_are_limited(t):
    s = t.serve('--tokens', tokens(t, ('good-1', 'all')))
    statuses = [Client(s, token='wrong-%d' % i).get('/v1').status for i in range(14)]
    assert statuses == [401] * 10 + [429] * 4, statuses
    answer = Client(s, token='wrong').get('/v1')
    assert 0 < int(answer.headers['Retry-After']) <= 61
    assert Client(s, token='good-1').get('/v1').status == 200, 'the right one comes from a proxy of both'
    assert Client(s).get('/healthz').status == 200


@test('memory')
def tokens_are_read_anew(t):
    path = tokens(t, ('old-1', 'all'))
    s = t.serve('--tokens', path)
    stream = Stream(s, 'held', token='old-1')
    stream.next('granted')
    tokens(t, ('new-2', 'all'))
    s.process.signal(1)
    wait_for(lambda: b'reloaded' in s.process.err, 'the reload')
    assert Client(s, token='old-1').get('/v1').status == 401 and Client(s, token='new-2').get('/v1').status == 200
    with open(path, 'a') as f:
        f.write('broken\n')
    s.process.signal(1)
    wait_for(lambda: b'line 4' in s.process.err, 'the complaint')
    assert Client(s, token='new-2').get('/v1').status == 200, 'what was there stays'


def dashboard_frame(s, token):
    """A page that has just been opened: its socket, and its first frame."""
    page = socket.create_connection(('127.0.0.1', s.port), timeout=20)
    page.sendall(b'GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer %s\r\n\r\n' % token.encode())
    got = b''
    while b'"server":' not in got:
        more = page.recv(65536)
        assert more, got
        got += more
    return page, got


@test('memory')
def streams_end_when_their_token_changes(t):
    path = tokens(t, ('gone-1', 'all'), ('narrow-2', 'read'), ('same-3', 'all'))
    s = t.serve('--tokens', path)
    same = Client(s, token='same-3')
    grants = [same.acquire(name, lease_ms=60000) for name in ('shop:a', 'secret:b')]
    gone, kept = Stream(s, 'held', token='gone-1'), Stream(s, 'kept', 'lease_ms=600', token='same-3')
    gone.next('granted')
    kept.next('granted')
    page, frame = dashboard_frame(s, 'narrow-2')
    assert b'secret:b' in frame
    s.process.signal(1)
    wait_for(lambda: s.process.err.count(b'reloaded') == 1, 'a reload that changes nothing')
    assert kept.next('renewed') and same.holders('held'), 'the streams go on'
    tokens(t, ('narrow-2', 'read', 'shop:'), ('same-3', 'all'))
    s.process.signal(1)
    wait_for(lambda: s.process.err.count(b'reloaded') == 2, 'the reload')
    wait_for(lambda: not same.holders('held'), 'the release')
    assert 'token' in gone.next('lost')[1]['why']
    while not frame.endswith(b'\r\n0\r\n\r\n'):
        part = page.recv(65536)  # until its stream has ended; a timeout fails
        assert part, 'closed in the middle of a frame'
        frame += part
    assert kept.next('renewed')
    page, frame = dashboard_frame(s, 'narrow-2')
    assert b'shop:a' in frame and b'secret:b' not in frame, frame
    assert grants


@test('memory')
def a_page_that_is_opened_later_has_its_own_rights(t):
    """Two pages of one name, and the file was read between them; the first one goes on until the server looks."""
    path = tokens(t, ('same-1', 'all'))
    s = t.serve('--tokens', path)
    boss = Client(s, token='same-1')
    boss.acquire('secret:b', lease_ms=60000)
    page, frame = dashboard_frame(s, 'same-1')
    assert b'secret:b' in frame and b'"break":true' in frame
    tokens(t, ('same-1', 'read', 'shop:'))
    s.process.signal(1)
    wait_for(lambda: b'reloaded' in s.process.err, 'the reload')
    later, frame = dashboard_frame(s, 'same-1')
    assert b'secret:b' not in frame and b'"break":false' in frame, frame
    page.close()
    later.close()


@test('memory')
def clients_of_ipv4_are_told_apart_on_ipv6(t):
    if not os.path.exists('/proc/net/if_inet6'):
        raise Skip('no IPv6 here')
    certificates(t)
    s = t.serve('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'), '--tokens', tokens(t, ('good-1', 'all')), listen='[::]:0')

    def guess(address):
        c = secure(t, s)
        c.connection.source_address = (address, 0)
        c.connection.host = '127.0.0.1'
        return c.get('/v1', Authorization='Bearer wrong').status

    assert [guess('127.0.0.1') for _ in range(11)] == [401] * 10 + [429]
    assert guess('127.0.0.2') == 401, 'another client, which has guessed nothing yet'


@test()
def bad_token_files_and_open_doors_are_refused(t):
    good = '%s all' % ('0' * 64)
    for line in ('name', 'na/me ' + good, 'name xyz all', 'name %s fly' % ('0' * 64), 'a %s\na %s' % (good, good),
                 'a %s %%zz' % good, 'a %s %s' % (good, 'p ' * 17)):
        with open(t.path('tokens'), 'w') as f:
            f.write(line + '\n')
        code, out, err = t.run('serve', '--listen', '127.0.0.1:0', '--url', 'memory:', '--tokens', t.path('tokens'))
        assert code == 64 and b'line' in err and err.count(b'\n') == 1, (line, code, err)
    certificates(t)
    pair = ('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'))
    wide = ('serve', '--listen', '0.0.0.0:0', '--url', 'memory:')
    for args in ((), pair, ('--tokens', t.path('ok'))):
        with open(t.path('ok'), 'w') as f:
            f.write('a %s\n' % good)
        code, out, err = t.run(*wide, *args)
        assert code == 64 and b'network' in err, (args, code, err)
    code, out, err = t.run(*wide, '--tls-cert', t.path('server.pem'), '--tls-key', t.path('client.key'), '--tokens', t.path('ok'))
    assert code == 64 and b'not the key' in err, err
    for args in (('--tls-cert', 'x'), ('--client-ca', 'x'), ('--listen', 'nonsense'), ('--listen', 'unix:'), ('operand',),
                 ('--listen', '127.0.0.1:99999'), ('--listen', 'fd:x'), ('--listen', 'fd:'), ('--listen', 'fd:2'), ('--listen', 'fd:999')):
        code, out, err = t.run('serve', '--url', 'memory:', *args)
        assert code == 64 and err.startswith(b'dibs: '), (args, code, err)


@test('memory')
def tls_protocols(t):
    """TLS 1.2 or newer; a client that names protocols gets HTTP/1.1 or no connection."""
    certificates(t)
    s = t.serve('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'))

    def connect(protocols=None, most=None):
        context = ssl.create_default_context(cafile=t.path('ca.pem'))
        if protocols:
            context.set_alpn_protocols(protocols)
        if most:
            context.set_ciphers('ALL:@SECLEVEL=0')
            context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, most
        with socket.create_connection(('127.0.0.1', s.port), timeout=10) as plain:
            with context.wrap_socket(plain, server_hostname='localhost') as c:
                return c.version(), c.selected_alpn_protocol()

    assert connect() == ('TLSv1.3', None)
    assert connect(['h2', 'http/1.1']) == ('TLSv1.3', 'http/1.1')
    assert connect(most=ssl.TLSVersion.TLSv1_2) == ('TLSv1.2', None)
    for refused in dict(protocols=['h2']), dict(most=ssl.TLSVersion.TLSv1_1):
        try:
            assert not connect(**refused), refused
        except ssl.SSLError:
            pass


@test('memory')
def tls_and_client_certificates(t):
    certificates(t)
    path = tokens(t, ('token-1', 'all'))
    pair = ('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'), '--client-ca', t.path('ca.pem'))
    s = t.serve(*pair, '--tokens', path, listen='0.0.0.0:0')
    assert secure(t, s, 'client').get('/v1').status == 401, 'a name that is in no line may do nothing'
    with open(path, 'a') as f:
        f.write('client - all\n')
    s.process.signal(1)
    wait_for(lambda: b'reloaded' in s.process.err, 'the reload')
    assert secure(t, s).get('/v1').status == 401
    assert secure(t, s).get('/v1', Authorization='Bearer ').status == 401
    assert secure(t, s, 'client').get('/v1').status == 200
    assert secure(t, s, 'client').post('/v1/acquire', name='a').status == 201
    assert secure(t, s, 'client').get('/v1/locks/a').json['holders'][0]['owner'].startswith('client#')
    assert secure(t, s, 'stranger').get('/v1').status == 401
    assert secure(t, s).get('/v1', Authorization='Bearer token-1').status == 200
    assert send_raw(s.port, b'GET / HTTP/1.1\r\n\r\n', 2)[:5] != b'HTTP/', 'no answer without TLS'
    before = ssl.get_server_certificate(('127.0.0.1', s.port))
    old = secure(t, s, 'client')
    old.get('/v1')
    certificates(t)  # another CA, too
    s.process.signal(1)
    wait_for(lambda: s.process.err.count(b'reloaded') == 2, 'the reload')
    assert old.get('/v1').status == 401, 'a certificate of the CA that was replaced'
    assert ssl.get_server_certificate(('127.0.0.1', s.port)) != before, 'the new certificate'
    assert secure(t, s, 'client').get('/v1').status == 200, 'one of the new CA'
    with open(path, 'w') as f:
        f.write('token %s all\n' % ('0' * 64))
    s.process.signal(1)
    wait_for(lambda: s.process.err.count(b'reloaded') == 3, 'the reload')
    assert secure(t, s, 'client').get('/v1').status == 401, 'its line was removed'
    with open(t.path('ca.pem'), 'w') as f:
        f.write('nonsense')
    s.process.signal(1)
    wait_for(lambda: b'no certificates can be used' in s.process.err, 'the complaint')


def slow_handshake(t, s):
    """A TLS 1.2 client that has the server's certificate, and has not sent its share of the key yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers('AES128-GCM-SHA256')  # the server's key decrypts what the client sends
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    session, wire = context.wrap_bio(into, out), socket.create_connection(('127.0.0.1', s.port), timeout=20)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    wire.sendall(out.read())
    while not out.pending:
        into.write(wire.recv(65536))
        with contextlib.suppress(ssl.SSLWantReadError):
            session.do_handshake()
    return session, into, out, wire


@test('memory')
def a_slow_handshake_outlives_its_certificate(t):
    t.poison()

    def renew():
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', 'server.key', '-out', 'server.pem', '-days', '2',
                        '-subj', '/CN=server'], check=True, capture_output=True, cwd=t.folder)

    renew()
    s = t.serve('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'))
    session, into, out, wire = slow_handshake(t, s)
    for turn in range(3):
        renew()
        s.process.signal(1)
        wait_for(lambda: s.process.err.count(b'reloaded') == turn + 1, 'the reload')
    wire.sendall(out.read())
    for _ in range(20):
        try:
            session.do_handshake()
            break
        except ssl.SSLWantReadError:
            into.write(wire.recv(65536))
    session.write(b'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
    wire.sendall(out.read())
    into.write(wire.recv(65536))
    assert session.read(100).startswith(b'HTTP/1.1 200')
    wire.close()


@test('memory')
def the_name_of_a_certificate_is_escaped_in_the_log(t):
    certificates(t)
    for number, subject in enumerate(('/CN=a"b\\\\c', '/CN=a\x01b', '/CN=Bj\xf6rk \u2603')):
        name = 'odd%d' % number
        subprocess.run(['openssl', 'req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-utf8', '-keyout', name + '.key',
                        '-out', name + '.csr', '-subj', subject], check=True, capture_output=True, cwd=t.folder)
        subprocess.run(['openssl', 'x509', '-req', '-in', name + '.csr', '-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-days', '2',
                        '-out', name + '.pem'], check=True, capture_output=True, cwd=t.folder)
    log = t.path('access')
    s = t.serve('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'), '--client-ca', t.path('ca.pem'), '--access-log', log)
    for number in range(3):
        assert secure(t, s, 'odd%d' % number).get('/v1').status == 200
    wait_for(lambda: open(log).read().count('\n') >= 3, 'the log')
    clients = [json.loads(line)['client'] for line in open(log)]
    t.note('clients in the log: %r', clients)
    assert clients[2] == 'Bj\xf6rk \u2603' and '"' in clients[0] and len(set(clients)) == 3, clients


@test('redis')
def a_server_at_all_addresses_names_its_machine(t):
    certificates(t)
    pair = ('--tls-cert', t.path('server.pem'), '--tls-key', t.path('server.key'), '--tokens', tokens(t, ('token-1', 'all')))
    other = Client(t.serve())
    for listen in ('0.0.0.0:0', '[::]:0') if socket.has_ipv6 and os.path.exists('/proc/net/if_inet6') else ('0.0.0.0:0',):
        wide = t.serve(*pair, listen=listen)
        answer = secure(t, wide).ask('POST', '/v1/once/k/begin', {}, {'Authorization': 'Bearer token-1'})
        assert answer.status == 201, answer
        wrong = other.good('/v1/once/k/abandon', 421, run=answer.json['run'])
        assert wrong['server'] == 'https://%s:%d' % (socket.gethostname(), wide.port), wrong
        undone = secure(t, wide).ask('POST', '/v1/once/k/undo', {'run': answer.json['run']}, {'Authorization': 'Bearer token-1'})
        assert undone.status == 200, undone
    named = t.serve(*pair, '--advertise', 'https://db.example', listen='0.0.0.0:0')
    assert secure(t, named).get('/v1', Authorization='Bearer token-1').json['address'] == 'https://db.example'


@test('memory')
def pages_of_other_sites_are_refused(t):
    s = t.serve()
    c = Client(s)
    own = 'http://127.0.0.1:%d' % s.port
    assert c.get('/v1', Origin=own).status == 200
    for headers in ({'Origin': 'http://evil.example'}, {'Origin': 'null'}, {'Sec-Fetch-Site': 'cross-site'},
                    {'Origin': 'http://127.0.0.1:1'}):
        for method, path in (('GET', '/v1/locks'), ('POST', '/v1/acquire'), ('GET', '/v1/locks/a/hold')):
            body = '{"name": "csrf"}' if method == 'POST' else None
            answer = c.ask(method, path, body, {**headers, 'Accept': 'text/event-stream', 'Content-Type': 'application/json'})
            assert answer.status == 403, (headers, path, answer)
    for kind in ('text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data'):
        assert c.ask('POST', '/v1/acquire', '{"name": "csrf"}', {'Content-Type': kind}).status == 415
    assert c.ask('GET', '/v1/locks/csrf/hold').status == 406, 'an image cannot take a lock'
    assert c.get('/v1', Host='evil.example').status == 421, 'a name of its own that leads here'
    assert not c.get('/v1/locks').json['locks']
    assert 'Access-Control-Allow-Origin' not in c.get('/v1').headers
    open_one = Client(t.serve('--cors', 'https://app.example'))
    answer = open_one.get('/v1', Origin='https://app.example')
    assert answer.status == 200 and answer.headers['Access-Control-Allow-Origin'] == 'https://app.example'
    preflight = open_one.ask('OPTIONS', '/v1/acquire', None, {'Origin': 'https://app.example'})
    assert preflight.status == 204 and 'Content-Type' in preflight.headers['Access-Control-Allow-Headers']


@test('memory')
def no_secret_is_in_a_log(t):
    log = t.path('access')
    s = t.serve('--tokens', tokens(t, ('boss-secret', 'all')), '--access-log', log)
    c = Client(s, token='boss-secret')
    grant = c.acquire('name-of-a-lock', request='request-id-of-mine')['grant']
    c.get('/v1/locks/name-of-a-lock?x=1')
    c.release(grant)
    Client(s, token='guess').get('/v1')
    wait_for(lambda: '"status":401,' in open(log).read(), 'the last line of the log')
    text = open(log).read()
    for secret in (grant, 'boss-secret', 'request-id-of-mine', 'name-of-a-lock', 'guess'):
        assert secret not in text and secret.encode() not in s.process.err, secret
    lines = [json.loads(line) for line in text.splitlines()]
    assert [l['status'] for l in lines if l['route'] != '/openapi.json'][:4] == [201, 400, 200, 401], lines
    assert lines[0]['client'] in ('boss', '') and {l['route'] for l in lines} >= {'/v1/acquire', '/v1/release'}
    with open('/proc/%d/cmdline' % s.process.pid, 'rb') as f:
        assert b'boss-secret' not in f.read()


@test('sqlite')
def a_unix_socket_serves_this_user(t):
    import os
    import socket
    import stat
    path = t.path('socket')
    s = t.serve(listen='unix:' + path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with socket.socket(socket.AF_UNIX) as c:
        c.connect(path)
        c.sendall(b'GET /v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
        assert b' 200 ' in c.recv(100)
    s.kill()
    s = t.serve(listen='unix:' + path)  # what a killed server left is no hindrance
    assert s.stop() == 0 and not os.path.exists(path)


@test('memory')
def a_file_that_is_in_the_way_stays(t):
    os.mkfifo(t.path('pipe'))
    os.symlink(t.path('notes'), t.path('link'))
    commands = (('serve',), ('gateway', '--upstream', 'http://127.0.0.1:1'))
    for command in commands:
        for name in ('notes', 'pipe', 'link'):
            with open(t.path('notes'), 'w') as f:
                f.write('do not lose this')
            code, out, err = t.run(*command, '--listen', 'unix:' + t.path(name), '--url', 'memory:')
            assert code == 69 and b'in use' in err, (command, name, code, err)
            assert os.path.lexists(t.path(name)) and open(t.path('notes')).read() == 'do not lose this', (command, name)
