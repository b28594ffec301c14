"""A thousand at once; and SIGKILL of gateway, application and engine at each step of a request. What counts is the application's own log:
a key is executed at most once under `refuse`, at least once under `rerun`, and when somebody has a whole answer, everybody who asks again gets it."""

import json
import random
import resource
import selectors
import signal
import socket
import threading
import time

import databases
import harness
from gateway import Client, Freezing, new_key
from harness import test, wait_for

COUNT = 1000
ROUTES = ({'path': '/refuse', 'key': 'required', 'caller': 'none', 'lease': '1s', 'wait': '0s'},
          {'path': '/rerun', 'key': 'required', 'caller': 'none', 'lease': '1s', 'wait': '0s', 'on_crash': 'rerun'})
POINTS = ('head', 'read', 'run', 'status', 'half', 'sent')  # where the application stops; the client's: half a body sent


# ---- A thousand ------------------------------------------------------------------------------------------------


def all_at_once(g, key, count):
    """Connects all, sends the same request on each, reads an answer from each: their statuses and bodies."""
    request = (b'POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "%s"\r\nConnection: close\r\nContent-Length: 10\r\n\r\namount=100' % key.encode())
    waiting, answers = selectors.DefaultSelector(), {}
    for n in range(count):
        s = socket.create_connection(('127.0.0.1', g.port), 30)
        waiting.register(s, selectors.EVENT_READ, n)
    for slot in list(waiting.get_map().values()):
        slot.fileobj.sendall(request)
    end = time.monotonic() + 60
    while waiting.get_map() and time.monotonic() < end:
        for slot, _ in waiting.select(1):
            more = slot.fileobj.recv(65536)
            answers[slot.data] = answers.get(slot.data, b'') + more
            if not more:
                waiting.unregister(slot.fileobj)
                slot.fileobj.close()
    return list(answers.values())


