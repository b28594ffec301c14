"""From results to documents: guarantees.json is the data, guarantees.md and guarantees.html are made of it alone."""

import collections
import json
import os
import subprocess

import faults
import page

FORMAT = 1


def counted(counts):
    return ', '.join('%s %d' % item for item in sorted(counts.items()))


def key(result):
    return result['lock'], result['engine'], result['fault']


def failure(result):
    """What is kept of a run that failed when the cell is run again."""
    return {k: result[k] for k in ('date', 'version', 'seed', 'seconds', 'load', 'broken', 'found', 'error', 'note') if k in result}


def merge(old, new):
    """New results replace old ones of the same cell; what is no longer in the table goes. A failed run is never forgotten by
    running the cell again: it stays in `earlier`."""
    known = {key(r): r for r in old if r['fault'] in faults.BY_NAME}
    for r in new:
        before = known.get(key(r))
        if before is not None and before is not r:
            failed = before['lock'] == 'dibs' and ('error' in before or before['violations'])
            earlier = before.get('earlier', []) + ([failure(before)] if failed else [])
            if earlier:
                r['earlier'] = earlier + r.get('earlier', [])
        known[key(r)] = r
    order = {name: i for i, name in enumerate([*faults.ALL, *faults.COUNTED, *faults.BY_NAME])}
    return sorted(known.values(), key=lambda r: (r['lock'] != 'dibs', order[r['engine']], r['lock'], order[r['fault']]))


