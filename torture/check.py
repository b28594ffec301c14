#!/usr/bin/env python3
"""torture-check: reads the history of a `dibs torture` run and decides whether it broke a promise.

It knows the files of a history (docs/torture.md describes them) and shares no code with the library. The rules are in
the folder `checker` beside this file. Exit code: 0 no violations, 1 violations, 2 the history is unusable.
"""

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from checker import (counters, deadlines, figures, history, locks, once, progress, report, resource,  # noqa: E402
                     run as shared, tokens)


class Rules:
    def __init__(self, run):
        self.coordinator = shared.Coordinator(run)
        self.locks = locks.Locks(run)
        self.resource = resource.Resource(run)
        self.once = once.Once(run)
        self.tokens = tokens.Tokens(run)
        self.counters = counters.Counters(run)
        self.progress = progress.Progress(run, self.locks)
        self.deadlines = deadlines.Deadlines(run, self.locks)
        self.figures = figures.Figures(run, self.locks)

    def all(self):
        return list(vars(self).values())


def check(folder, tolerance_ms=2000, skip=(), most=5):
    """The report as data. Raises history.Unusable."""
    if not os.path.isdir(folder):
        raise history.Unusable('%s is not a folder' % folder)
    run = shared.Run(history.read_meta(folder), tolerance_ms, skip, most)
    rules = Rules(run)
    history.read(folder, rules.all(), run)
    for rule in rules.all():
        rule.done()
    return report.as_data(run, rules, folder)


def read_arguments():
    names = set(shared.CHECKS) | {'%s.%s' % (rule, c) for rule, cs in shared.CHECKS.items() for c in cs}
    parser = argparse.ArgumentParser(prog='torture-check', description='Checks the history of a dibs torture run.')
    parser.add_argument('folder', help='the history folder')
    parser.add_argument('--json', action='store_true', help='print the report as JSON')
    parser.add_argument('--tolerance-ms', type=int, default=2000, metavar='N',
                        help='a call may overrun its bound by N ms on a loaded machine (default 2000)')
    parser.add_argument('--skip', action='append', default=[], metavar='RULE', choices=sorted(names),
                        help='do not check this rule; may be repeated. Rules: ' + ', '.join(sorted(shared.CHECKS)))
    parser.add_argument('--most', type=int, default=5, metavar='N', help='show N violations of each check (default 5)')
    args = parser.parse_args()
    if args.tolerance_ms < 0 or args.most < 0:
        parser.error('--tolerance-ms and --most must not be negative')
    return args


def main():
    args = read_arguments()
    try:
        data = check(args.folder, args.tolerance_ms, args.skip, args.most)
    except history.Unusable as e:
        if args.json:
            print(json.dumps({'format': 1, 'verdict': 'unusable', 'reason': str(e)}))
        print('torture-check: the history is unusable: %s' % e, file=sys.stderr)
        return 2
    print(json.dumps(data, indent=1) if args.json else report.as_text(data))
    return 1 if data['violations'] else 0


if __name__ == '__main__':
    sys.exit(main())
