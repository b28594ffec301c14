"""A copy of the sources in which the files under test are instrumented, and its build: one compile for all mutants."""

import hashlib
import json
import os
import shutil
import subprocess

from sites import instrument

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ARGS = ['-Iinclude', '-Isrc', '-std=gnu11']
ENGINES = ['sqlite', 'redis', 'postgresql', 'mysql', 'zookeeper', 'etcd', 'shop']


def put(path, text):
    """Only what changed is written: the build compiles no more than that."""
    if os.path.exists(path):
        with open(path, 'rb') as f:
            if f.read() == text:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as f:
        f.write(text)


def read(path):
    with open(os.path.join(ROOT, path), 'rb') as f:
        return f.read()


def make_tree(folder, files):
    """Copies what git knows (and what is new), instruments `files`. Returns the mutants; each has its file's hash."""
    listed = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard', 'include', 'src', 'lab', 'tests', 'meson.build', 'man',
                             'meson_options.txt', 'examples', 'completions', 'torture'],
                            cwd=ROOT, capture_output=True, text=True, check=True).stdout.split('\n')
    here, mutants = os.getcwd(), []
    os.chdir(ROOT)
    try:
        for path in filter(os.path.exists, filter(None, listed)):
            text = read(path)
            if path in files:  # as Latin-1, a character is a byte: libclang counts bytes
                body, found = instrument(path, text.decode('latin-1'), ARGS, len(mutants) + 1)
                for m in found:
                    m.hash = hashlib.sha256(text).hexdigest()[:16]
                mutants += found
                text = body.encode('latin-1')
            if path == 'meson.build':
                text = text.replace(b'lib_sources = []', b"lib_sources = files('src/mutant.c')", 1)
            put(os.path.join(folder, path), text)
            shutil.copymode(path, os.path.join(folder, path))
    finally:
        os.chdir(here)
    put(os.path.join(folder, 'src/mutant.h'), read('tests/mutation/mutant.h'))
    put(os.path.join(folder, 'src/mutant.c'),
        b'#define DIBS__MUTANTS %d\n' % (len(mutants) + 1) + read('tests/mutation/mutant.c'))
    return mutants


def build(folder, meson, programs):
    """Builds these test programs, with no engine but the one in memory. Returns the path of the build."""
    out = os.path.join(folder, 'build')
    if not os.path.exists(os.path.join(out, 'build.ninja')):
        subprocess.run([meson, 'setup', out, folder, '-Dbuildtype=release', '-Dtests=true', '-Dc_args=-w']
                       + ['-D%s=disabled' % e for e in ENGINES], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(['ninja', '-C', out] + ['tests/' + p for p in programs], check=True, stdout=subprocess.DEVNULL)
    return out


def environment(build_folder):
    """What meson declared for the tests."""
    with open(os.path.join(build_folder, 'meson-info', 'intro-tests.json')) as f:
        return json.load(f)[0]['env']
