#!/usr/bin/env python3
"""Puts the lab's figures into a page: choosing.py REPORT.json PAGE.in.md [--check PAGE.md]

docs/lab/choosing.in.md becomes docs/choosing.md, docs/lab/rows.in.md becomes docs/lab/rows.md.

Prints the page; with --check says whether PAGE.md is that. What stands in {{…}}:
  about                          the plan and the machine
  run STRATEGY FIELD             a figure of a run, or its verdict
  sum FIELD STRATEGY...          of all these runs
  fastest STRATEGY OTHER...      "the fastest", or who is faster
  ratio STRATEGY OTHER FIELD     the first divided by the second
  hazard STRATEGY HAZARD         what happened, in words
  outcome STRATEGY HAZARD        "survived", "not run", or what was damaged, as in the report's matrix
  exp EXPERIMENT                 what was found, in words
  find exp EXPERIMENT REGEX      one figure of that text, or of a hazard's: what the regex's group matches
  find hazard STRATEGY HAZARD REGEX
  confirmed A > B [and C > D]    "confirmed" or "refuted"; A and B are `run S F`, `exp E WORD` (the
                                 number before the word), `hazard S:H broke` (1 if it did) or `just N -`
A figure that is not in the report, or that a regex does not find, is an error."""

import json
import re
import sys


class Report:
    def __init__(self, path):
        with open(path) as f:
            self.data = json.load(f)
        self.runs = {r['name']: r for r in self.data['runs']}
        self.hazards = {(h['strategy'], h['hazard']): h for h in self.data['hazards']}
        self.experiments = {e['experiment']: e for e in self.data['experiments']}

    def number(self, kind, name, field):
        if kind == 'run':
            value = self.runs[name][field]
        elif kind == 'just':
            value = int(name)
        elif kind == 'hazard':
            value = int(self.hazards[tuple(name.split(':'))]['outcome'] == 'BROKE')
        else:  # "of 16 requests with one token at the same moment 1 passed"
            value = int(re.search(r'(\d+) %s\b' % field, self.experiments[name]['text']).group(1))
        if value is None:
            raise KeyError('%s: the servers did not tell its %s' % (name, field))
        return value


def shown(field, value):
    if isinstance(value, str):
        return value
    if field.endswith('_us'):
        return '%.1f ms' % (value / 1000) if value >= 100 else '%.2f ms' % (value / 1000)
    if field.endswith('_per_sale'):
        return '%.1f' % value
    return '{:,.0f}'.format(value)


def outcome(h):
    if h['outcome'] != 'BROKE':
        return h['outcome'].replace('not applicable', 'not run')
    if h['oversold']:
        return '**oversold**'
    if h['stuck_ms'] == 'for ever':
        return '**stuck**'
    if h['foreign']:
        return "**deleted another client's lock**"
    if (h['at_once'] or 0) > 1:
        return '**two holders**'
    return '**held by nobody for a lease**' if h['stuck_ms'] else '**stuck**'


def find(text, regex):
    """One figure of a sentence. What follows `find` has lost nothing but doubled spaces."""
    match = re.search(regex, text)
    if not match:
        raise KeyError('no %r in %r' % (regex, text))
    figure = match.group(1)
    return shown('', int(figure)) if figure.isdigit() else figure


def fastest(report, names):
    speed = {n: report.number('run', n, 'per_second') for n in names}
    best = max(names, key=speed.get)
    return 'the fastest' if best == names[0] else 'not the fastest (%s makes %s)' % (best, shown('', speed[best]))


def confirmed(report, words):
    """A > B, seven words, and so on with `and`."""
    for i in range(0, len(words), 8):
        if len(words) < i + 7 or words[i + 3] != '>' or words[i + 7:i + 8] not in ([], ['and']):
            raise KeyError('{{confirmed %s}} means nothing' % ' '.join(words))
        if not report.number(*words[i:i + 3]) > report.number(*words[i + 4:i + 7]):
            return 'refuted'
    return 'confirmed'


def fill(report, words):
    kind = words[0]
    if kind == 'about':
        return report.data['about']
    if kind == 'run':
        return shown(words[2], report.number(*words))
    if kind == 'ratio':
        ratio = report.number('run', words[1], words[3]) / report.number('run', words[2], words[3])
        return '%.0f' % ratio if ratio >= 10 else '%.1f' % ratio if ratio >= 0.95 else '%.2f' % ratio
    if kind == 'hazard':
        return report.hazards[words[1], words[2]]['text']
    if kind == 'outcome':
        return outcome(report.hazards[words[1], words[2]])
    if kind == 'find' and words[1] == 'exp':
        return find(report.experiments[words[2]]['text'], ' '.join(words[3:]))
    if kind == 'find':
        return find(report.hazards[words[2], words[3]]['text'], ' '.join(words[4:]))
    if kind == 'exp' and len(words) == 2:
        return report.experiments[words[1]]['text']
    if kind == 'sum':
        return shown(words[1], sum(report.number('run', n, words[1]) for n in words[2:]))
    if kind == 'fastest':
        return fastest(report, words[1:])
    if kind == 'confirmed':
        return confirmed(report, words[1:])
    raise KeyError('{{%s}} means nothing' % ' '.join(words))


def main(args):
    if len(args) not in (2, 4) or (len(args) == 4 and args[2] != '--check'):
        sys.exit(__doc__)
    report = Report(args[0])
    with open(args[1]) as f:
        template = f.read()
    page = re.sub(r'\{\{(.*?)\}\}', lambda m: fill(report, m.group(1).split()), template)
    if len(args) == 2:
        sys.stdout.write(page)
        return
    with open(args[3]) as f:
        if f.read() != page:
            sys.exit('%s is not what %s and %s make: run ./dev lab, or scripts/choosing.py' % (args[3], args[0], args[1]))


if __name__ == '__main__':
    main(sys.argv[1:])