@test('sqlite', 'redis', 'postgresql')
def a_thousand_at_once_are_one(t):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    app = t.application()
    route = {'path': '/orders', 'key': 'required', 'caller': 'none', 'wait': '50s'}
    gateways = [t.gateway(app, (route,)) for _ in range(2)]  # which are one gateway
    key, start = new_key(), time.monotonic()
    results = [[], []]
    threads = [threading.Thread(target=lambda r=r, g=g: r.extend(all_at_once(g, key, COUNT // 2))) for r, g in zip(results, gateways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    answers = results[0] + results[1]
    good = [a for a in answers if a.startswith(b'HTTP/1.1 201') and a.endswith(b'order 1\n')]
    t.note('%d identical requests through two gateways in %.1f s: %d answers, %d executions', COUNT, time.monotonic() - start, len(good), len(app.runs()))
    assert len(app.runs(key)) == len(app.runs()) == 1
    assert len(good) == len(answers) == COUNT, [a[:200] for a in answers if a not in good][:3]
    assert sum(b'Idempotent-Replayed: true' not in a for a in good) == 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- Somebody dies -----------------------------------------------------------------------------------------------


class Durable(harness.Redis):
    """Redis that has on disk what it has answered."""

    def start(self):
        super().start()
        self.ask('CONFIG SET appendfsync always')
        self.ask('CONFIG SET appendonly yes')
        wait_for(lambda: b'aof_rewrite_in_progress:0' in self.ask('INFO persistence') and b'aof_enabled:1' in self.ask('INFO persistence'), 'its file')

    def restart(self):
        self.process.kill()
        self.process.wait()
        self.process = harness.subprocess.Popen(
            ['redis-server', '--port', str(self.port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'yes', '--appendfsync', 'always',
             '--dir', self.folder], stdout=harness.subprocess.DEVNULL, stderr=harness.subprocess.DEVNULL, start_new_session=True)
        wait_for(self.answers, 'redis-server')


class Request:
    """One key, and what was heard of it."""

    def __init__(self, g, app, path, point, **headers):
        self.g, self.app, self.path, self.point, self.key, self.heard, self.headers = g, app, path, point, new_key(), None, headers
        self.target = '%s?size=200%s' % (path, '&stop=' + point if point in POINTS else '')
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.client = Client(g)

    def run(self):
        try:
            if self.point == 'sending':  # half the body, then nothing
                self.client.send(('POST %s HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "%s"\r\nContent-Length: 10\r\n\r\namoun' % (self.target, self.key)).encode())
                self.heard = self.client.read()
            else:
                self.heard = self.learn(self.client.post(self.target, key=self.key, **self.headers))
        except (EOFError, OSError) as e:
            self.heard = e

    def learn(self, answer):
        """A token that was spent for nothing is replaced."""
        self.headers.update({'Dibs_Token': answer.get('Dibs-Token')} if answer.get('Dibs-Token') else {})
        return answer

    def retry_until_settled(self):
        """Retries as a client does that does not know; its last answer."""
        end, answer = time.monotonic() + 20, None
        while time.monotonic() < end:
            try:
                answer = self.learn(Client(self.g).post(self.target, key=self.key, **self.headers))
            except (EOFError, OSError):
                time.sleep(0.05)
                continue
            if answer.status == 201 or (answer.status == 409 and answer.problem['code'] in ('CRASHED', 'REFUSED')):
                return answer
            assert answer.status in (409, 502, 503, 504), (self.path, self.point, answer)
            time.sleep(0.1)
        raise AssertionError((self.path, self.point, 'is never settled', answer))


def judge_one(r, who):
    """Retries, and counts executions. A whole answer that somebody has is everybody's."""
    r.thread.join(20)
    assert not r.thread.is_alive(), (who, r.path, r.point, 'was left without an answer')
    last = r.retry_until_settled()
    runs = r.app.runs(r.key)
    if last.status == 409 and last.problem['code'] == 'REFUSED':  # the token was spent, and the answer with its replacement was lost
        assert 'Dibs_Token' in r.headers and not runs, (who, r.path, r.point, runs)
    elif r.path == '/refuse':
        assert len(runs) <= 1, (who, r.point, runs)
    else:
        assert len(runs) >= 1 and last.status == 201, (who, r.point, runs, last)
        assert [run['attempt'] for run in runs][1:] == [run['attempt'] for run in runs if run['attempt'] not in (None, '1')][-len(runs) + 1:] \
            if len(runs) > 1 else True, runs
    if getattr(r.heard, 'status', None) == 201:
        assert last.status == 201 and last.body == r.heard.body, (who, r.path, r.point, 'a whole answer was not kept', r.heard, last)
    if last.status == 201:
        again = Client(r.g).post(r.target, key=r.key, **r.headers)
        assert again.replayed and again.body == last.body, (who, r.path, r.point, again)


def judge(t, requests, who):
    for r in requests:
        judge_one(r, who)
    strict = [r for r in requests if r.path == '/refuse']
    t.note('%s killed: %d requests, under refuse %d of %d executed, none twice', who, len(requests), sum(len(r.app.runs(r.key)) for r in strict), len(strict))


def place(t):
    engine = Durable(t.folder)
    app = t.application()
    g = t.gateway(app, ROUTES, url=engine.url)
    return engine, app, g


def everywhere(app, g):
    """Requests of both kinds at each point that can be seen from outside."""
    app.stop_points(True)
    requests = [Request(g, app, path, point) for path in ('/refuse', '/rerun') for point in (*POINTS, 'sending', 'done')]
    for r in requests:
        r.thread.start()
    for point in POINTS:
        app.wait_at(point, 2)
    wait_for(lambda: all(r.heard for r in requests if r.point == 'done'), 'those that stop nowhere')
    return requests


@test()
def killed_at_every_step(t):
    """Eight steps, three victims, two policies."""
    engine, app, g = place(t)
    try:
        for who in ('gateway', 'application', 'engine'):
            requests = everywhere(app, g)
            if who == 'gateway':
                g.kill()
            elif who == 'application':
                app.kill()
            else:
                engine.process.kill()
                engine.process.wait()
            app.stop_points(False)
            if who == 'gateway':
                g.start()
            elif who == 'application':
                app.start()
            else:
                time.sleep(0.3)
                engine.restart()
            for r in requests:
                if r.point == 'sending' and not r.heard:
                    r.client.socket.shutdown(socket.SHUT_RDWR)
            judge(t, requests, who)
    finally:
        engine.kill()


@test()
def killed_while_the_engine_is_asked(t):
    """The claim is on its way to the engine, and the finish: two steps that only a stopped engine shows."""
    engine, app, g = place(t)
    try:
        for who in ('gateway', 'application', 'engine'):
            app.stop_points(True)
            finishing = [Request(g, app, path, 'half') for path in ('/refuse', '/rerun')]
            for r in finishing:
                r.thread.start()
            app.wait_at('half', 2 + 2 * ('gateway', 'application', 'engine').index(who))
            engine.process.send_signal(signal.SIGSTOP)
            claiming = [Request(g, app, path, 'none') for path in ('/refuse', '/rerun')]
            for r in claiming:
                r.thread.start()
            app.stop_points(False)
            time.sleep(0.2)
            if who != 'engine':
                (g if who == 'gateway' else app).kill()
                (g if who == 'gateway' else app).start()
                engine.process.send_signal(signal.SIGCONT)
            else:
                engine.restart()
            judge(t, finishing + claiming, who + ', while the engine was asked,')
    finally:
        engine.kill()


@test()
def postgresql_killed_at_every_step(t):
    try:
        engine = databases.Postgresql()
    except databases.Missing as e:
        raise harness.Skip(str(e))
    try:
        app = t.application()
        requests = everywhere(app, t.gateway(app, ROUTES, url=engine.make_database('gateway')))
        engine.kill()
        app.stop_points(False)
        time.sleep(0.3)
        engine.start()
        for r in requests:
            if r.point == 'sending' and not r.heard:
                r.client.socket.shutdown(socket.SHUT_RDWR)
        judge(t, requests, 'PostgreSQL')
    finally:
        engine.stop()


# What a request asks the engine, in order: each is one script.
QUESTIONS = ('claim', 'fence', 'token is read', 'token is spent', 'record', 'finish')
AWAY = ('token is read again', 'heir is noted', 'heir is issued', 'undo')  # instead of the finish, when the application cannot be reached
PROVEN = {'key': 'required', 'caller': 'none', 'lease': '3s', 'wait': '0s', 'token': 'required', 'fence': 'stock', 'prove': True}


class Place:
    """A gateway of its own for one question under one policy, and what is between it and the engine."""

    def __init__(self, t, engine, app, path, number, away):
        self.between, self.app, self.path, self.number, self.away = Freezing(engine.port), app, path, number, away
        self.g = t.gateway(app, ({'path': '/refuse', **PROVEN}, {'path': '/rerun', 'on_crash': 'rerun', **PROVEN}), url='redis://127.0.0.1:%d' % self.between.port)
        self.point = (QUESTIONS[:5] + AWAY if away else QUESTIONS)[number - 1]

    def ask(self, arrives):
        """The request whose question stays between them; `arrives`: only its answer does."""
        c = Client(self.g)
        token = wait_for(lambda: (lambda a: a.status == 201 and a)(c.post('/.dibs/token?route=' + self.path, b'')), 'a token', 20)
        self.request = Request(self.g, self.app, self.path, self.point + (', answered' if arrives else ''), Dibs_Fence='10',
                               Dibs_Token=json.loads(token.body)['token'])
        self.between.freeze_at(b'EVALSHA', self.number, arrives)
        self.request.thread.start()


def kill(who, places, engine, app, away):
    """The application comes back when all have heard of it, the others at once. What a dead gateway had sent may still arrive."""
    if who == 'engine':
        engine.restart()
    elif who == 'application':
        app.kill()
    else:
        for p in places:
            p.g.kill()
    for p in places:
        p.between.thaw(lose=who == 'gateway and its last words')
    if who == 'application':
        for p in places:
            p.request.thread.join(20)
        app.start()
    elif who != 'engine':
        for p in places:
            p.g.start()
    away.start()


@test()
def killed_at_every_question(t):
    """Ten questions to the engine, before and after each arrives, two policies, and somebody is killed."""
    engine, app, _ = place(t)
    try:
        away = t.application()
        places = [Place(t, engine, app, path, n, False) for path in ('/refuse', '/rerun') for n in range(1, len(QUESTIONS) + 1)]
        places += [Place(t, engine, away, path, n, True) for path in ('/refuse', '/rerun') for n in range(6, 6 + len(AWAY))]
        for turn, who in enumerate(('engine', 'application', 'gateway', 'gateway and its last words')):
            away.kill()
            asking = [p for p in places if not (p.away and who == 'application')]
            for n, p in enumerate(asking):
                p.ask(arrives=turn < 3 and (n + n // len(QUESTIONS) + turn) % 2 == 0)
            for p in asking:
                assert p.between.frozen.wait(20), (who, p.point)
            kill(who, asking, engine, app, away)
            judge(t, [p.request for p in asking], who + ', while it was asked,')
    finally:
        engine.kill()


class Shopper(threading.Thread):
    """Sends requests with keys of its own to either gateway, and repeats each until it knows: a whole answer that was replayed, or a crash."""

    def __init__(self, gateways, app, seed, stop):
        super().__init__(daemon=True)
        self.gateways, self.app, self.dice, self.stop_at, self.wrong, self.keys = gateways, app, random.Random(seed), stop, [], []

    def run(self):
        while time.monotonic() < self.stop_at and not self.wrong:
            path, key = self.dice.choice(('/refuse', '/rerun')), new_key()
            heard = self.settle('%s?size=100&wait=%d' % (path, self.dice.choice((0, 0, 5, 50))), key)
            runs = len(self.app.runs(key))
            self.keys.append((path, runs))
            if runs > 1 if path == '/refuse' else not (runs and heard):
                self.wrong.append((path, key, runs, heard))

    def settle(self, target, key):
        heard, end = None, time.monotonic() + 25
        while time.monotonic() < end:
            try:
                answer = Client(self.dice.choice(self.gateways), 10).post(target, key=key)
            except (EOFError, OSError):
                time.sleep(0.02)
                continue
            if answer.status == 409 and answer.problem['code'] == 'CRASHED':
                if heard:
                    self.wrong.append((target, key, 'a whole answer was lost', heard))
                return None
            if answer.status != 201:
                time.sleep(0.05)
            elif not heard:
                heard = answer
            elif answer.replayed and answer.body == heard.body:
                return heard
            else:
                self.wrong.append((target, key, 'another answer', heard, answer))
        self.wrong.append((target, key, 'is never settled'))
        return heard


@test()
def killed_at_random(t):
    """Two gateways, whose clients change between them; somebody dies a few times a second."""
    engine, app, g = place(t)
    try:
        gateways, stop, dice, kills = [g, t.gateway(app, ROUTES, url=engine.url)], time.monotonic() + 12, random.Random(), 0
        shoppers = [Shopper(gateways, app, dice.random(), stop) for _ in range(8)]
        for s in shoppers:
            s.start()
        while time.monotonic() < stop - 2:
            time.sleep(dice.random() * 0.5)
            who, kills = dice.random(), kills + 1
            victim = dice.choice(gateways) if who < 0.6 else app
            if who < 0.85:
                victim.kill()
                victim.start()
            else:
                engine.restart()
        for s in shoppers:
            s.join(60)
        keys = [k for s in shoppers for k in s.keys]
        t.note('%d kills, %d keys; not executed %d, executed again under rerun %d', kills, len(keys), sum(n == 0 for _, n in keys),
               sum(n > 1 for _, n in keys))
        assert not any(s.wrong for s in shoppers), [s.wrong for s in shoppers]
        assert len(keys) > 20
    finally:
        engine.kill()
