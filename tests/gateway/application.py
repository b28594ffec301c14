#!/usr/bin/env python3
"""The application behind the gateway in its tests: application.py PORT FOLDER

Written on sockets, so that what it answers is exact to the byte and what it was sent is seen as it was. It writes a log,
FOLDER/log, of JSON lines: `request` (the head as it came), `run` (the request was executed; this is the effect that must not
happen twice), `at` (it stopped at a point), and `garbage` (something that is not one clean HTTP/1.1 request).

    /raw/NAME           answers with the bytes of FOLDER/NAME; then closes if the name ends with .close
    anything else       is executed: 201, "order N" with N the number of executions so far

Parameters of the query, for the second: status=503, size=BYTES of the body, cookie=1, wait=MS before the answer, drop=1 closes
after the execution, chunked=1, stop=POINT: waits there while FOLDER/stop exists. Points, in order: head, read, run, status, half, sent."""

import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.parse

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
LINE = re.compile(rb'([A-Za-z]+) (/[!-~]*|\*) HTTP/1\.1')
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")


class Garbage(Exception):
    pass


class Log:
    def __init__(self, folder):
        self.fd = os.open(os.path.join(folder, 'log'), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, event, **more):
        os.write(self.fd, (json.dumps(dict(event=event, time=time.time(), **more)) + '\n').encode())  # in one step


class Connection:
    def __init__(self, client, number, folder, log):
        self.client, self.number, self.folder, self.log, self.buffer = client, number, folder, log, b''

    def more(self):
        got = self.client.recv(65536)
        if not got:
            raise EOFError
        self.buffer += got

    def line(self):
        while b'\r\n' not in self.buffer:
            self.more()
        line, self.buffer = self.buffer.split(b'\r\n', 1)
        if b'\n' in line or b'\r' in line:
            raise Garbage('a bare line end in %r' % line)
        return line

    def exactly(self, size):
        while len(self.buffer) < size:
            self.more()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def fields(self):
        out = []
        while True:
            line = self.line()
            if not line:
                return out
            found = FIELD.fullmatch(line)
            if not found:
                raise Garbage('a header %r' % line)
            out.append((found.group(1).decode(), found.group(2).decode('latin-1')))

    def chunks(self):
        body = b''
        while True:
            size = self.line()
            if not re.fullmatch(rb'[0-9a-fA-F]{1,8}', size):
                raise Garbage('a chunk size %r' % size)
            if int(size, 16) == 0:
                return body, self.fields()
            body += self.exactly(int(size, 16))
            if self.line():
                raise Garbage('a chunk that is longer than its size')

    def body(self, headers):
        """(body, trailers), of exactly one way to delimit it."""
        named = [(n.lower(), v) for n, v in headers]
        lengths = [v for n, v in named if n == 'content-length']
        codings = [v for n, v in named if n == 'transfer-encoding']
        if len(lengths) + len(codings) > 1:
            raise Garbage('lengths %r and codings %r' % (lengths, codings))
        if codings:
            if codings[0].lower() != 'chunked':
                raise Garbage('the coding %r' % codings[0])
            return self.chunks()
        if lengths and not re.fullmatch('[0-9]{1,15}', lengths[0]):
            raise Garbage('the length %r' % lengths[0])
        return self.exactly(int(lengths[0])) if lengths else b'', []

    def serve(self):
        while True:
            line = self.line()
            found = LINE.fullmatch(line)
            if not found:
                raise Garbage('a request line %r' % line)
            method, target = found.group(1).decode(), found.group(2).decode()
            headers = self.fields()
            if sum(n.lower() == 'host' for n, _ in headers) != 1:
                raise Garbage('not one Host in %r' % headers)
            self.log.add('request', connection=self.number, method=method, target=target, headers=headers)
            if not Exchange(self, method, target, headers).answer():
                return

    def run(self):
        try:
            self.serve()
        except Garbage as e:
            self.log.add('garbage', what=str(e))
        except EOFError:
            if self.buffer:
                self.log.add('cut', rest=len(self.buffer))
        except OSError:
            pass
        self.client.close()


class Exchange:
    runs, lock = 0, threading.Lock()

    def __init__(self, c, method, target, headers):
        self.c, self.method, self.target, self.headers = c, method, target, headers
        self.path, _, query = target.partition('?')
        self.query = dict(urllib.parse.parse_qsl(query))
        self.key = next((v for n, v in headers if n.lower() == 'idempotency-key'), None)

    def stop(self, point):
        hold = os.path.join(self.c.folder, 'stop')
        if self.query.get('stop') != point or not os.path.exists(hold):
            return
        self.c.log.add('at', point=point, key=self.key, target=self.target)
        while os.path.exists(hold):
            time.sleep(0.005)

    def answer(self):
        """Whether the connection goes on."""
        if any(n.lower() == 'expect' for n, _ in self.headers):
            self.c.client.sendall(b'HTTP/1.1 100 Continue\r\n\r\n')
        self.stop('head')
        body, trailers = self.c.body(self.headers)
        self.stop('read')
        if self.path.startswith('/raw/'):
            name = self.path[5:]
            self.executed(body, trailers)
            with open(os.path.join(self.c.folder, os.path.basename(name)), 'rb') as f:
                self.c.client.sendall(f.read())
            return not name.endswith('.close')
        number = self.executed(body, trailers)
        self.stop('run')
        time.sleep(int(self.query.get('wait', 0)) / 1000)
        if 'drop' in self.query:
            return False
        self.send(number)
        return True

    def executed(self, body, trailers):
        with Exchange.lock:
            Exchange.runs += 1
            number = Exchange.runs
        named = {n.lower(): v for n, v in self.headers}
        self.c.log.add('run', number=number, key=self.key, method=self.method, target=self.target, size=len(body),
                       sha256=hashlib.sha256(body).hexdigest(), trailers=trailers, attempt=named.get('dibs-attempt'))
        return number

    def send(self, number):
        body = b'order %d\n' % number
        body += b'x' * (int(self.query.get('size', 0)) - len(body))
        head = b'HTTP/1.1 %d Made\r\nX-Order: %d\r\nContent-Type: text/plain\r\n' % (int(self.query.get('status', 201)), number)
        if 'cookie' in self.query:
            head += b'Set-Cookie: s=%d\r\n' % number
        if self.query.get('stop') == 'sent':  # nobody is to wait behind it on this connection
            head += b'Connection: close\r\n'
        chunked = 'chunked' in self.query
        head += b'Transfer-Encoding: chunked\r\n\r\n' if chunked else b'Content-Length: %d\r\n\r\n' % len(body)
        if self.method == 'HEAD':
            body = b''
        self.c.client.sendall(head)
        self.stop('status')
        half = len(body) // 2
        self.piece(body[:half], chunked)
        self.stop('half')
        self.piece(body[half:], chunked)
        if chunked:
            self.c.client.sendall(b'0\r\n\r\n')
        self.stop('sent')

    def piece(self, data, chunked):
        if data:
            self.c.client.sendall(b'%x\r\n%s\r\n' % (len(data), data) if chunked else data)


def main(port, folder):
    log = Log(folder)
    listener = socket.create_server(('127.0.0.1', port), backlog=1024)
    number = 0
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number += 1
        threading.Thread(target=Connection(client, number, folder, log).run, daemon=True).start()


if __name__ == '__main__':
    main(int(sys.argv[1]), sys.argv[2])
