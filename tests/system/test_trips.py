#!/usr/bin/env python3
"""What one call costs on each server: round trips, counted between client and server, and commands or statements,
counted by the server itself. The figures are those of docs/engines; one more is a failure.

usage: test_trips.py --stepper STEPPER [ENGINE...]
"""

import argparse
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import scratch_stores  # noqa: E402: it lies beside what C tests use

ENGINES = ('redis', 'postgresql', 'mysql', 'zookeeper', 'etcd')
# What is asked, the status it must have, and how many round trips on each.
# {v} is the number, or the token, that was answered last.
CALLS = (
    ('set stock 100', 'OK', (1, 3, 3, 2, 2)),
    ('set stock 90', 'OK', (1, 1, 1, 2, 2)),
    ('take stock 1', 'OK', (1, 1, 1, 2, 2)),
    ('take stock 1000', 'TOO_FEW', (1, 1, 1, 1, 1)),
    ('take stock 1 id', 'OK', (1, 1, 1, 2, 2)),
    ('take stock 1 id', 'ALREADY', (1, 1, 1, 1, 1)),
    ('add stock 5', 'OK', (1, 1, 1, 2, 2)),
    ('get stock', 'OK', (1, 1, 1, 1, 1)),
    ('swap cell 0 one', 'OK', (1, 1, 1, 2, 2)),
    ('swap cell {v} two', 'OK', (1, 1, 1, 2, 2)),
    ('swap cell 1 three', 'CONFLICT', (1, 1, 1, 1, 1)),
    ('pass cell 5', 'OK', (1, 1, 1, 2, 2)),
    ('read cell', 'OK', (1, 1, 1, 1, 1)),
    ('swap other 0 one', 'OK', (1, 1, 1, 2, 2)),
    ('delete other {v}', 'OK', (1, 1, 1, 2, 2)),
    ('swap guarded 0 one 7', 'OK', (1, 1, 1, 2, 2)),
    ('swap guarded {v} two 8', 'OK', (1, 1, 1, 2, 2)),
    ('delete guarded {v} 9', 'OK', (1, 2, 2, 2, 2)),
    ('begin key', 'OK', (1, 1, 1, 2, 2)),
    ('step half', 'OK', (1, 1, 1, 2, 2)),
    ('finish result', 'OK', (1, 1, 1, 2, 2)),
    ('begin key', 'ALREADY', (1, 1, 1, 1, 1)),
    ('begin again', 'OK', (1, 1, 1, 2, 2)),
    ('fail', 'OK', (1, 1, 1, 2, 2)),
    ('begin again', 'OK', (2, 2, 2, 3, 3)),
    ('issue', 'OK', (1, 1, 1, 2, 2)),
    ('redeem {v}', 'OK', (2, 2, 2, 3, 3)),
)


class Bytes:
    """Of a connection where everything that is said is a question or an answer."""

    def says(self, data):
        return True


class Frames:
    """One direction of HTTP/2: pings, windows and settings are the transport's own affair."""

    PREFACE = 24  # bytes of a client's, before its first frame
    DATA, HEADERS = 0, 1

    def __init__(self, skip):
        self.skip, self.head = skip, b''

    def says(self, data):
        """Does a part of a question or an answer begin here?"""
        found = False
        while data:
            passed = min(self.skip, len(data))
            self.skip -= passed
            data = data[passed:]
            wanted = 9 - len(self.head)
            self.head, data = self.head + data[:wanted], data[wanted:]
            if len(self.head) == 9:
                found |= self.head[3] in (self.DATA, self.HEADERS)
                self.skip, self.head = int.from_bytes(self.head[:3], 'big'), b''
        return found


class Proxy:
    """Passes everything on, and counts how often a client had something to say after the server had spoken."""

    def __init__(self, port, http2=False):
        self.port, self.http2, self.turns = port, http2, 0
        self.server = socket.create_server(('127.0.0.1', 0))
        self.listening = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        server = socket.create_connection(('127.0.0.1', self.port))
        for s in (client, server):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        speech = {client: Frames(Frames.PREFACE) if self.http2 else Bytes(),
                  server: Frames(0) if self.http2 else Bytes()}
        answered = True
        with client, server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    try:
                        data = source.recv(1 << 16)
                    except OSError:
                        return
                    if not data:
                        return
                    if speech[source].says(data):
                        self.turns += source is client and answered
                        answered = source is server
                    (server if source is client else client).sendall(data)

    def stop(self):
        self.server.close()


def commands(engine, store):
    """How many the server has had so far, by its own account."""
    if engine == 'redis':
        stats = store.ask('INFO', 'commandstats')
        return sum(int(n) for n in re.findall(r'cmdstat_(?:evalsha|eval|xread):calls=(\d+)', stats))
    if engine == 'zookeeper':
        return int(store.server.counters()['zk_packets_received'])
    if engine == 'etcd':
        return sum(int(n) for name, n in store.server.counters().items()
                   if name.startswith('grpc_server_msg_received_total') and 'etcdserverpb.KV' in name)
    if engine == 'mysql':
        return int(store.ask("SELECT variable_value FROM information_schema.global_status "
                             "WHERE variable_name = 'QUESTIONS'")[0])
    with open(os.path.join(store.server.folder, 'log'), errors='replace') as f:
        return len(re.findall(r'LOG:  execute ', f.read()))


