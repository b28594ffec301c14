"""One cell of the matrix: an engine and one fault, or a mixture of faults, for some seconds; what came of it as data."""

import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import faults
import network
import promotions
import environment as rigs

HERE = os.path.dirname(os.path.abspath(__file__))
LEASE = 2.0
LAST_CALM = 2 * LEASE + 2  # of every run; see `dibs torture --help`
GRACE = 240                # seconds for what a run does beside its own time: opening, closing, checking


class Cell:
    """`lock`: 'dibs', or the name of another library that an adapter speaks for."""

    def __init__(self, engine, names, seconds, lock='dibs', adapter=None, title=None):
        self.engine, self.names, self.seconds, self.lock, self.adapter = engine, names, seconds, lock, adapter
        self.title = title or names[0]

    def label(self):
        return '%s %s' % (self.engine if self.lock == 'dibs' else self.lock.replace(' ', '-'), self.title)

    def span(self):
        """How long a fault may last, in a run that is long enough for it."""
        if len(self.names) > 1:
            return '0.5-%.1f' % min(3, max(1, self.seconds / 8))
        low, high = map(float, faults.BY_NAME[self.names[0]].seconds.split('-'))
        room = max(0.2, self.seconds - LAST_CALM - 3)
        return '%g-%g' % (min(low, room), min(high, room))


class Bench:
    """What the cells of one engine share: the network, the programs, where scratch and histories go."""

    def __init__(self, engine, options):
        self.engine, self.options = engine, options
        self.network, self.count = None, 0
        count = rigs.servers.ENGINES[engine][1]
        if count and not options.plain:
            self.network = network.Network(options.router, engine, count)

    def folder(self):
        self.count += 1
        return os.path.join(tempfile.gettempdir(), '%s%d-%s-%d' % (network.PREFIX, os.getpid(), self.engine, self.count))

    def environment(self, cell, seed):
        if self.options.plain:
            return rigs.PlainRig(cell.engine, self.folder())
        return rigs.Environment(cell.engine, self.folder(), self.network, cell.names, seed, self.options.clock)

    def stop(self):
        if self.network:
            self.network.stop()


def command(cell, environment, history, seed, options):
    chosen = [faults.BY_NAME[n] for n in cell.names]
    url = getattr(environment.setup, 'peer_url', environment.url) if cell.adapter else environment.url
    argv = [options.dibs, 'torture', '--url', url, '--seconds', str(cell.seconds), '--seed', str(seed), '--json',
            '--history', history, '--lease', '%dms' % (LEASE * 1000), '--fault-seconds', cell.span(),
            '--gap', '0.3-1.5', '--faults', ','.join(f.builtin or f.name for f in chosen)]
    for f in chosen:
        if not f.builtin:
            argv += ['--fault', '%s=%s -IS %s %s %s' % (
                f.name, sys.executable, os.path.join(HERE, 'fault_signal.py'), os.path.join(environment.folder, 'socket'), f.name)]
    return argv + (['--adapter', cell.adapter] if cell.adapter else [])


def end(process):
    """Also when we are being ended ourselves."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_torture(cell, environment, history, seed, options):
    """(exit code or None: it took too long, output, messages)"""
    deadline = time.monotonic() + cell.seconds + GRACE
    with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err:
        with environment.clients.inside():
            process = subprocess.Popen(
                command(cell, environment, history, seed, options), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, env={**os.environ, 'DIBS_TORTURE_CHECK': os.path.join(HERE, 'check.py')})
        try:
            in_time = environment.serve(process, lambda: deadline - time.monotonic())
        finally:
            end(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return (process.returncode if in_time else None, *texts)


def head(cell):
    return {'engine': cell.engine, 'lock': cell.lock, 'fault': cell.title, 'faults_of': cell.names,
            'excused': faults.excuses(cell.names, cell.engine) if cell.lock == 'dibs' else {}}


def without_result(cell, reason):
    return {**head(cell), 'error': reason}


def judge(cell, code, out, err):
    """The result as it is published. `violations` are of what is promised."""
    result = head(cell)
    excused = result['excused']
    if code not in (0, 1):
        return without_result(cell, '%s: %s' % (
            'it took too long' if code is None else 'exit code %d' % code, err[-1500:].strip()))
    data = json.loads(out)
    happened = sum(f['count'] for f in data['faults'].values())
    if cell.names != ['none'] and not happened:
        return without_result(cell, 'no fault happened in %.0f s: the run says nothing' % data['seconds'])
    broken = {k: n for k, n in data['counts'].items() if k.split('.')[0] not in excused}
    if code == 1 and not data['violations']:
        broken['workers.died'] = 1
    for key in ('seed', 'seconds', 'total_operations', 'grants', 'plain_writes', 'plain_losses', 'fenced_writes',
                'fenced_losses', 'fenced_refusals', 'worst_wait_after_fault_ms', 'worst_overrun_ms', 'faults', 'losses'):
        result[key] = data[key]
    result.update(
        violations=sum(broken.values()), broken=broken,
        expected={k: n for k, n in data['counts'].items() if k not in broken},
        found=[f['what'] for f in data['found'] if f['check'] in broken][:5], messages=err[-1500:].strip())
    return result


def failed(result):
    return bool(result.get('error') or result['violations'] and result['lock'] == 'dibs')


def keep(history, cell, result, options):
    """The history of what went wrong is kept, and every one when the user says where; as an archive, to be published."""
    if options.archive and os.path.isdir(history):
        os.makedirs(options.archive, exist_ok=True)
        name = cell.label().replace(' ', '-')
        with tarfile.open(os.path.join(options.archive, name + '.tar.xz'), 'w:xz') as archive:
            archive.add(history, name)
    if not (options.keep or failed(result)) or not os.path.isdir(history):
        return
    parent = options.keep or os.path.join(tempfile.gettempdir(), 'dibs-histories')
    os.makedirs(parent, exist_ok=True)
    target = os.path.join(parent, '%s-%s-%s' % (cell.label().replace(' ', '-'), result.get('seed', 'error'), os.getpid()))
    shutil.copytree(history, target, dirs_exist_ok=True)
    if failed(result):
        os.makedirs(os.path.join(target, 'servers'), exist_ok=True)
        for log in glob.glob(os.path.join(os.path.dirname(history), '**', '*log'), recursive=True):
            if os.path.isfile(log):
                shutil.copy(log, os.path.join(target, 'servers', os.path.relpath(log, os.path.dirname(history)).replace('/', '-')))
    result['history'] = target


def run(bench, cell, seed):
    """Never raises for what a server or a fault did: that is the cell's result."""
    started = time.monotonic()
    environment = None
    try:
        environment = bench.environment(cell, seed)
        history = os.path.join(environment.folder, 'history')
        watch = promotions.Watch(environment.setup.nodes if cell.engine in faults.WATCHED and not bench.options.plain else [])
        try:
            said = run_torture(cell, environment, history, seed, bench.options)
        finally:
            moments = watch.stop()
        result = judge(cell, *said)
        if moments and 'error' not in result:
            result['promotions'] = promotions.figures(history, moments)
        keep(history, cell, result, bench.options)
    except (OSError, AssertionError, ValueError, rigs.servers.databases.Missing) as e:
        result = without_result(cell, '%s: %s' % (type(e).__name__, e))
    finally:
        if environment:
            with contextlib.suppress(OSError):
                environment.stop()
    result['load'] = round(os.getloadavg()[0], 1)  # on a machine that is far behind, waits say little
    result['took'] = round(time.monotonic() - started, 1)
    return result
