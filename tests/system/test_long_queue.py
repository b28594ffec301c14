#!/usr/bin/env python3
"""500 waiters on one lock of ZooKeeper and of etcd, by the server's own counters: one watch event a hand-off, and a
hand-off costs the same behind ten and behind five hundred.

usage: test_long_queue.py --handover_ring HANDOVER_RING [ENGINE...]
"""

import argparse
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import ensembles  # noqa: E402: it lies beside what C tests use
import tap  # noqa: E402

FEW, MANY, HANDLES, ROUNDS = 10, 500, 10, 300
SESSION = '20s'
TRIES = 3  # of a time that a busy machine may spoil


def zookeeper_counts(server):
    c = server.counters()
    return {'events': int(float(c['zk_sum_node_deleted_watch_count'])),
            'children': int(float(c['zk_sum_node_children_watch_count'])),
            'requests': int(c['zk_packets_received']) - 1}


def etcd_counts(server):
    c = server.counters()
    return {'events': c['etcd_debugging_mvcc_events_total'], 'children': 0,
            'requests': sum(v for k, v in c.items() if k.startswith('grpc_server_msg_received_total'))}


COUNTS = {'zookeeper': zookeeper_counts, 'etcd': etcd_counts}


def ride(args, server, engine, waiters):
    """What ROUNDS hand-offs cost each, with so many in the queue."""
    name = 'queue-%d' % waiters
    url = '%s?session=%s' % (server.url('queue'), SESSION)
    process = subprocess.Popen([args.handover_ring, url, name, *map(str, (HANDLES, waiters, ROUNDS))],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == 'ready\n', process.stderr.read()
        before = COUNTS[engine](server)
        process.stdin.write('go\n')
        process.stdin.flush()
        took = process.stdout.readline()
        assert took, process.stderr.read()
        after = COUNTS[engine](server)
        process.stdin.close()
        process.stdin = None
        assert process.wait(60) == 0, process.stderr.read()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    cost = {k: (after[k] - before[k]) / ROUNDS for k in after}
    cost['us'] = float(took)
    print('# %s, %d waiting: %.0f µs a hand-off, %.2f watch events, %.2f requests'
          % (engine, waiters, cost['us'], cost['events'], cost['requests']))
    return cost


def flat(args, engine):
    kind = ensembles.KINDS[engine]
    server = kind(1, kind.quick)
    try:
        ratios = []
        while not ratios or (min(ratios) > 2 and len(ratios) < TRIES):
            few, many = ride(args, server, engine, FEW), ride(args, server, engine, MANY)
            for cost in (few, many):
                assert 0.9 < cost['events'] <= 1.05, 'not one watch event a hand-off: %s' % cost
                assert cost['children'] == 0, 'somebody watches all children'
            # Signs of life of ten handles are among the requests.
            assert many['requests'] <= few['requests'] + 1, 'more requests behind more waiters'
            ratios.append(many['us'] / few['us'])
        print('# %s: behind %d it costs %.2f times what it costs behind %d' % (engine, MANY, min(ratios), FEW))
        assert min(ratios) <= 2, 'dearer behind more waiters: %s' % ratios
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--handover_ring', required=True)
    parser.add_argument('engines', nargs='*', default=list(COUNTS))
    args = parser.parse_args()
    tap.end_on_sigterm()
    return tap.run([('%s: %d waiters' % (e, MANY), flat, args, e) for e in args.engines])


if __name__ == '__main__':
    sys.exit(main())
