"""The examples of README.md and docs/http.md run as they stand there."""

import os
import re
import subprocess
import sys

from harness import Skip, test

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')


def block(page, language, word):
    with open(os.path.join(ROOT, page), encoding='utf-8') as f:
        found = re.findall(r'```%s\n(.*?)```' % language, f.read(), re.DOTALL)
    return next(b for b in found if word in b)


def run(t, argv, text, **env):
    done = subprocess.run(argv, input=text, text=True, capture_output=True, timeout=40, cwd=t.folder, env=dict(t.env, **env))
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


@test('sqlite', 'redis')
def curl_alone(t):
    os.mkdir(t.path('bin'))
    os.symlink(t.dibs, t.path('bin/dibs'))
    out = run(t, ['sh', '-eu'], block('README.md', 'sh', 'dibs serve'), PATH=t.path('bin') + ':' + os.environ['PATH'])
    for said in ('"grant":', '"code":"BUSY"', '"remaining_ms":', '{"released":true}', 'event: granted', '"result":"paid"'):
        assert said in out, (said, out)
    assert out.count('"order-17-5e3f9a2c"') == 2, 'the same grant, and its renewal'


@test('memory', 'sqlite', 'redis')
def python_in_ten_lines(t):
    out = run(t, [sys.executable, '-'], block('docs/http.md', 'python', 'acquire'), DIBS=t.serve().address)
    assert re.search(r"^mine, with fence \d+\n{'released': True}\n$", out), out


@test('memory', 'sqlite', 'redis')
def node_in_ten_lines(t):
    try:
        version = subprocess.run(['node', '--version'], capture_output=True, text=True, check=True).stdout
    except OSError as e:
        raise Skip(str(e))
    if int(re.match(r'v(\d+)', version).group(1)) < 18:
        raise Skip('node %s has no fetch' % version)
    text = "const crypto = require('crypto');\n" if version.startswith('v18') else ''
    out = run(t, ['node', '-'], text + block('docs/http.md', 'js', 'acquire'), DIBS=t.serve().address)
    assert re.search(r'^mine, with fence \d+\n{ released: true }\n$', out), out
