"""Reads a history folder and gives each event to the rules that subscribed to its kind.

Files are read as streams: `faults.jsonl` first (the rules need to know who was stopped and killed), then the workers,
then `resource.jsonl`, whose order of lines is the order of what happened. Every event gets a key "at": (file, line).
A history that cannot be read raises Unusable. A last line without its newline is left out: its worker was killed.
"""

import json
import os
import re
import sys

WORKER_FILE = re.compile(r'^worker-(\d+)\.jsonl$')
META_NUMBERS = ('lease_ms', 'request_ms', 'begin', 'calm', 'end')
KNOWN = {
    'worker': {'start', 'opened', 'open_failed', 'closed', 'end', 'ask', 'got', 'not', 'held', 'lost', 'release', 'write', 'begin',
               'finish', 'fail', 'abandon', 'issue', 'redeem', 'add', 'take'},
    'faults': {'begin', 'end', 'spawn', 'exit'},
    'resource': {'raise', 'store', 'read', 'effect', 'final', 'final_counter', 'final_key'},
}


class Unusable(Exception):
    """The history is incomplete or damaged: nothing can be said about the run."""


def worker_of(event):
    """The number of the worker that wrote this event."""
    return int(event['at'][0][7:-6])


def read_meta(folder):
    path = os.path.join(folder, 'meta.json')
    try:
        with open(path, encoding='utf-8') as f:
            meta = json.load(f)
    except (OSError, ValueError) as e:
        raise Unusable('cannot read meta.json: %s' % e)
    if not isinstance(meta, dict) or meta.get('format') != 1:
        raise Unusable('meta.json: "format" is not 1: written by another version')
    for key in META_NUMBERS:
        if isinstance(meta.get(key), bool) or not isinstance(meta.get(key), (int, float)):
            raise Unusable('meta.json: "%s" is missing: the run did not end, or another program wrote it' % key)
    if not isinstance(meta.get('locks'), list) or not isinstance(meta.get('work'), list):
        raise Unusable('meta.json: "locks" and "work" must be lists')
    return meta


def worker_files(folder):
    found = sorted((int(m.group(1)), m.group(0)) for m in map(WORKER_FILE.match, os.listdir(folder)) if m)
    if not found:
        raise Unusable('there is no worker-NNNN.jsonl: no worker ran')
    return [name for _, name in found]


def parse(line, torn_allowed):
    """The event of a line; None for the torn last line of a worker that was killed."""
    try:
        event = json.loads(line)
    except ValueError:
        if torn_allowed and not line.endswith('\n'):
            return None
        raise Unusable('not a JSON object')
    if not isinstance(event, dict) or 't' not in event or 'ev' not in event:
        raise Unusable('not an event: no "t" or no "ev"')
    return event


def feed(folder, name, part, handlers, run):
    """Gives every event of one file to its handlers. Returns how many there were."""
    number, known = 0, KNOWN[part]
    try:
        with open(os.path.join(folder, name), encoding='utf-8', errors='replace') as f:
            for number, line in enumerate(f, 1):
                event = parse(line, part == 'worker')
                if event is None:
                    return number - 1
                kind = event['ev']
                event['at'] = (name, number)
                if kind not in known:
                    run.unknown_events[sys.intern(str(kind))] = run.unknown_events.get(kind, 0) + 1
                for handler in handlers.get(kind, ()):
                    handler(event)
    except OSError as e:
        raise Unusable('cannot read %s: %s' % (name, e.strerror))
    except Unusable as e:
        raise Unusable('%s:%d: %s' % (name, number, e))
    except KeyError as e:
        raise Unusable('%s:%d: the event has no field %s, or refers to something that never began' % (name, number, e))
    except TypeError as e:
        raise Unusable('%s:%d: a field has a value of the wrong type (%s)' % (name, number, e))
    return number


def subscribe(rules, part):
    handlers = {}
    for rule in rules:
        for kind, handler in rule.handlers().get(part, {}).items():
            handlers.setdefault(kind, []).append(handler)
    return handlers


def read(folder, rules, run):
    """Reads everything, in the order that the rules rely on."""
    lines = feed(folder, 'faults.jsonl', 'faults', subscribe(rules, 'faults'), run)
    run.faults_read()
    of_workers = subscribe(rules, 'worker')
    for name in worker_files(folder):
        lines += feed(folder, name, 'worker', of_workers, run)
    lines += feed(folder, 'resource.jsonl', 'resource', subscribe(rules, 'resource'), run)
    run.lines = lines


def fetch_lines(folder, places):
    """The text of the lines that a report shows: {(file, line): text}."""
    text = {}
    for name in {name for name, _ in places}:
        wanted = {number for file, number in places if file == name}
        with open(os.path.join(folder, name), encoding='utf-8', errors='replace') as f:
            for number, line in enumerate(f, 1):
                if number in wanted:
                    text[name, number] = line.rstrip('\n')
    return text
