"""In a terminal: foreground, Ctrl-C, Ctrl-Z, the live view; and the completion."""

import os
import pty
import select
import shutil
import signal
import subprocess
import time

from harness import HERE, Skip, test, wait_for


class Terminal:
    """A process in a pseudo terminal of its own, as its session's leader."""

    def __init__(self, t, *argv):
        self.text = b''
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(t.folder)
            os.execvpe(argv[0], argv, dict(t.env, PS1='ready> ', TERM='xterm', PATH=os.environ['PATH']))
        t.pids.add(self.pid)

    def pump(self):
        while select.select([self.fd], [], [], 0)[0]:
            try:
                part = os.read(self.fd, 4096)
            except OSError:
                return
            if not part:
                return
            self.text += part

    def see(self, what, seconds=10):
        """Waits until `what` appears, and forgets what came before it."""

        def seen():
            self.pump()
            return what in self.text

        try:
            wait_for(seen, repr(what), seconds)
        except AssertionError as e:
            raise AssertionError('%s; seen: %r' % (e, self.text[-500:]))
        self.text = self.text.split(what, 1)[1]

    def type(self, keys):
        os.write(self.fd, keys)

    def wait(self):
        """The exit status, as from waitpid."""

        def ended():
            self.pump()
            return os.waitpid(self.pid, os.WNOHANG)

        return wait_for(lambda: (lambda r: r if r[0] else None)(ended()), 'the end')[1]


def shell(t):
    terminal = Terminal(t, 'bash', '--norc', '--noediting', '-i')
    terminal.see(b'ready> ')
    return terminal


@test('sqlite')
def command_reads_the_terminal(t):
    terminal = shell(t)
    terminal.type(b"%s run a -- sh -c 'echo up; read x; echo got-$x'\n" % t.dibs.encode())
    terminal.see(b'\nup')
    terminal.type(b'hello\n')
    terminal.see(b'got-hello')
    terminal.see(b'ready> ')


@test('sqlite')
def ctrl_c_ends_the_command(t):
    terminal = shell(t)
    terminal.type(b"%s run a -- sh -c 'trap \"echo caught; exit 5\" INT; echo up; while :; do sleep 0.05; done'\n" %
                  t.dibs.encode())
    terminal.see(b'\nup')
    terminal.type(b'\x03')
    terminal.see(b'caught')
    terminal.see(b'ready> ')
    terminal.type(b'echo code-$?\n')
    terminal.see(b'code-5')
    terminal.see(b'ready> ')
    terminal.type(b"%s run a -- sh -c 'echo up; exec sleep 60'\n" % t.dibs.encode())
    terminal.see(b'\nup')
    terminal.type(b'\x03')
    terminal.see(b'ready> ')
    terminal.type(b'echo code-$?\n')
    terminal.see(b'code-130')
    assert t.held_by('a') == []


@test('sqlite')
def ctrl_c_ends_a_loop_around_it(t):
    terminal = shell(t)
    terminal.type(b"for i in 1 2 3; do %s run a -- sh -c 'echo up; exec sleep 60'; done; echo not-here\n" %
                  t.dibs.encode())
    terminal.see(b'\nup')
    terminal.type(b'\x03')
    terminal.see(b'ready> ')
    terminal.type(b'echo code-$?\n')
    terminal.see(b'code-130')
    assert b'not-here' not in terminal.text


@test('sqlite')
def ctrl_c_in_the_queue(t):
    holder = t.start('run', 'a', '--', 'sleep', '60')
    wait_for(lambda: t.held_by('a'), 'the holder')
    terminal = shell(t)
    terminal.type(b'%s run a -- echo ran\n' % t.dibs.encode())
    t.wait_queued('a')
    terminal.type(b'\x03')
    terminal.see(b'ready> ')
    terminal.type(b'echo code-$?\n')
    terminal.see(b'code-130')
    assert t.lock('a')['waiter_count'] == 0
    holder.signal(signal.SIGTERM)


