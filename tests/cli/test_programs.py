"""The command is several programs: which of them runs, and what they load."""

import os
import shutil
import subprocess

from harness import DATABASES, ENSEMBLES, Skip, test, wait_for

HOLD = ('sh', '-c', 'echo held; exec sleep 60')


def program_of(holder):
    """The file that a running command is by now."""
    wait_for(lambda: holder.out == b'held\n', 'the holder')
    return os.path.basename(os.readlink('/proc/%d/exe' % holder.pid))


def libraries(path):
    said = subprocess.run(['ldd', path], stdout=subprocess.PIPE, check=True, text=True).stdout
    return {line.split()[0].split('.so')[0] for line in said.splitlines() if '.so' in line}


@test()
def the_plain_command_loads_no_client_library(t):
    heavy = {'libpq', 'libmariadb', 'libzookeeper_mt', 'libnghttp2', 'libhiredis', 'libssl', 'libcrypto', 'libgnutls', 'libmicrohttpd'}
    assert not heavy & libraries(t.dibs), libraries(t.dibs)
    assert heavy & libraries(os.path.join(os.path.dirname(t.dibs), 'dibs-all')), 'the whole has some of them'


@test('sqlite', 'redis', 'redlock', *DATABASES, *ENSEMBLES)
def each_engine_has_its_program(t):
    if not next(e for e in t.json('engines', '--json')['engines'] if e['scheme'] == t.url.split(':')[0])['available']:
        raise Skip('this build lacks it')
    expected = {'sqlite': 'dibs', 'redlock': 'dibs-redis', 'mariadb': 'dibs-mysql'}.get(t.url.split(':')[0], 'dibs-' + t.url.split(':')[0])
    assert program_of(t.start('run', 'by environment', '--', *HOLD)) == expected
    env = {k: v for k, v in t.env.items() if k != 'DIBS_URL'}
    for i, words in enumerate((['--url', t.url, 'run'], ['run', '--url=' + t.url], ['run', '--lease', '10s', '--url', t.url])):
        assert program_of(t.start(*words, 'by option %d' % i, '--', *HOLD, env=env)) == expected, words
    with open(t.path('url'), 'w') as f:
        f.write(t.url + '\n')
    assert program_of(t.start('run', '--url-file', t.path('url'), 'by file', '--', *HOLD, env=env)) == expected
    env['DIBS_URL_FILE'] = t.path('url')
    assert program_of(t.start('run', 'by file of the environment', '--', *HOLD, env=env)) == expected


@test('sqlite')
def words_behind_the_split_do_not_count(t):
    assert program_of(t.start('run', 'a', '--', *HOLD, '--url', 'redis://127.0.0.1:1')) == 'dibs'


@test('sqlite')
def a_url_that_can_be_read_only_once(t):
    """From a pipe: the program that looks at it could not give it back."""
    os.mkfifo(t.path('url'))
    holder = t.start('run', '--url-file', t.path('url'), 'a', '--', *HOLD, env={k: v for k, v in t.env.items() if k != 'DIBS_URL'})
    with open(t.path('url'), 'w') as f:
        f.write(t.url + '\n')
    assert program_of(holder) == 'dibs-all'
    assert len(t.held_by('a')) == 1


@test('redis')
def inherited_descriptors_stay(t):
    """Through the other program as without it: what the caller gave, and nothing else."""
    reader, writer = os.pipe()
    code, out, err = t.run('run', 'a', '--', 'sh', '-c', 'echo here >&%d; ls /proc/self/fd' % writer, pass_fds=(writer,))
    assert code == 0, err
    assert os.read(reader, 100) == b'here\n'
    assert {int(fd) for fd in out.split()} - {0, 1, 2, writer} <= {3}, out  # the folder that ls reads
    os.close(reader)
    os.close(writer)


@test()
def a_part_that_is_missing_is_named(t):
    alone = t.path('dibs')
    shutil.copy(t.dibs, alone)
    done = subprocess.run([alone, 'engines'], capture_output=True, text=True)
    if done.returncode == 0:
        raise Skip('dibs is installed here')
    assert done.returncode == 71 and 'cannot run' in done.stderr and 'dibs-all' in done.stderr, (done.returncode, done.stderr)
    assert subprocess.run([alone, '--version'], capture_output=True).returncode == 0
