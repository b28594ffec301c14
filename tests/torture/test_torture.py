#!/usr/bin/env python3
"""dibs torture on private servers in network namespaces: every engine for 15 seconds under a mixture of faults of
clients, servers and networks. Before that the router is tested alone: what it drops, delays, loses and slows down.

usage: test_torture.py --build FOLDER
"""

import json
import os
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'support'))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'torture'))
import databases  # noqa: E402: it lies beside what C tests use
import matrix  # noqa: E402
import network  # noqa: E402
import tap  # noqa: E402

PORT = 4000


class Pair:
    """A client's and a server's place, and a server that sends back what it gets."""

    def __init__(self, options):
        self.network = network.Network(options.router, 'test', 2)
        self.server = self.network.places['1']
        with self.server.inside():
            self.listener = socket.create_server(('', PORT))
        threading.Thread(target=self.echo, daemon=True).start()

    def echo(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(s,), daemon=True).start()

    @staticmethod
    def answer(s):
        with s:
            while data := s.recv(65536):
                s.sendall(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.network.stop()

    def dial(self, address=None, seconds=10):
        with self.network.places['clients'].inside():
            return socket.create_connection((address or self.server.address, PORT), timeout=seconds)


def exchange(s, size=1):
    """Seconds until it is back."""
    begin, left = time.monotonic(), size
    s.sendall(b'x' * size)
    while left:
        got = len(s.recv(left))
        assert got, 'the connection was closed'
        left -= got
    return time.monotonic() - begin


def refuses(call, what):
    try:
        call()
    except OSError:
        return
    raise AssertionError(what)


def test_router(options):
    with Pair(options) as p, p.dial() as s:
        exchange(s)
        p.network.both('clients', '1', 'delay_ms=100')
        took = exchange(s)
        assert took >= 0.2, 'a round trip of 2 x 100 ms took %.3f s' % took
        p.network.rule('clients', '1', 'drop')
        s.settimeout(1)
        refuses(lambda: exchange(s), 'a packet passed the cut')
        p.network.clear()
        s.settimeout(20)
        assert s.recv(1) == b'x', 'what was sent during the cut arrives after it'
        p.network.both('clients', '1', 'loss=20')
        for _ in range(50):
            exchange(s)
        dropped = int(p.network.tell('stats').rsplit('=', 1)[1])
        assert dropped > 5, 'of 200 packets and more 20 %% should be lost, and %d were' % dropped


def test_router_rate(options):
    with Pair(options) as p, p.dial() as s:
        p.network.rule('clients', '1', 'rate=1000000')
        took = exchange(s, 100000)
        assert took > 0.7, '100 kB at 1 Mbit/s in %.2f s' % took
        p.network.clear()
        assert exchange(s, 100000) < 0.7, 'no limit is left'


def test_router_alias(options):
    """An address that moves: the second server does not know the connection."""
    with Pair(options) as p:
        for place in ('1', '2'):
            network.run('ip', '-n', p.network.places[place].namespace, 'addr', 'add', '10.77.0.100/32', 'dev', 'dibs0')
        p.network.tell('alias 10.77.0.100 1')
        with p.dial('10.77.0.100') as s:
            exchange(s)
            p.network.tell('alias 10.77.0.100 2')
            refuses(lambda: exchange(s), 'the other server answered')
        refuses(lambda: p.network.tell('rule nobody 1 drop'), 'a rule for a node that does not exist')
        refuses(lambda: p.network.tell('rule 1 2 delay_ms=much'), 'a rule that is no rule')


def test_leftovers(options):
    """A namespace of a process that is no more is removed, one of a live process is not."""
    with Pair(options):
        dead = '%s%d-left' % (network.PREFIX, 2 ** 22 + 1)  # above every pid
        network.run('ip', 'netns', 'add', dead)
        network.sweep()
        there = os.listdir(network.NETNS)
        assert dead not in there and any(n.startswith('%s%d-' % (network.PREFIX, os.getpid())) for n in there), there


def test_failures_stay():
    """A cell that failed and is run again shows the new result, and the page still says that it failed."""
    def result(violations):
        return {'lock': 'dibs', 'engine': 'redis', 'fault': 'none', 'violations': violations, 'seed': violations,
                'broken': {'exclusion.overlap': violations} if violations else {}, 'found': []}
    cells = matrix.publish.merge(matrix.publish.merge([result(3)], [result(0)]), [result(0)])
    assert len(cells) == 1 and cells[0]['violations'] == 0, cells
    assert matrix.publish.Report(cells).repeated() == [('redis', 'none', 'exclusion.overlap 3', 'cause not established')], cells


def test_a_run_without_a_fault():
    """It shows nothing, and must not be published as kept."""
    data = {'counts': {}, 'violations': 0, 'found': [], 'faults': {'stop': {'count': 0, 'seconds': 0}}}
    data.update({k: 0 for k in ('seed', 'seconds', 'total_operations', 'grants', 'plain_writes', 'plain_losses', 'fenced_writes',
                                'fenced_losses', 'fenced_refusals', 'worst_wait_after_fault_ms', 'worst_overrun_ms', 'losses')})
    judge = matrix.cells.judge
    result = judge(matrix.cells.Cell('redis', ['client-stop'], 20), 0, json.dumps(data), '')
    assert 'no fault' in result.get('error', '') and matrix.cells.failed(result), result
    assert 'error' not in judge(matrix.cells.Cell('redis', ['none'], 20), 0, json.dumps(data), '')
    data['faults']['stop']['count'] = 1
    assert 'error' not in judge(matrix.cells.Cell('redis', ['client-stop'], 20), 0, json.dumps(data), '')


class Engines:
    """All are run at the first question, side by side."""

    def __init__(self, options):
        self.options, self.results = options, None

    def check(self, engine):
        if self.results is None:
            run = matrix.Run(matrix.plan(self.options), self.options, int(time.time()))
            run.say = lambda text: print('# ' + text.replace('\n', '\n# '), flush=True)
            run.run()
            self.results = {r['engine']: r for r in run.results}
        result = self.results[engine]
        assert not matrix.cells.failed(result), result
        assert result['grants'] > 20 and result['faults'], 'too little happened: %s' % result


def needs_namespaces(test, *args):
    try:
        network.check()
    except network.Unavailable as e:
        raise databases.Missing(str(e)) from e
    network.sweep()
    test(*args)


def main():
    if sys.argv[1:2] != ['--build'] or len(sys.argv) != 3:
        sys.exit('usage: test_torture.py --build FOLDER')
    options = matrix.read_options(['--quick', '--jobs', '3', '--build', sys.argv[2]])
    matrix.find_programs(options)
    options.plain = False
    engines = Engines(options)
    tests = [('a failed run is not forgotten by running it again', test_failures_stay),
             ('a run without a fault is no result', test_a_run_without_a_fault),
             ('the router drops, delays and loses', needs_namespaces, test_router, options),
             ('the router has a rate', needs_namespaces, test_router_rate, options),
             ('an address moves to another server', needs_namespaces, test_router_alias, options),
             ('what dead processes left is removed', needs_namespaces, test_leftovers, options)]
    tests += [('torture of %s keeps every promise' % e, needs_namespaces, engines.check, e) for e in matrix.faults.ALL]
    return tap.run(tests)


if __name__ == '__main__':
    tap.end_on_sigterm()
    sys.exit(main())