@test('sqlite', 'redis')
def a_wait_is_explained(t):
    """In a terminal, after a second: who holds it, our place, how to leave. Not when stderr is no terminal."""
    holder = t.start('run', '--owner', 'boss', 'a', '--', 'sleep', '60')
    wait_for(lambda: t.held_by('a'), 'the holder')
    silent = t.start('run', 'free', 'a', '--', 'true')
    t.wait_queued('a')
    terminal = shell(t)
    terminal.type(b'%s run b a -- echo ran\n' % t.dibs.encode())
    terminal.see(b"dibs: waiting for 'a': held by boss (host ")
    terminal.see(b'pid %d) since 20' % holder.pid)
    terminal.see(b', position 2 of 2 in the queue; Ctrl-C stops waiting')
    terminal.type(b'\x03')
    terminal.see(b'ready> ')
    assert b'waiting' not in terminal.text and silent.err == b'', (terminal.text, silent.err)
    began = os.path.join(t.folder, 'began')
    once = t.start('once', 'k', '--', 'sh', '-c', 'touch %s; sleep 60' % began)
    wait_for(lambda: os.path.exists(began), 'the run')
    terminal.type(b'%s once --wait 1m k -- echo ran\n' % t.dibs.encode())
    terminal.see(b"dibs: waiting for a run of 'k' in progress; Ctrl-C stops waiting")
    terminal.type(b'\x03')
    terminal.see(b'ready> ')
    once.signal(signal.SIGTERM)
    holder.signal(signal.SIGTERM)


@test('sqlite')
def a_value_from_the_terminal(t):
    """`cell put NAME` reads standard input: a user who forgot the value is told so, a pipe is not."""
    terminal = shell(t)
    terminal.type(b'%s cell put c\n' % t.dibs.encode())
    terminal.see(b'dibs: reading the value from the terminal; end it with Ctrl-D')
    terminal.type(b'typed\n\x04')
    terminal.see(b'ready> ')
    assert t.run('cell', 'get', 'c')[1] == b'typed\n'
    assert t.run('cell', 'put', 'c')[2] == b'', 'standard input is not a terminal'


@test('sqlite')
def ctrl_z_and_fg(t):
    terminal = shell(t)
    terminal.type(b"%s run a -- sh -c 'echo up; read x; echo got-$x'\n" % t.dibs.encode())
    terminal.see(b'\nup')
    terminal.type(b'\x1a')
    terminal.see(b'Stopped')
    terminal.see(b'ready> ')
    assert t.held_by('a'), 'held until its lease is over'
    terminal.type(b'jobs\n')
    terminal.see(b'Stopped')
    terminal.see(b'ready> ')
    terminal.type(b'fg\n')
    terminal.see(b'run a --')
    terminal.type(b'hello\n')
    terminal.see(b'got-hello')
    terminal.see(b'ready> ')
    terminal.type(b'echo code-$?\n')
    terminal.see(b'code-0')


@test('sqlite')
def in_a_pipeline_the_others_keep_the_terminal(t):
    terminal = shell(t)
    terminal.type(b"%s run a -- echo one | sh -c 'cat; read x </dev/tty; echo got-$x'\n" % t.dibs.encode())
    terminal.see(b'\none')
    terminal.type(b'hello\n')
    terminal.see(b'got-hello')
    terminal.see(b'ready> ')
    terminal.type(b"%s run a -- sh -c 'echo up >&2; read x </dev/tty; echo got-$x' | cat\n" % t.dibs.encode())
    terminal.see(b'\nup')
    terminal.type(b'again\n')
    terminal.see(b'got-again')
    terminal.see(b'ready> ')


@test('sqlite')
def without_a_shell_ctrl_z_does_not_stop(t):
    """Nobody could continue it: the kernel ignores Ctrl-Z there, and so do we."""
    terminal = Terminal(t, t.dibs, 'run', 'a', '--', 'sh', '-c', 'echo up; read x; echo got-$x; exit 3')
    terminal.see(b'up')
    terminal.type(b'\x1a')
    terminal.type(b'hello\n')
    terminal.see(b'got-hello')
    assert os.waitstatus_to_exitcode(terminal.wait()) == 3


@test('sqlite')
def once_in_a_terminal(t):
    """It reads the terminal and gets Ctrl-C; with --no-replay it writes to the terminal itself."""
    terminal = shell(t)
    ask = b"%s once %s -- sh -c 'test -t 1 && echo tty || echo pipe; read x; echo got-$x'\n"
    terminal.type(ask % (t.dibs.encode(), b'a'))
    terminal.see(b'\npipe')
    terminal.type(b'hello\n')
    terminal.see(b'got-hello')
    terminal.see(b'ready> ')
    terminal.type(ask % (t.dibs.encode(), b'a'))
    terminal.see(b'\npipe')
    terminal.see(b'got-hello')
    terminal.see(b'ready> ')
    terminal.type(ask % (t.dibs.encode(), b'--no-replay b'))
    terminal.see(b'\ntty')
    terminal.type(b'\x03')
    terminal.see(b'ready> ')
    terminal.type(b'echo code-$?\n')
    terminal.see(b'code-130')
    assert t.run('once', 'b', '--', 'echo', 'x')[:2] == (79, b''), 'interrupted: its outcome is unknown'