class Stepper:
    def __init__(self, program, url):
        self.process = subprocess.Popen([program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL, bufsize=1)
        assert self.read()[0] == 'ready'

    def read(self):
        words = self.process.stdout.readline().split()
        assert len(words) == 2, 'the stepper has ended: %s' % self.process.poll()
        return words

    def say(self, line):
        self.process.stdin.write(line + '\n')

    def step(self, line):
        self.say(line)
        return self.read()

    def stop(self):
        self.process.kill()
        self.process.communicate()


def count_calls(args, engine, store, proxy, run):
    """(status, round trips, commands) of each call. Every run has names of its own."""
    stepper = Stepper(args.stepper, store.url.replace(':%d' % store.port, ':%d' % proxy.listening))
    counted, value = [], ''
    try:
        # Connects, makes the tables, and asks for what a handle asks for once: a lease, the server's clock.
        for line in ('get nothing', 'begin warm-up%d' % run, 'step x', 'finish x'):
            stepper.step(line)
        own = -commands(engine, store) + commands(engine, store)  # what this question itself adds
        for call, _, _ in CALLS:
            words = call.format(v=value).split()
            if len(words) > 1 and words[0] not in ('redeem', 'finish', 'step'):
                words[1] += str(run)
            before, turns = commands(engine, store), proxy.turns
            status, value = stepper.step(' '.join(words))
            turns = proxy.turns - turns
            counted.append((status, turns, commands(engine, store) - before - own))
    finally:
        stepper.stop()
    return counted


def faults(engine, counted):
    column = ENGINES.index(engine)
    return ['%s: %s instead of %s, %d round trips instead of %d, %d commands'
            % (call, got, status, turns, trips[column], asked)
            for (call, status, trips), (got, turns, asked) in zip(CALLS, counted)
            if got != status or turns != trips[column] or asked < turns]


def count_all(args, engine):
    """Now and then the handle does something of its own beside: the least of up to three runs counts."""
    store = scratch_stores.make(engine, *(('-c', 'log_statement=all') if engine == 'postgresql' else ()))
    proxy = Proxy(store.port, engine == 'etcd')
    counted = None
    try:
        for run in range(3):
            again = count_calls(args, engine, store, proxy, run)
            counted = [min(pair) for pair in zip(counted, again)] if counted else again
            if not faults(engine, counted):
                break
    finally:
        proxy.stop()
        store.stop()
    for (call, _, _), (status, turns, asked) in zip(CALLS, counted):
        print('# %-11s %-20s %-8s round trips %d, commands %d' % (engine, call, status, turns, asked))
    assert not faults(engine, counted), '\n'.join(faults(engine, counted))


def await_queue(store, count):
    until = time.monotonic() + 20
    while store.ask('SELECT coalesce(sum(waiters), 0) FROM dibs_lock')[0] != str(count):
        assert time.monotonic() < until, 'the queue is not %d long' % count
        time.sleep(0.01)


def hand_over_once(store, proxy, one, other):
    """Round trips of queueing up, and of unlocking when another waits; both by `one`."""
    trips, until = [-proxy.turns], time.monotonic() + 5
    one.say('lock handed')
    await_queue(store, 1)
    trips[0] += proxy.turns
    assert other.step('unlock')[0] == 'OK' and one.read()[0] == 'OK'
    other.say('lock handed')
    await_queue(store, 1)
    trips.append(-proxy.turns)
    assert one.step('unlock')[0] == 'OK' and other.read()[0] == 'OK'
    trips[1] += proxy.turns
    return trips if time.monotonic() < until else [9, 9]  # renewals would be counted, too


def count_hand_overs(args, engine):
    """The SQL engines: each is one round trip, once the handle knows that there is a queue."""
    store = scratch_stores.make(engine)
    proxy, steppers = Proxy(store.port), []
    try:
        for port in (proxy.listening, store.port):
            steppers.append(Stepper(args.stepper, store.url.replace(':%d' % store.port, ':%d' % port)))
        assert steppers[1].step('lock handed')[0] == 'OK'
        counted = [hand_over_once(store, proxy, *steppers) for _ in range(4)]
    finally:
        for stepper in steppers:
            stepper.stop()
        proxy.stop()
        store.stop()
    least = [min(trips) for trips in zip(*counted)]
    print('# %-11s queue up, hand over: round trips %s' % (engine, counted))
    assert least == [1, 1], 'to queue up and to hand over took %s round trips' % least


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--stepper', required=True)
    parser.add_argument('engine', nargs='*')
    args = parser.parse_args()
    counts = [(e, lambda e=e: count_all(args, e)) for e in args.engine or ENGINES]
    counts += [(e + ', hand-overs', lambda e=e: count_hand_overs(args, e))
               for e in ('postgresql', 'mysql') if e in (args.engine or ENGINES)]
    return scratch_stores.run_all(counts, 'round trips a call')


if __name__ == '__main__':
    sys.exit(main())
