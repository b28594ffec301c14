#!/usr/bin/env python3
"""Builds of every shape: without any optional engine, without each of them alone, and without what serves HTTP. All of them
compile with warnings as errors, list what they lack with the package to install, say the same when it is used, pass the unit
tests, and work.

    test_shapes.py --build FOLDER --dibs COMMAND

The folders stay, so that the next run compiles only what has changed. They are built without optimisation: a shape is about
what is compiled and linked. clang builds those that keep the lab, which together are all of src/; the release build and its
tests are gcc's.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests/support'))
import databases  # noqa: E402
import tap  # noqa: E402

# option: the engines that it stands for, each with a URL, and the packages that a build without it names
OPTIONS = {
    'sqlite': (['sqlite:///nowhere/store.db'], ['libsqlite3-dev']),
    'redis': (['redis://127.0.0.1:1', 'redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3'], ['libhiredis-dev', 'libssl-dev']),
    'postgresql': (['postgresql://127.0.0.1:1/x'], ['libpq-dev']),
    'mysql': (['mysql://127.0.0.1:1/x'], ['libmariadb-dev']),
    'zookeeper': (['zookeeper://127.0.0.1:1/x'], ['libzookeeper-mt-dev']),
    'etcd': (['etcd://127.0.0.1:1/x'], ['libnghttp2-dev', 'libprotobuf-c-dev', 'protobuf-c-compiler', 'libssl-dev']),
}
CLANG = ['zookeeper', 'etcd']
# Searches through all states of a part that is the same in every shape; without optimisation they take minutes.
SEARCHES = ['test_model', 'test_cell_model', 'test_driver', 'test_reader', 'test_dispatch']
CONFIGURE = '. scripts/packages.sh && . scripts/build.sh && configure_in "$@"'

CONSUMER = r'''
#include <dibs.h>
#include <stdio.h>

int main(void)
{
    dibs *d = NULL;
    dibs_grant *g = NULL;
    dibs_error err = {0};

    if (dibs_open("memory:", NULL, &d, &err) != DIBS_OK || dibs_lock(d, "a", NULL, &g, &err) != DIBS_OK ||
        dibs_unlock(&g, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    dibs_close(d);
    return 0;
}
'''


def command(*words, **more):
    """Its output and messages; a non-zero exit fails the test with both."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, **more)
    assert done.returncode == 0, '%s: exit code %d\n%s' % (
        ' '.join(map(str, words)), done.returncode, '\n'.join(done.stdout.splitlines()[-60:]))
    return done.stdout


def build(folder, compiler, without, *targets):
    """-Dengine=enabled for the others: a package that is not there must not make the shape smaller. The lab of one shape is
    without its shop. With `http` in `without` nothing is there that serves HTTP."""
    if not shutil.which(compiler):
        raise databases.Missing('%s is not installed' % compiler)
    env = dict(os.environ, CC=compiler)
    options = ['-D%s=%s' % (name, 'disabled' if name in without else 'enabled') for name in OPTIONS]
    options += ['-Dserve=%s' % ('disabled' if 'http' in without else 'enabled'),
                '-Dshop=%s' % ('disabled' if {'http', 'etcd'} & set(without) else 'enabled')]
    command('bash', '-c', CONFIGURE, 'bash', folder, '-Dbuildtype=plain', '-Dwerror=true', '-Dtests=true', *options, env=env)
    command('ninja', '--quiet', '-j2', '-C', folder, *targets, env=env)


def engines_of(dibs):
    return {e['scheme']: e for e in json.loads(command(dibs, 'engines', '--json'))['engines']}


def check_engines(dibs, without):
    """All are listed; exactly those of `without` are missing, with their packages."""
    lacking = {url.split(':')[0]: OPTIONS[name][1] for name in without for url in OPTIONS[name][0]}
    listed = engines_of(dibs)
    every = {url.split(':')[0] for urls, _ in OPTIONS.values() for url in urls} | {'memory'}
    assert listed.keys() == every, sorted(listed)
    assert {s for s, e in listed.items() if not e['available']} == lacking.keys(), listed
    text = command(dibs, 'engines').splitlines()
    for scheme, packages in lacking.items():
        line = next(line for line in text if line.split()[0] == scheme)
        assert 'install' in line and all(p in line and p in listed[scheme]['missing'] for p in packages), line


