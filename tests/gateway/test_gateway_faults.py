"""A thousand at once; and SIGKILL of gateway, application and engine at each step of a request. What counts is the application's own log:
a key is executed at most once under `refuse`, at least once under `rerun`, and when somebody has a whole answer, everybody who asks again gets it."""

import random
import resource
import selectors
import signal
import socket
import threading
import time

import harness
from gateway import Client, new_key
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

    def __init__(self, g, path, point):
        self.g, self.path, self.point, self.key, self.heard = g, path, point, new_key(), None
        self.target = '%s?size=200%s' % (path, '&stop=' + point if point in POINTS else '')
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.client = Client(g)

    def run(self):
        try:
            if self.point == 'sending':  # half the body, then nothing
                self.client.send(('POST %s HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "%s"\r\nContent-Length: 10\r\n\r\namoun' % (self.target, self.key)).encode())
                self.heard = self.client.read()
            else:
                self.heard = self.client.post(self.target, key=self.key)
        except (EOFError, OSError) as e:
            self.heard = e

    def retry_until_settled(self):
        """Retries as a client does that does not know; its last answer."""
        end, answer = time.monotonic() + 20, None
        while time.monotonic() < end:
            try:
                answer = Client(self.g).post(self.target, key=self.key)
            except (EOFError, OSError):
                time.sleep(0.05)
                continue
            if answer.status == 201 or (answer.status == 409 and answer.problem['code'] == 'CRASHED'):
                return answer
            assert answer.status in (409, 502, 503, 504), (self.path, self.point, answer)
            time.sleep(0.1)
        raise AssertionError((self.path, self.point, 'is never settled', answer))


def judge(t, app, requests, who):
    """Retries all and counts executions. A whole answer that somebody has is everybody's."""
    for r in requests:
        r.thread.join(10)
        assert not r.thread.is_alive(), (who, r.path, r.point, 'was left without an answer')
        last = r.retry_until_settled()
        runs = app.runs(r.key)
        if r.path == '/refuse':
            assert len(runs) <= 1, (who, r.point, runs)
        else:
            assert len(runs) >= 1 and last.status == 201, (who, r.point, runs, last)
            assert [run['attempt'] for run in runs][1:] == [run['attempt'] for run in runs if run['attempt'] not in (None, '1')][-len(runs) + 1:] \
                if len(runs) > 1 else True, runs
        if getattr(r.heard, 'status', None) == 201:
            assert last.status == 201 and last.body == r.heard.body, (who, r.path, r.point, 'a whole answer was not kept', r.heard, last)
        if last.status == 201:
            again = Client(r.g).post(r.target, key=r.key)
            assert again.replayed and again.body == last.body, (who, r.path, r.point, again)
    total = sum(len(app.runs(r.key)) for r in requests if r.path == '/refuse')
    t.note('%s killed: %d requests, under refuse %d of %d executed, none twice', who, len(requests),
           total, sum(r.path == '/refuse' for r in requests))


def place(t):
    engine = Durable(t.folder)
    app = t.application()
    g = t.gateway(app, ROUTES, url=engine.url)
    return engine, app, g


def everywhere(app, g):
    """Requests of both kinds at each point that can be seen from outside."""
    app.stop_points(True)
    requests = [Request(g, path, point) for path in ('/refuse', '/rerun') for point in (*POINTS, 'sending', 'done')]
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
            judge(t, app, requests, who)
    finally:
        engine.kill()


@test()
def killed_while_the_engine_is_asked(t):
    """The claim is on its way to the engine, and the finish: two steps that only a stopped engine shows."""
    engine, app, g = place(t)
    try:
        for who in ('gateway', 'application', 'engine'):
            app.stop_points(True)
            finishing = [Request(g, path, 'half') for path in ('/refuse', '/rerun')]
            for r in finishing:
                r.thread.start()
            app.wait_at('half', 2 + 2 * ('gateway', 'application', 'engine').index(who))
            engine.process.send_signal(signal.SIGSTOP)
            claiming = [Request(g, path, 'none') for path in ('/refuse', '/rerun')]
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
            judge(t, app, finishing + claiming, who + ', while the engine was asked,')
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
