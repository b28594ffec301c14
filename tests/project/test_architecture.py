#!/usr/bin/env python3
"""docs/architecture.md can be followed: every file and every name in it exists, a name with a file behind it is defined
there, and the calls that it tells of are made.

    test_architecture.py --source SOURCE
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests/support'))
import tap  # noqa: E402

# Where a path of the page may begin.
BASES = ['', 'src', 'src/engines/redis', 'include']
# Of the three walks: a file, a function of it, and what that reaches without leaving the file.
STEPS = [
    ('core/lock.c', 'dibs__do_lock', ['lock_once', 'prepare', 'wait_for', 'dibs__ticket_enter', 'dibs__grant_new',
                                      'dibs__grant_deliver']),
    ('core/ticket.c', 'dibs__ticket_enter', ['class->enter', 'dibs__ticket_answer']),
    ('core/ticket.c', 'dibs__ticket_answer', ['dibs__grant_hold', 'dibs__ticket_settle']),
    ('engines/redis/lock.c', 'dibs__redis_enter', ['dibs__redis_ask_one', 'dibs__redis_read_reply']),
    ('engines/redis/ask.c', 'dibs__redis_ask_one', ['dibs__pipeline_call']),
    ('core/ticket.c', 'dibs__ticket_await', ['class->events', 'dibs__reader_lead']),
    ('core/keeper.c', 'serve_due', ['class->keep']),
    ('core/unlock.c', 'dibs__do_unlock', ['class->release']),
    ('state/lock.c', 'serve_queue', ['hand_over']),
    ('engines/redis/event.c', 'dibs__redis_events', ['sink->granted', 'sink->changed', 'sink->check_all']),
    ('core/sink.c', 'on_granted', ['dibs__ticket_handed']),
    ('core/ticket.c', 'dibs__ticket_handed', ['dibs__grant_hold', 'dibs__ticket_settle']),
    ('recipes/once.c', 'dibs__do_once_begin', ['ask', 'try_take', 'judge', 'read_theirs', 'dibs__cell_do', 'dibs__run_begin']),
    ('recipes/cell.c', 'dibs__cell_do', ['class->cell']),
    ('recipes/finish.c', 'dibs__do_once_finish', ['dibs__run_write']),
]


def spans(text):
    """What stands in `code` in the page, without the drawings, and the file in brackets behind it or None."""
    text = re.sub(r'```.*?```', '', text, flags=re.DOTALL)
    for m in re.finditer(r'`([^`\n]+)`(?:\**\s+(?:\(|in )`([^`\n]+\.(?:c|h|lua))`)?', text):
        yield m.group(1), m.group(2)


def find(path):
    for base in BASES:
        if (ROOT / base / path).exists():
            return ROOT / base / path
    return None


def is_path(span):
    return re.fullmatch(r'[\w.]+(/[\w.]*)+|[\w]+\.(c|h|py|lua|md)', span) and 'NAME' not in span


def is_name(span):
    return re.fullmatch(r'[a-z]\w*_\w+', span)


def functions(file):
    """name: body"""
    return {m.group(1): m.group(2) for m in
            re.finditer(r'^\w[^;{}#]*?\b(\w+) ?\([^;{}]*\)\n\{\n(.*?)^\}', file.read_text(), re.DOTALL | re.MULTILINE)}


def reach(all_of_file, name):
    """The body of a function, with those of the functions of its file that it comes to."""
    seen, todo = {}, [name]
    while todo:
        at = todo.pop()
        if at in all_of_file and at not in seen:
            seen[at] = all_of_file[at]
            todo += re.findall(r'\b(\w+)\b', all_of_file[at])
    return '\n'.join(seen.values())


def defines(file, name):
    text = file.read_text()
    return name in functions(file) or re.search(
        r'(?:function|struct|typedef struct) %s\b|\} %s;|^#define \w+\(.*\b%s\b' % ((re.escape(name),) * 3), text, re.MULTILINE)


def the_page():
    return (ROOT / 'docs/architecture.md').read_text()


def test_paths():
    paths = {p for span in spans(the_page()) for p in span if p and is_path(p)}
    assert len(paths) > 40, sorted(paths)
    absent = sorted(p for p in paths if not find(p) and not list((ROOT / 'src').glob('*/' + p)))
    assert not absent, 'named on the page, and not there: %s' % ', '.join(absent)


def test_names():
    code = '\n'.join(f.read_text() for room in ('src', 'include') for f in (ROOT / room).rglob('*.[chl]*')
                     if f.suffix in ('.c', '.h', '.lua'))
    words = set(re.findall(r'\w+', code))
    names = {name for name, _ in spans(the_page()) if is_name(name)}
    assert len(names) > 30, sorted(names)
    absent = sorted(names - words)
    assert not absent, 'named on the page, and not in the code: %s' % ', '.join(absent)


def test_files_of_names():
    pairs = [(name, file) for name, file in spans(the_page()) if file and re.fullmatch(r'(struct )?\w+', name)]
    assert len(pairs) > 15, pairs
    wrong = ['%s (%s)' % p for p in pairs if not defines(find(p[1]), p[0].replace('struct ', ''))]
    assert not wrong, 'not defined where the page says: %s' % ', '.join(wrong)


def test_steps():
    page = the_page()
    for path, name, reached in STEPS:
        assert name in page, '%s is not on the page' % name
        body = reach(functions(find(path)), name)
        missing = [r for r in reached if not re.search(r'\b%s\b' % re.escape(r), body)]
        assert body and not missing, '%s (%s) does not come to %s' % (name, path, ', '.join(missing))


def main():
    global ROOT
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--source', type=pathlib.Path, default=ROOT)
    ROOT = p.parse_args().source
    return tap.run([('files on the page exist', test_paths), ('names on the page exist', test_names),
                    ('names are where the page says', test_files_of_names), ('the three walks are made', test_steps)])


if __name__ == '__main__':
    sys.exit(main())
