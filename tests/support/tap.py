"""Test programs in Python that speak TAP: a list of (name, function, arguments...) is run one by one."""

import os
import subprocess
import sys
import time
import traceback

import databases


def wait_for(condition, what, seconds=30):
    """Looks until `condition` gives something true, and returns that."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, 'waited %d s in vain for %s' % (seconds, what)
        time.sleep(0.01)


def run_one(function, *args):
    """(word of the TAP line, remark, diagnostics)"""
    try:
        function(*args)
        return 'ok', '', ''
    except databases.Missing as e:
        required = os.environ.get('CI') or os.environ.get('DIBS_TEST_REQUIRE_SERVERS')
        return ('not ok', '', str(e)) if required else ('ok', ' # SKIP %s' % e, '')
    except Exception as e:  # whatever it is, it is this test's failure and not the run's end
        said = e.stderr if isinstance(e, subprocess.SubprocessError) else ''
        return 'not ok', '', traceback.format_exc() + str(said or '')


def run(tests):
    """The program's exit code."""
    failed = False
    print('1..%d' % len(tests), flush=True)
    for number, (name, *call) in enumerate(tests, 1):
        start = time.monotonic()
        word, remark, notes = run_one(*call)
        for line in notes.splitlines():
            print('# ' + line)
        print('# %.1f s' % (time.monotonic() - start))
        print('%s %d - %s%s' % (word, number, name, remark), flush=True)
        failed = failed or word != 'ok'
    return 1 if failed else 0


def end_on_sigterm():
    """So that servers are stopped when the run is."""
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