@test('sqlite')
def live_view(t):
    holder = t.start('run', '--owner', 'boss', 'job', '--', 'sleep', '60')
    wait_for(lambda: t.held_by('job'), 'the holder')
    terminal = Terminal(t, t.dibs, 'watch', '--interval', '50ms')
    terminal.see(b'\x1b[?1049h')
    terminal.see(b'dibs watch')
    terminal.see(b'job ')
    terminal.see(b'boss')
    holder.signal(signal.SIGTERM)
    holder.wait()

    def gone():
        terminal.pump()
        screen = terminal.text.split(b'\x1b[H\x1b[2J')[-2:]
        return len(screen) == 2 and b'boss' not in screen[0] and b'NAME' in screen[0]

    wait_for(gone, 'an empty view')
    terminal.type(b'\x03')
    terminal.see(b'\x1b[?1049l')
    assert os.waitstatus_to_exitcode(terminal.wait()) == 130


@test('sqlite')
def names_do_not_steer_the_view(t):
    """Wide and combining characters keep the columns; what turns the direction of writing is shown escaped."""
    names = ['plain', '\u6f22\u5b57', 'e\u0301te\u0301', 'evil\u202etxt', 'zero\u200bwidth', '\U0001f600']
    for name in names:
        t.start('run', name, '--', 'sleep', '60')
    wait_for(lambda: len(t.json('ls', '--json')['locks']) == len(names), 'the holders')

    def columns(line):
        return sum(0 if c == '\u0301' else 2 if c in '\u6f22\u5b57\U0001f600' else 1 for c in line)

    table = t.run('ls')[1].decode().splitlines()
    at = {columns(line[:line.index(' exclusive')]) for line in table[1:]}
    assert at == {table[0].index('STATE') - 1}, table
    terminal = Terminal(t, t.dibs, 'watch', '--interval', '50ms')
    terminal.see(b'evil\\xe2\\x80\\xaetxt')
    terminal.see(b'zero\\xe2\\x80\\x8bwidth')
    terminal.type(b'\x03')
    terminal.see(b'\x1b[?1049l')
    shown = t.run('ls')[1] + t.run('show', names[3])[1] + t.run('ls', '--names')[1] + terminal.text
    shown += t.run('run', '--no-wait', names[3], '--', 'true')[2] + t.run('show', names[3] + 'x')[2]
    assert '\u202e'.encode() not in shown and '\u200b'.encode() not in shown, shown
    terminal = Terminal(t, t.dibs, 'ls', '--json', 'evil')
    terminal.see(b'evil\\u202Etxt')
    assert t.json('ls', '--json', 'evil')['locks'][0]['name'] == names[3], 'exact where no terminal is'


@test('sqlite')
def completion(t):
    if not shutil.which('bash'):
        raise Skip('bash is not installed')
    wanted = os.path.join(HERE, '..', '..', 'completions', 'dibs')
    t.start('run', 'nightly', '--', 'sleep', '60')
    wait_for(lambda: t.held_by('nightly'), 'the holder')

    def complete(*words):
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dibs; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(['bash', '--norc', '-c', script, 'bash', wanted, *words], env=t.env,
                              stdout=subprocess.PIPE, timeout=10)
        return done.stdout.decode().split('\n')[:-1]

    assert complete(t.dibs, 'r') == ['run']
    assert '--max-hold' in complete(t.dibs, 'run', '--m')
    assert complete(t.dibs, 'show', 'ni') == ['nightly']
    assert complete(t.dibs, 'run', '--wait', '5') == ['500ms', '5s']
    assert complete(t.dibs, 'help', 'sch') == ['schema']
    commands = [line.split()[0] for line in t.run('help')[1].decode().splitlines() if line.startswith('  ') and not line.startswith('  dibs')]
    assert complete(t.dibs, 'help', '') == commands, commands
    assert not set(commands) - set(complete(t.dibs, ''))
    assert complete(t.dibs, 'ls', '--url-f') == ['--url-file']
    assert complete(t.dibs, 'lab', 'sh') == ['shop']
    assert '--from' in complete(t.dibs, 'lab', 'report', '--f')
    assert 'true' in complete(t.dibs, 'run', 'nightly', '--', 'tru')
    assert 'true' in complete(t.dibs, 'once', 'key', '--', 'tru')
    assert complete(t.dibs, 'once', '--on-crash', 're') == ['refuse', 'rerun']
    assert complete(t.dibs, 'counter', 't') == ['take'] and complete(t.dibs, 'token', 'i') == ['issue']
    assert complete(t.dibs, 'cell', 'put', '--f') == ['--fence']
