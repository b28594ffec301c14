"""The test programs that look for mutants: none needs a server. Running one, and what counts as a kill."""

import glob
import math
import os
import signal
import subprocess
import tempfile
import time

QUICK = [['test_grant'], ['test_ticket'], ['test_wait'], ['test_unlock'], ['test_sink'], ['test_schedule'],
         ['test_once'], ['test_once_run'], ['test_values'], ['test_keys'], ['test_many'], ['test_record'], ['test_fence_file'],
         ['test_fence'], ['test_cell_store'], ['test_cell'], ['test_sim', '1', '20'], ['test_cell_model'], ['test_state'],
         ['test_sim', '21', '180'], ['test_losses']]
LONG = [['test_sim', '201', '1000'], ['test_model'], ['test_keeper'], ['test_start'], ['test_sweep', 'memory']]
IN_REAL_TIME = ['test_fence', 'test_sweep', 'test_losses', 'test_keeper', 'test_start', 'test_conformance']
SUITE = ['test_conformance', 'memory']
PROGRAMS = sorted({k[0] for k in QUICK + LONG} | {SUITE[0]})
MEMORY = 4 << 30


class Killer:
    """A program with arguments. One that runs in real time can fail because the machine is busy: `timed`."""

    patience = 2  # seconds of work beyond what it usually needs
    interval = 2  # seconds between two looks at whether it sleeps

    def __init__(self, command):
        self.command, self.timed = command, command[0] in IN_REAL_TIME
        self.name = ' '.join(command)
        self.quick = command in QUICK
        self.seconds = self.work = 0.0  # on the wall clock, and of a processor
        self.seen = b''

    def start(self, build, environment, work, more):
        command = ['prlimit', '--cpu=%d' % work, '--as=%d' % MEMORY, '--core=0',
                   os.path.join(build, 'tests', self.command[0])] + self.command[1:]
        env = dict(os.environ, CMOCKA_TEST_ABORT='1', **environment, **more)  # the first failure is enough
        return subprocess.Popen(command, env=env, cwd=build, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)

    def run(self, build, environment, mutant):
        """0, or what went wrong. A hang is a failure. What runs in no real time hangs by working or by sleeping: a busy
        machine makes it late."""
        limit = 30 + 8 * self.seconds if self.timed else 1800
        process = self.start(build, environment, math.ceil(self.patience + 8 * self.work), {'DIBS_MUTANT': str(mutant)})
        wrong = self.wait(process, limit)
        end_group(process)
        return 'hangs' if wrong in (None, -signal.SIGXCPU, -signal.SIGKILL) else wrong

    def wait(self, process, limit):
        """Its status; None: it is over the limit, or sleeps where nothing can wake it."""
        end, asleep = time.monotonic() + limit, 0
        while time.monotonic() < end and (self.timed or asleep < 5):
            try:
                return process.wait(timeout=self.interval)
            except subprocess.TimeoutExpired:
                asleep = asleep + 1 if sleeps(process.pid) else 0
        return None

    def cover(self, build, environment, count):
        """A run without a mutant: what it needs, and which sites it reaches. Returns what went wrong, or 0."""
        with tempfile.NamedTemporaryFile(prefix='dibs-mutants-') as marks:
            marks.truncate(count + 1)
            for _ in range(3 if self.timed else 1):
                began = time.monotonic()
                process = self.start(build, environment, 600, {'DIBS_MUTANT_SEEN': marks.name})
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                self.seconds, self.work = time.monotonic() - began, usage.ru_utime + usage.ru_stime
                end_group(process)
                if process.returncode == 0:
                    break
            with open(marks.name, 'rb') as f:
                self.seen = f.read()
        return process.returncode

    def kills(self, build, environment, mutant):
        wrong = self.run(build, environment, mutant)
        if wrong and (self.timed or wrong == 'hangs'):  # not the machine's doing
            wrong = self.run(build, environment, mutant)
        return wrong


def sleeps(pid):
    """All its threads wait for something; that they want a processor does not count."""
    states = []
    for path in glob.glob('/proc/%d/task/*/stat' % pid):
        try:
            with open(path) as f:
                states.append(f.read().rsplit(')', 1)[1].split()[0])
        except OSError:
            pass  # it has ended
    return all(s == 'S' for s in states)


def end_group(process):
    """A test may have left processes of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def cases(build, environment):
    """The names of the conformance cases: each is a killer of its own, with sites of its own."""
    out = subprocess.run([os.path.join(build, 'tests', SUITE[0])] + SUITE[1:], capture_output=True, text=True,
                         env=dict(os.environ, **environment)).stdout
    return sorted({line.split(' - ', 1)[1] for line in out.splitlines() if line.startswith(('ok', 'not ok'))
                   and ' - ' in line})


def all_killers(build, environment, quick):
    rest = [] if quick else LONG + [SUITE + [case] for case in cases(build, environment)]
    return [Killer(c) for c in QUICK + rest]
