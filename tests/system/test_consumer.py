#!/usr/bin/env python3
"""A consumer is killed at every message that it sends to its database, before the message arrives and after it was
carried out, and the message is delivered again: the effect is there exactly once, every time.

usage: test_consumer.py --inbox INBOX
"""

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import scratch_stores  # noqa: E402: it lies beside what C tests use

MOST = 60  # requests of one delivery; it has fewer


class Killer:
    """Passes on what the consumer and the server say, and kills the consumer at its n-th request: before it goes on
    to the server, or when the answer to it is there, which the consumer then never sees."""

    def __init__(self, port, at, answered):
        self.port, self.at, self.answered = port, at, answered
        self.victim, self.known = None, threading.Event()
        self.seen, self.killed = 0, False
        self.server = socket.create_server(('127.0.0.1', 0))
        self.listening = self.server.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def kill(self):
        self.known.wait()
        self.victim.send_signal(signal.SIGKILL)
        self.victim.wait()
        self.killed = True

    def serve(self):
        client, _ = self.server.accept()
        server = socket.create_connection(('127.0.0.1', self.port))
        spoken = True
        with client, server:
            while not self.killed:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is client and spoken:
                        self.seen += 1
                    spoken = source is server
                    if self.seen == self.at and spoken == self.answered:
                        self.kill()
                        break
                    (server if source is client else client).sendall(data)

    def stop(self):
        self.server.close()
        self.thread.join(30)
        assert not self.thread.is_alive()


def conninfo(store, port):
    return 'host=127.0.0.1 port=%d user=%s dbname=cells sslmode=disable gssencmode=disable' % (port, store.server.user)


def start(args, store, port):
    return subprocess.Popen([args.inbox, conninfo(store, port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def deliver(args, store, message):
    """To a consumer that nobody disturbs; its answer."""
    out, err = start(args, store, store.port).communicate(message + '\n', timeout=60)
    assert out.startswith('ack '), (out, err)
    return out


def wait_for_sessions(store):
    """The server has ended what the dead consumer left."""
    for _ in range(3000):
        if store.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = '' AND datname = 'cells' "
                     "AND pid <> pg_backend_pid() AND backend_type = 'client backend'")[0] == '0':
            return
    raise AssertionError('the sessions of a dead consumer stay')


def balance(store, account):
    return store.ask("SELECT coalesce(sum(balance), 0) FROM account WHERE name = '%s'" % account)[0]


def kill_at(args, store, at, answered):
    """(was it killed, what it had done by then)."""
    account = 'account-%d-%d' % (at, answered)
    message = 'message-%d-%d %s 5' % (at, answered, account)
    killer = Killer(store.port, at, answered)
    consumer = start(args, store, killer.listening)
    killer.victim = consumer
    killer.known.set()
    consumer.communicate(message + '\n', timeout=60)
    killer.stop()
    wait_for_sessions(store)
    had = balance(store, account)
    first = deliver(args, store, message)
    second = deliver(args, store, message)
    assert balance(store, account) == '5', (at, answered, had, balance(store, account))
    assert ('booked)' in first) == (had == '0'), (at, answered, had, first)
    assert 'was booked before' in second, second
    return killer.killed, had == '5'


def killed_everywhere(args):
    if not os.path.exists(args.inbox):
        raise scratch_stores.databases.Missing('built without libpq')
    store = scratch_stores.make('postgresql')
    try:
        deliver(args, store, 'warm-up nobody 1')  # makes the tables
        for answered in (False, True):
            outcomes = []
            while len(outcomes) < MOST:
                killed, done = kill_at(args, store, len(outcomes) + 1, answered)
                if not killed:
                    break
                outcomes.append(done)
            print('# killed %s %d requests; by then it was done %d times'
                  % ('after the answer to' if answered else 'before', len(outcomes), sum(outcomes)))
            # Connecting, the tables, BEGIN, the key, the effect, COMMIT: at least so many.
            assert 6 <= len(outcomes) < MOST, outcomes
            # Before: only its goodbye comes too late. After: only the answer to the COMMIT, and a goodbye has none.
            assert outcomes == sorted(outcomes) and sum(outcomes) == 1, outcomes
    finally:
        store.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--inbox', required=True)
    args = parser.parse_args()
    return scratch_stores.run_all([('its effect is there exactly once', lambda: killed_everywhere(args))],
                          'a consumer killed at every statement')


if __name__ == '__main__':
    sys.exit(main())
