"""The test programs that look for mutants: none needs a server. Running one, and what counts as a kill."""

import os
import signal
import subprocess
import tempfile
import time

QUICK = [['test_record'], ['test_cell_store'], ['test_cell'], ['test_sim', '1', '20'], ['test_cell_model'], ['test_state'],
         ['test_sim', '21', '180'], ['test_alloc'], ['test_losses']]
LONG = [['test_sim', '201', '1000'], ['test_model'], ['test_keeper']]
IN_REAL_TIME = ['test_alloc', 'test_losses', 'test_keeper', 'test_conformance']
SUITE = ['test_conformance', 'memory']
PROGRAMS = sorted({k[0] for k in QUICK + LONG} | {SUITE[0]})
MEMORY = 4 << 30


class Killer:
    """A program with arguments. One that runs in real time can fail because the machine is busy: `timed`."""

    patience = 10  # seconds of work beyond what it usually needs, and twice that on the wall clock

    def __init__(self, command):
        self.command, self.timed = command, command[0] in IN_REAL_TIME
        self.name = ' '.join(command)
        self.quick = command in QUICK
        self.seconds, self.seen = 0.0, b''

    def run(self, build, environment, mutant=None, marks=None):
        """(0 or what went wrong, seconds). A hang is a failure: its limits are many times what it usually needs."""
        limit, work = (2 * self.patience + 8 * self.seconds, self.patience + 8 * self.seconds) if mutant else (600, 600)
        command = ['prlimit', '--cpu=%d' % work, '--as=%d' % MEMORY, '--core=0',
                   os.path.join(build, 'tests', self.command[0])] + self.command[1:]
        env = dict(os.environ, **environment)
        if mutant:
            env['DIBS_MUTANT'] = str(mutant)
        if marks:
            env['DIBS_MUTANT_SEEN'] = marks
        began = time.monotonic()
        process = subprocess.Popen(command, env=env, cwd=build, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            wrong = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            wrong = 'hangs'
        try:
            os.killpg(process.pid, signal.SIGKILL)  # a test may have left processes of its own
        except ProcessLookupError:
            pass
        process.wait()
        return wrong, time.monotonic() - began

    def cover(self, build, environment, count):
        """One run without a mutant: how long it takes, and which sites it reaches."""
        with tempfile.NamedTemporaryFile(prefix='dibs-mutants-') as marks:
            marks.truncate(count + 1)
            for _ in range(3 if self.timed else 1):
                wrong, self.seconds = self.run(build, environment, marks=marks.name)
                if not wrong:
                    break
            with open(marks.name, 'rb') as f:
                self.seen = f.read()
        return wrong

    def kills(self, build, environment, mutant):
        wrong, _ = self.run(build, environment, mutant)
        if wrong and self.timed:  # not the machine's doing
            wrong, _ = self.run(build, environment, mutant)
        return wrong


def cases(build, environment):
    """The names of the conformance cases: each is a killer of its own, with sites of its own."""
    out = subprocess.run([os.path.join(build, 'tests', SUITE[0])] + SUITE[1:], capture_output=True, text=True,
                         env=dict(os.environ, **environment)).stdout
    return sorted({line.split(' - ', 1)[1] for line in out.splitlines() if line.startswith(('ok', 'not ok'))
                   and ' - ' in line})


def all_killers(build, environment, quick):
    rest = [] if quick else LONG + [SUITE + [case] for case in cases(build, environment)]
    return [Killer(c) for c in QUICK + rest]
