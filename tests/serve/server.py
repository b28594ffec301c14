"""A private `dibs serve`, a client for it, and the check of its answers against its OpenAPI document."""

import http.client
import json
import re
import socket
import uuid

import jsonschema

import harness
from harness import wait_for

JSON = {'Content-Type': 'application/json'}


class Context(harness.Context):
    """One test's surroundings; its servers are checked for clean ends."""

    def __init__(self, dibs, engine, servers, folder):
        super().__init__(dibs, None if engine == 'memory' else engine, servers, folder)
        if engine == 'memory':
            self.engine, self.url = engine, 'memory:'
        self.serving = []

    def serve(self, *args, url=None, listen=None, **more):
        """A running server."""
        s = Serve(self, ('--listen', listen or '127.0.0.1:0', '--url', url or self.url, *args), **more)
        self.serving.append(s)
        return s

    def poison(self):
        """Servers that are started from now on find rubbish in memory that they have freed."""
        self.env['MALLOC_PERTURB_'] = '165'

    def finish(self):
        for s in self.serving:
            if s.process.popen.poll() is None:
                code = s.stop()
                assert code == 0, (code, s.process.err)


class Serve:
    def __init__(self, t, args, **more):
        self.process = t.start('serve', *args, **more)
        line = re.compile(rb'serving \S+ at (https?://(\S+):(\d+)|unix:\S+)\n')  # the whole of it: it comes in pieces
        wait_for(lambda: line.search(self.process.err) or self.process.popen.poll() is not None, 'the server', 30)
        said = line.search(self.process.err)
        assert said, self.process.err
        self.address = said.group(1).decode()
        self.port = int(said.group(3)) if said.group(3) else None
        self.document = None

    def openapi(self):
        if not self.document:
            self.document = json.loads(Client(self, checked=False).get('/openapi.json').body)
        return self.document

    def stop(self, seconds=15):
        self.process.signal(15)
        return self.process.wait(seconds)

    def kill(self):
        self.process.popen.kill()
        self.process.wait()


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return '<%d %s>' % (self.status, self.body[:300])


def operation(document, method, path):
    """What the document says of a request, and of nothing else than that path."""
    path = path.split('?')[0]
    for template, operations in document['paths'].items():
        if re.fullmatch(re.sub(r'\\\{\w+\\\}', '[^/]+', re.escape(template)), path) and method.lower() in operations:
            if '{' not in template or path not in document['paths']:
                return operations[method.lower()]
    return None


def check_answer(document, method, path, answer):
    """Its status, its type and its body are described."""
    said = operation(document, 'GET' if method == 'HEAD' else method, path)
    kind = (answer.headers.get('Content-Type') or '').split(';')[0]
    if not said or method == 'HEAD':
        return
    response = said['responses'].get(str(answer.status))
    if not response:
        assert answer.status >= 400, '%s %s: status %d is not in the document' % (method, path, answer.status)
        response = said['responses']['default']
    content = response.get('content', {})
    if not content:
        assert answer.body == b'', (method, path, answer)
        return
    assert kind in content or '*/*' in content, '%s %s: %s is not in %s' % (method, path, kind, list(content))
    if kind in content and kind.endswith('json'):
        schema = dict(content[kind]['schema'], components=document['components'])
        jsonschema.Draft202012Validator(schema).validate(answer.json)


class Client:
    """A keep-alive connection. Checks every answer, unless `checked` is false."""

    def __init__(self, serve, checked=True, token=None, timeout=40):
        self.serve, self.checked, self.token = serve, checked, token
        self.connection = http.client.HTTPConnection('127.0.0.1', serve.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        headers = dict(headers or {})
        if self.token:
            headers['Authorization'] = 'Bearer ' + self.token
        if isinstance(body, (dict, list)):
            body, headers = json.dumps(body), dict(JSON, **headers)
        self.connection.request(method, path, body, headers)
        r = self.connection.getresponse()
        answer = Answer(r.status, r.headers, r.read())
        if self.checked:
            check_answer(self.serve.openapi(), method, path, answer)
        return answer

    def get(self, path, **headers):
        return self.ask('GET', path, headers={k.replace('_', '-'): v for k, v in headers.items()})

    def post(self, path, **body):
        return self.ask('POST', path, body)

    def good(self, path, status=200, **body):
        """A POST that has to be answered so; its JSON."""
        answer = self.post(path, **body)
        assert answer.status == status, (path, body, answer)
        return answer.json

    def acquire(self, name, status=201, **more):
        return self.good('/v1/acquire', status, name=name, **more)

    def renew(self, grant, status=200):
        return self.good('/v1/renew', status, grant=grant)

    def release(self, grant, status=200):
        return self.good('/v1/release', status, grant=grant)

    def holders(self, name):
        answer = self.get('/v1/locks/' + name)
        return answer.json['holders'] if answer.status == 200 else []

    def waiters(self, name):
        answer = self.get('/v1/locks/' + name)
        return answer.json['waiter_count'] if answer.status == 200 else 0

    def close(self):
        self.connection.close()


def request_id():
    return str(uuid.uuid4())


def resident(pid):
    """Bytes of memory that the process has."""
    with open('/proc/%d/status' % pid) as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith('VmRSS'))


def unread(port, sent=False):
    """Bytes that the server at this port was sent and has not read; or that it has sent and its clients have not."""
    with open('/proc/net/tcp') as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return sum(int(row[4].split(':')[0 if sent else 1], 16) for row in rows if row[1].endswith(':%04X' % port) and row[3] == '01')


def send_raw(port, data, timeout=10):
    """Sends bytes as they are; everything that comes back until the server closes, or until `timeout`."""
    got = b''
    with socket.create_connection(('127.0.0.1', port), timeout=timeout) as s:
        try:
            s.sendall(data)
            while True:
                more = s.recv(65536)
                if not more:
                    break
                got += more
        except (TimeoutError, ConnectionError):
            pass
    return got


class Stream:
    """A hold stream: its events."""

    def __init__(self, serve, name, query='', token=None):
        self.socket = socket.create_connection(('127.0.0.1', serve.port), timeout=30)
        extra = 'Authorization: Bearer %s\r\n' % token if token else ''
        self.socket.sendall(('GET /v1/locks/%s/hold?%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n%s\r\n'
                             % (name, query, extra)).encode())
        self.buffer, self.events = b'', []

    def next(self, *wanted):
        """Reads until one of these events; its name and data."""
        while True:
            found = re.search(rb'event: (\w+)\ndata: (.*)\n\n', self.buffer)
            if found:
                self.buffer = self.buffer[found.end():]
                event = found.group(1).decode(), json.loads(found.group(2))
                self.events.append(event)
                if not wanted or event[0] in wanted:
                    return event
                continue
            more = self.socket.recv(65536)
            assert more, ('the stream ended', self.buffer, self.events)
            self.buffer += more

    def close(self):
        self.socket.close()
