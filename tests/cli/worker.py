"""A command to run under a lock: worker.py LOG LABEL [OPTION...].

Appends `TIME LABEL start PID FENCE`, then a `beat` every 3 ms until it is ended, each line one write, with the
time of CLOCK_BOOTTIME: the last line tells how long it lived, however it died.

  seconds=N     end by itself after N seconds
  ignore-term   be deaf to SIGTERM
  child         start another worker LABEL-child in the same group
  stray         start another worker LABEL-stray in a session of its own
"""

import os
import signal
import sys
import time

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
label, options = sys.argv[2], sys.argv[3:]
seconds = next((float(o[8:]) for o in options if o.startswith('seconds=')), 60.0)


def write(what):
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(log, b'%.6f %s %s %d %s\n' % (now, label.encode(), what, os.getpid(),
                                           os.environ.get('DIBS_FENCE', '').encode() or b'-'))
    return now


def spawn(suffix, session):
    """True in the new process."""
    global label
    if os.fork() == 0:
        if session:
            os.setsid()
        label += suffix
        return True
    return False


if 'ignore-term' in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
born = 'child' in options and spawn('-child', False)
if 'stray' in options and not born:
    spawn('-stray', True)
end = write(b'start') + seconds
while write(b'beat') < end:
    time.sleep(0.003)
write(b'end')
