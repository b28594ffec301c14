"""A TCP proxy before the servers, in the clients' namespace, for what is wrong with a stream and not with packets: answers
that drip byte by byte, and answers that end after the first, second, third... byte."""

import contextlib
import select
import socket
import threading
import time

DRIP_SECONDS = 0.02


class Proxy:
    """Passes everything on until told otherwise. `mode`: 'pass', 'drip' or 'cut'."""

    def __init__(self, place):
        self.place, self.mode, self.running = place, 'pass', True
        self.cut_after = 0
        self.guard = threading.Lock()
        self.listeners = []

    def add(self, address, port):
        """The address that leads to that one from now on."""
        with self.place.inside():
            listener = socket.create_server((self.place.address, 0))
        self.listeners.append(listener)
        threading.Thread(target=self.accept, args=(listener, (address, port)), daemon=True).start()
        return '%s:%d' % listener.getsockname()

    def accept(self, listener, target):
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while self.running:
                client, _ = listener.accept()
                threading.Thread(target=self.serve, args=(client, target), daemon=True).start()

    def serve(self, client, target):
        with client, contextlib.suppress(OSError):
            with self.place.inside():
                server = socket.create_connection(target, timeout=5)
            with server:
                for s in (client, server):
                    s.settimeout(5)
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.pass_on(client, server)

    def next_cut(self):
        """Every connection is cut one byte later than the one before it; after 600, from the beginning."""
        with self.guard:
            self.cut_after = self.cut_after % 600 + 1
            return self.cut_after

    def pass_on(self, client, server):
        left = None  # bytes of answers until the cut
        while self.running:
            ready, _, _ = select.select([client, server], [], [], 0.2)
            if self.mode != 'cut':
                left = None
            elif left is None:
                left = self.next_cut()
            if client in ready:
                request = client.recv(65536)
                if not request:
                    return
                server.sendall(request)
            if server in ready:
                answer = server.recv(1 if self.mode == 'drip' else 65536)
                if not answer:
                    return
                client.sendall(answer if left is None else answer[:left])
                if left is not None and len(answer) >= left:
                    return
                left = None if left is None else left - len(answer)
                if self.mode == 'drip':
                    time.sleep(DRIP_SECONDS)

    def stop(self):
        self.running = False
        for listener in self.listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