def version():
    """Of the sources, as git names it."""
    done = subprocess.run(['git', '-C', os.path.dirname(os.path.abspath(__file__)), 'describe', '--always', '--tags'],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or 'unknown'


def write(folder, results, date):
    path = os.path.join(folder, 'guarantees.json')
    os.makedirs(folder, exist_ok=True)
    old = []
    if os.path.exists(path):
        with open(path) as f:
            old = json.load(f)['cells']
    for r in results:
        r.update(date=date, version=version())
        for local in ('history', 'messages', 'took'):  # of no use elsewhere
            r.pop(local, None)
    data = {'format': FORMAT, 'cells': merge(old, results)}
    with open(path, 'w') as f:
        json.dump(data, f, indent=1)
        f.write('\n')
    for name, make in (('guarantees.md', as_markdown), ('guarantees.html', page.as_html)):
        with open(os.path.join(folder, name), 'w') as f:
            f.write(make(Report(data['cells'])))


class Report:
    """What both documents say, in words."""

    def __init__(self, cells):
        self.cells = cells
        self.ours = {(r['engine'], r['fault']): r for r in cells if r['lock'] == 'dibs'}
        self.peers = [r for r in cells if r['lock'] != 'dibs']
        self.faults = faults.FAULTS
        self.engines = [*faults.ALL, *(e for e in faults.COUNTED if any(e == r['engine'] for r in self.ours.values()))]

    def sums(self):
        ran = [r for r in self.ours.values() if 'error' not in r]
        return {'cells': len(ran), 'seconds': sum(r['seconds'] for r in ran),
                'operations': sum(r['total_operations'] for r in ran), 'grants': sum(r['grants'] for r in ran),
                'faults': sum(f['count'] for r in ran for f in r['faults'].values()), 'faulty': sum(map(faulty_seconds, ran)),
                'violations': sum(r['violations'] for r in ran), 'errors': len(self.ours) - len(ran),
                'expected': sum(sum(r['expected'].values()) for r in ran),
                'plain': sum(r['plain_losses'] for r in ran), 'fenced': sum(r['fenced_losses'] for r in ran)}

    def repeated(self):
        """(engine, fault, what failed, note) of earlier runs of cells that were run again."""
        return [(r['engine'], r['fault'], counted(e['broken']) if e.get('broken') else 'no result: ' + e.get('error', '')[:160],
                 e.get('note', 'cause not established')) for r in self.ours.values() for e in r.get('earlier', [])]

    def origins(self):
        """Of which version, and when: '145 runs of 174c7d4 on 2026-11-18', the largest first."""
        counts = collections.Counter((r.get('version', 'unknown'), r['date']) for r in self.ours.values())
        return ', '.join('%d run%s of %s on %s' % (n, 's' * (n > 1), *of) for of, n in counts.most_common())

    def left_out(self):
        """(fault, engines, reason)"""
        reasons = {}
        for f in faults.FAULTS:
            for engine, reason in f.not_run.items():
                reasons.setdefault((f.name, reason), []).append(engine)
        return [(name, ', '.join(engines), reason) for (name, reason), engines in reasons.items()]

    def state(self, engine, fault):
        """(class, short text, long text) of a cell."""
        result = self.ours.get((engine, fault.name))
        if result is None:
            if engine not in fault.engines:
                return 'none', '–', 'Left out: %s.' % fault.not_run[engine] if engine in fault.not_run else \
                    'This fault does not exist on this engine.'
            return 'missing', 'not run', 'It applies, but no run is published.'
        return state(result)


def state(result):
    if 'error' in result:
        return 'missing', 'no result', result['error']
    if result['violations']:
        return 'broke', 'violated %d' % result['violations'], counted(result['broken']) + ': ' + ' '.join(result['found'])
    if result['expected']:
        return 'open', 'not promised: %d' % sum(result['expected'].values()), '%s. %s' % (
            counted(result['expected']), '; '.join(sorted(set(result['excused'].values()))))
    if result['excused']:
        return 'open', 'not promised: 0', 'Nothing happened in this run, but it may: %s' % (
            '; '.join(sorted(set(result['excused'].values()))))
    return 'kept', 'kept', 'No violation.'


def milliseconds(value):
    if value is None:
        return '–'
    return '%d ms' % value if value < 1000 else '%.1f s' % (value / 1000)


def faulty_seconds(result):
    """For how long a fault was in force. Two at once count twice."""
    return sum(f['seconds'] for f in result['faults'].values())


def promise(result):
    """What is promised under this fault."""
    if result['lock'] != 'dibs':
        return ''
    return 'all' if not result['excused'] else 'all but ' + ', '.join(sorted(result['excused']))


HEAD = ('fault', 'promised', 's', 'faulty s', 'operations', 'grants', 'violations', 'not promised, seen', 'wait after', 'overrun',
        'unfenced lost', 'fenced lost')


def figures(result):
    """One row of a table, in the order of HEAD."""
    if 'error' in result:
        return [result['fault'], promise(result), 'no result: ' + result['error'][:200].replace('\n', ' ')] + [''] * 9
    return [result['fault'], promise(result), '%.0f' % result['seconds'], '%.1f' % faulty_seconds(result),
            '{:,}'.format(result['total_operations']), '{:,}'.format(result['grants']), counted(result['broken']) or '0', counted(result['expected']) or '0',
            milliseconds(result['worst_wait_after_fault_ms']), milliseconds(result['worst_overrun_ms']),
            '%d of %d' % (result['plain_losses'], result['plain_writes']),
            '%d of %d' % (result['fenced_losses'], result['fenced_writes'])]


INTRO = '''Each cell is a run of `dibs torture` on private servers, each in a network namespace of its own: eight processes take
locks, idempotency keys, tokens and counters while one fault happens again and again. Everything is recorded, and an
independent checker reads the record ([torture.md](torture.md) describes both, and how to run it on your own servers).
`./dev torture` repeats all of it and writes this page.'''

TERMS = [
    ('kept', 'Everything is promised under this fault, and the checker found no violation.'),
    ('not promised: n', 'The page of the engine says that something is not promised here, usually that two may hold at the same '
     'time; n such events were seen. Fences and fenced writes are promised all the same, and were kept.'),
    ('violated n', 'Something that is promised was violated. A published page should have none.'),
    ('–', 'The fault does not exist on this engine, or is left out there: the reasons are listed with the faults.'),
    ('not run', 'The fault applies, but no run of it is published: the cell says nothing, neither good nor bad.'),
]
COLUMNS = [
    ('faulty s', 'for how many of the seconds a fault was in force; the rest is the calm before, between and after. A fault that is '
     'over at once (a kill, a cut) counts nearly nothing'),
    ('wait after', 'the longest time from the end of a fault to the next grant of a lock. A lease is 2 s'),
    ('overrun', 'how much longer than its limit the slowest call took. The machine was busy with all servers and clients'),
    ('unfenced lost', 'updates that were lost by a writer that holds a lock and does not present its fence, of all that were '
     'stored: what a lock alone cannot prevent, and no violation'),
    ('fenced lost', 'the same with the fence checked by the store: always a violation'),
]


def cell(text):
    return str(text).replace('|', '\\|').replace('\n', ' ')


def table(head, rows):
    yield '| ' + ' | '.join(map(cell, head)) + ' |'
    yield '|' + '---|' * len(head)
    for row in rows:
        yield '| ' + ' | '.join(map(cell, row)) + ' |'


def markdown_parts(report):
    sums = report.sums()
    yield from ('# Guarantees: what was promised, and what was seen', '', INTRO, '')
    yield ('**{cells} runs, {seconds:,.0f} seconds, {faults:,} faults that were in force for {faulty:,.0f} seconds, {operations:,} operations, {grants:,} grants: {violations} '
           'violations of what is promised.** Without the fence {plain:,} updates were lost, with it {fenced}. Seen where it '
           'is not promised: {expected:,} events.').format(**sums)
    if report.repeated():
        yield from ('', 'These figures are of the last run of each cell. %d earlier runs failed and the cells were run again: see '
                    '[below](#runs-that-failed-and-were-repeated).' % len(report.repeated()))
    yield from ('', 'Versions as git names them: %s.' % report.origins())
    yield from ('', 'The same as a picture: [guarantees.html](guarantees.html); as data: [guarantees.json](guarantees.json). '
                'The raw histories of some of these runs are in [histories](histories), one archive each (`--archive FOLDER` writes '
                'them): check them with a checker of your own.', '',
                '## Engine and fault', '')
    yield from table(['fault', *report.engines],
                     [[f.name, *(report.state(e, f)[1] for e in report.engines)] for f in report.faults])
    yield ''
    yield from ('- **%s**: %s' % term for term in TERMS)
    yield from ('', '## The faults', '')
    yield from ('- `%s`: %s.' % (f.name, f.title) for f in faults.FAULTS)
    yield from ('', 'Left out, although one can think of them there:', '')
    yield from ('- `%s` on %s: %s.' % row for row in report.left_out())
    yield from ('', '## Figures', '')
    yield from ('- **%s**: %s.' % term for term in COLUMNS)
    for engine in report.engines:
        yield from ('', '### ' + engine, '')
        yield from table(HEAD, [figures(r) for r in report.ours.values() if r['engine'] == engine])
        reasons = sorted({(f.name, f.excuses[engine][1]) for f in faults.FAULTS if engine in f.excuses})
        if reasons:
            yield from ('', 'Not everything is promised: ' + '; '.join('`%s`: %s' % r for r in reasons) + '.')
    if report.repeated():
        yield from ('', '## Runs that failed and were repeated', '', 'A cell above shows its last run. Before it:', '')
        yield from table(('engine', 'fault', 'what failed', 'cause'), report.repeated())
    yield from peer_parts(report)


def of_peer(row):
    """They promise nothing of ours: those two columns are left out."""
    return [value for name, value in zip(HEAD, row) if name not in ('promised', 'not promised, seen')]


def peer_head():
    return ['library', 'engine', *of_peer(HEAD)]


def peer_rows(report):
    return [[r['lock'], r['engine'], *of_peer(figures(r))] for r in report.peers]


def peer_parts(report):
    if not report.peers:
        return
    yield from ('', '## Other libraries', '', 'The same runs, locks only, through the adapters in `torture/adapters`. They promise '
                'less, or nothing, under most of these faults; the table shows what each did. Failed runs of theirs were not repeated, as '
                'those of dibs were: on a busy machine their `deadlines` and `progress` counts may be the machine\'s.', '')
    yield from table(peer_head(), peer_rows(report))


def as_markdown(report):
    return '\n'.join(markdown_parts(report)) + '\n'

