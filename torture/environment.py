"""A environment is one engine's servers, what they stand on, and the faults that are in force: the harness of one run.

`dibs torture` runs in the clients' place. For each fault it starts fault_signal.py, which says `NAME begin` or `NAME end` on the
environment's unix socket and gets `ok` or `error TEXT`."""

import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess

import faults
import network
import proxy
import servers  # noqa: I001: it makes the next two known
import ensembles
import scratch_stores


class Rules:
    """What the router does for the faults that are in force. Two faults may want something of the same pair."""

    def __init__(self, net):
        self.network, self.wanted, self.there = net, {}, {}

    def pairs(self, source, target):
        names = list(self.network.places)
        return [(a, b) for a in (names if source == '*' else [source]) for b in (names if target == '*' else [target])
                if a != b]

    def change(self, key, rules):
        self.wanted[key] = rules
        new = {}
        for source, target, words in (r for one in self.wanted.values() for r in one):
            for pair in self.pairs(source, target):
                new[pair] = (new.get(pair, '') + ' ' + words).strip()
        for pair in {**self.there, **new}:
            if new.get(pair) != self.there.get(pair):
                self.network.rule(*pair, new.get(pair, ''))
        self.there = new


class PlainRig:
    """Without root: a server on loopback, and only what `dibs torture` does by itself."""

    clients = ensembles.Loopback

    def __init__(self, engine, folder):
        os.makedirs(folder)
        self.folder = folder
        try:
            self.store = scratch_stores.make(engine)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.url = self.store.url

    @staticmethod
    def serve(process, deadline):
        try:
            process.wait(max(deadline(), 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self):
        self.store.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Environment:
    def __init__(self, engine, folder, net, names, seed, clock_library):
        """`net`: None for an engine that has no servers. `names`: the faults that are to come."""
        self.engine, self.folder, self.network, self.names = engine, folder, net, names
        self.chance, self.rules, self.active = random.Random(seed), Rules(net), {}
        os.makedirs(folder)
        os.chmod(folder, 0o755)  # servers run as other accounts
        self.clients = net.places['clients'] if net else ensembles.Loopback
        self.servers = [p for p in net.places.values() if p is not self.clients] if net else []
        self.setup, self.listener = None, None
        chosen = [faults.BY_NAME[n] for n in names]
        self.proxy = proxy.Proxy(self.clients) if any(f.proxy for f in chosen) else None
        try:
            self.clock = servers.Clock(folder, clock_library) if any(f.clock for f in chosen) else contextlib.nullcontext()
            servers.ENGINES[engine][0](self)
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(os.path.join(folder, 'socket'))
            self.listener.listen()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self):
        return self.setup.url

    def front(self, address, port):
        """What clients dial for that address: itself, or the proxy before it."""
        return self.proxy.add(address, port) if self.proxy else '%s:%d' % (address, port)

    def add_rules(self, key, rules):
        self.rules.change(key, rules)

    def drop_rules(self, key):
        self.rules.change(key, [])

    # ---- Faults --------------------------------------------------------------------------------------------------

    def begin(self, name):
        """A fault that begins again while it lasts goes on until both have ended."""
        fault = faults.BY_NAME[name]
        state = self.active.setdefault(name, {'count': 0})
        state['count'] += 1
        if state['count'] > 1:
            return
        if fault.rules:
            self.add_rules(name, fault.rules(self))
        elif fault.victim:
            state['nodes'] = fault.victim(self)
            for node in state['nodes']:
                fault.action.begin(node)
        else:
            fault.begin(self, state)

    def end(self, name):
        fault, state = faults.BY_NAME[name], self.active[name]
        state['count'] -= 1
        if state['count'] > 0:
            return
        del self.active[name]
        if fault.rules:
            self.drop_rules(name)
        elif fault.victim:
            for node in state['nodes']:
                fault.action.end(node)
            for node in state['nodes']:
                node.settle()
        else:
            fault.end(self, state)

    def answer(self):
        """One order of fault_signal.py."""
        with contextlib.closing(self.listener.accept()[0]) as s, s.makefile('r') as f:
            name, what = f.readline().split()
            try:
                {'begin': self.begin, 'end': self.end}[what](name)
                answer = 'ok\n'
            except Exception as e:  # it is the fault's failure, and the run reports it
                answer = 'error %s %s: %s\n' % (name, what, str(e).replace('\n', ' '))
            with contextlib.suppress(BrokenPipeError):  # the run took too long for its fault, and says so itself
                s.sendall(answer.encode())

    def serve(self, process, deadline):
        """Does as it is told until the process has ended; False: it took too long."""
        fd = os.pidfd_open(process.pid)
        try:
            while process.poll() is None:
                left = deadline()
                if left <= 0:
                    return False
                ready, _, _ = select.select([self.listener, fd], [], [], min(left, 1))
                if self.listener in ready:
                    self.answer()
            return True
        finally:
            os.close(fd)

    def stop(self):
        if self.setup:
            for node in self.setup.nodes:
                node.signal(signal.SIGCONT)
            self.setup.stop()
        if self.listener:
            self.listener.close()
        if self.proxy:
            self.proxy.stop()
        if self.network:
            with contextlib.suppress(OSError):
                self.network.clear()
        network.unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