def check_opening(dibs, without):
    for name in without:
        urls, packages = OPTIONS[name]
        for url in urls:
            done = subprocess.run([dibs, 'ls', '--url', url], capture_output=True, text=True)
            said = 'this build has no %s engine' % url.split(':')[0]
            assert done.returncode == 64 and said in done.stderr and all(p in done.stderr for p in packages), \
                (url, done.returncode, done.stderr)


def check_working(dibs, without):
    """Where there is an engine for it that needs no server."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [dibs, 'run', '--url', 'sqlite://%s/store.db' % scratch, 'a', '--', 'echo', 'in here']
        assert 'sqlite' in without or command(*words) == 'in here\n'


def check_units(folder):
    said = command(sys.executable, ROOT / 'tests/run.py', folder, '--kind', 'unit', *[w for s in SEARCHES for w in ('--skip', s)])
    passed = int(re.search(r'^(\d+) passed, 0 failed', said, re.MULTILINE).group(1))
    assert passed > 150, said


def one_missing(folder, name):
    folder = folder / ('no-' + name)
    build(folder, 'clang' if name in CLANG else 'gcc', [name], 'src/cli/dibs', 'unit')
    check_units(folder)
    for check in check_engines, check_opening, check_working:
        check(folder / 'src/cli/dibs', [name])


def smallest(folder):
    build(folder / 'smallest', 'gcc', list(OPTIONS))
    check_units(folder / 'smallest')
    for check in check_engines, check_opening, check_working:
        check(folder / 'smallest/src/cli/dibs', list(OPTIONS))


def smallest_describes(folder, dibs):
    """What an engine can do is the same in a build without it. `dibs` is the command of a build with as many as there can be."""
    def features(listed):
        return {scheme: {k: v for k, v in e.items() if k not in ('available', 'missing')} for scheme, e in listed.items()}

    said, known = features(engines_of(folder / 'smallest/src/cli/dibs')), features(engines_of(dibs))
    assert said == known, [(said[s], known[s]) for s in known if said.get(s) != known[s]]


def no_http(folder):
    """In the folder of the smallest: only what serves HTTP is left out, and put back by the next run."""
    folder = folder / 'smallest'
    build(folder, 'gcc', [*OPTIONS, 'http'], 'src/cli/dibs', 'unit')
    check_units(folder)
    for name in 'serve', 'gateway':
        done = subprocess.run([folder / 'src/cli/dibs', name], capture_output=True, text=True)
        assert done.returncode == 64 and 'built without dibs ' + name in done.stderr and \
            'libssl-dev' in done.stderr, (name, done.returncode, done.stderr)


def smallest_static(folder):
    """A program against the installed archive, with what pkg-config says alone."""
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        command('meson', 'install', '-C', folder / 'smallest', '--no-rebuild', env=dict(os.environ, DESTDIR=scratch))
        pc = next(root.rglob('dibs.pc'))
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent), PKG_CONFIG_SYSROOT_DIR=scratch)
        flags = command('pkg-config', '--static', '--cflags', '--libs', 'dibs', env=env).split()
        # The archive by its name: -ldibs would take the shared one.
        flags = [str(next(root.rglob('libdibs.a'))) if f == '-ldibs' else f for f in flags]
        (root / 'consumer.c').write_text(CONSUMER)
        command('gcc', '-std=c11', '-Wall', '-Wextra', '-Werror', '-o', root / 'consumer', root / 'consumer.c', *flags)
        command(root / 'consumer')


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--build', type=pathlib.Path, required=True, help='where the shapes are built')
    p.add_argument('--dibs', type=pathlib.Path, required=True, help='the command of the build that is tested')
    o = p.parse_args()
    folder = o.build
    folder.mkdir(parents=True, exist_ok=True)
    return tap.run([('without any optional engine', smallest, folder),
                    ('what it says of the engines that it lacks', smallest_describes, folder, o.dibs),
                    ('a program linked with its archive', smallest_static, folder),
                    ('without what serves HTTP', no_http, folder)] +
                   [('without ' + name, one_missing, folder, name) for name in OPTIONS])


if __name__ == '__main__':
    sys.exit(main())
