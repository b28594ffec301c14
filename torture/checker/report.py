"""The report: as text for people, as JSON for programs."""

from . import history
from .run import MS


def as_data(run, rules, folder):
    """Everything that a program may want to know. Events are given as {file, line, text}."""
    places = {p for v in run.violations for p in v.places}
    text = history.fetch_lines(folder, places)
    figures, resource, deadlines, progress = rules.figures, rules.resource, rules.deadlines, rules.progress
    waits = figures.waits_after_faults()
    return {
        'format': 1,
        'verdict': 'fail' if run.counts else 'pass',
        'violations': sum(run.counts.values()),
        'counts': run.counts,
        'found': [{'check': v.check, 'what': v.what,
                   'events': [{'file': p[0], 'line': p[1], 'text': text.get(p, '')} for p in v.places]}
                  for v in run.violations],
        'seed': run.meta.get('seed'),
        'engine': run.meta.get('engine'),
        'adapter': run.meta.get('adapter'),
        'seconds': round((run.end - run.meta['begin']) / 1e9, 1),
        'lines': run.lines,
        'workers': len(run.workers),
        'operations': figures.operations,
        'total_operations': sum(n for statuses in figures.operations.values() for n in statuses.values()),
        'grants': figures.operations.get('lock', {}).get('OK', 0),
        'losses': figures.losses,
        'samples': figures.samples,
        'faults': figures.faults(),
        'plain_writes': sum(n for (_, fenced), n in resource.stores.items() if not fenced),
        'plain_losses': resource.plain_losses(),
        'fenced_writes': sum(n for (_, fenced), n in resource.stores.items() if fenced),
        'fenced_losses': run.counts.get('fenced.lost', 0),
        'fenced_refusals': resource.refusals,
        'waits_after_faults_ms': waits,
        'worst_wait_after_fault_ms': max(waits.values(), default=None),
        'worst_calm_wait_ms': round(progress.worst_wait / MS, 1),
        'worst_overrun_ms': round(deadlines.worst / MS, 1) if deadlines.worst else 0,
        'worst_overrun_at': '%s:%d' % deadlines.worst_at if deadlines.worst_at else None,
        'skipped': sorted(run.skip),
        'unknown_events': run.unknown_events,
    }


def counts(table):
    return ', '.join('%s %d' % (name, table[name]) for name in sorted(table)) or 'none'


def figures_text(data):
    yield 'engine %s, seed %s, %.1f s, %d workers, %d lines' % (
        data['adapter'] or data['engine'], data['seed'], data['seconds'], data['workers'], data['lines'])
    yield 'operations: %d' % data['total_operations']
    for kind in sorted(data['operations']):
        yield '  %-8s %s' % (kind, counts(data['operations'][kind]))
    yield 'losses reported: ' + counts(data['losses'])
    yield 'faults: ' + (', '.join('%s %d (%.1f s)' % (name, f['count'], f['seconds'])
                                  for name, f in sorted(data['faults'].items())) or 'none')
    yield 'fenced writes: %d stored, %d refused, %d lost' % (
        data['fenced_writes'], data['fenced_refusals'], data['fenced_losses'])
    yield 'plain writes:  %d stored, %d lost (no fence: not a violation)' % (data['plain_writes'], data['plain_losses'])
    if data['worst_wait_after_fault_ms'] is not None:
        yield 'longest time from the end of a fault to the next grant: ' + ', '.join(
            '%s %.0f ms' % item for item in sorted(data['waits_after_faults_ms'].items()))
    yield 'longest wait after the last fault: %.0f ms' % data['worst_calm_wait_ms']
    yield 'worst deadline overrun: %.0f ms%s' % (
        data['worst_overrun_ms'], ' (%s)' % data['worst_overrun_at'] if data['worst_overrun_at'] else '')
    if data['skipped']:
        yield 'not checked: ' + ', '.join(data['skipped'])
    if data['unknown_events']:
        yield 'events of an unknown kind, not checked: ' + counts(data['unknown_events'])


def violations_text(data):
    for found in data['found']:
        yield ''
        yield 'VIOLATION %s: %s' % (found['check'], found['what'])
        for event in found['events']:
            yield '  %s:%d: %s' % (event['file'], event['line'], event['text'])
    for check, number in sorted(data['counts'].items()):
        shown = sum(f['check'] == check for f in data['found'])
        if number > shown:
            yield ''
            yield '%s: %d more (--most shows them)' % (check, number - shown)


def as_text(data):
    lines = list(figures_text(data)) + list(violations_text(data)) + ['']
    if data['violations']:
        lines.append('FAIL: %d violations: %s' % (data['violations'], counts(data['counts'])))
    else:
        lines.append('PASS: no violations')
    return '\n'.join(lines)
