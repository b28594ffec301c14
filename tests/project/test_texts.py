#!/usr/bin/env python3
"""Texts that an edit can damage without anybody noticing: words that stand twice where a line breaks, files and functions
that are named and do not exist, commands that the manual does not list.

    test_texts.py --source SOURCE
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests/support'))
import tap  # noqa: E402

FOLDERS = ['bench', 'docs', 'examples', 'include', 'lab', 'man', 'scripts', 'src', 'tests', 'torture']
# Made by the build, or an example of a name.
MADE = {'assets.c', 'redis_lua.c', 'redlock_lua.c', 'mutant.h'}
# Made of a prefix and a name.
COMPOSED = {'dibs_locks', 'dibs_waiters', 'dibs_cells', 'dibs_renewal_late_seconds_bucket'}


def texts(*kinds):
    """(file, its path below the root) for what has one of these suffixes."""
    for file in sorted(list(ROOT.glob('*')) + [f for folder in FOLDERS for f in (ROOT / folder).rglob('*')]):
        if file.suffix in kinds and 'node_modules' not in file.parts:
            yield file, file.relative_to(ROOT)


def words(line):
    """Those of a line of prose, a comment or a list, without what such a line begins with."""
    return re.sub(r'^\s*(?:\*|//|#|--|-|\|)?\s*', '', line).split()


def repeated(before, line):
    """The words, two or more, that end one line and begin the next; neither line consists of them."""
    a, b = words(before), words(line)
    for n in range(min(8, len(a) - 1, len(b) - 1), 1, -1):
        if a[-n:] == b[:n] and all(re.fullmatch(r"[\w'’,.;:`*()-]*[A-Za-z][\w'’,.;:`*()-]*", w) for w in b[:n]):
            return ' '.join(b[:n])
    return None


def test_repeated():
    assert repeated('gets OK; of any number of', 'of any number of callers one is') == 'of any number of'
    assert repeated('    /* one of the two', '     * the two of them */') == 'the two'
    assert repeated('a = {0, 0,', '0, 0, 1}') is None
    found, lines = [], 0
    for file, path in texts('.md', '.scd', '.c', '.h', '.lua', '.py', '.sh'):
        if path.name == 'test_texts.py':
            continue
        all_lines = file.read_text().splitlines()
        lines += len(all_lines)
        found += ['%s:%d: %s' % (path, i, twice) for i, pair in enumerate(zip(all_lines, all_lines[1:]), 2)
                  for twice in [repeated(*pair)] if twice]
    assert lines > 100000, lines
    assert not found, 'the end of a line stands again where the next begins:\n' + '\n'.join(found)


def comments(file, text):
    if file.suffix == '.lua':
        return re.findall(r'--(.*)', text)
    return re.findall(r'/\*.*?\*/', text, re.DOTALL)


def test_files_of_comments():
    there = ['/%s' % path for _, path in texts('.c', '.h', '.lua', '.py', '.sh')] + ['/' + name for name in MADE]
    endings = {path[at:] for path in there for at in range(len(path)) if path[at] == '/'}
    named, absent = 0, []
    for file, path in texts('.c', '.h', '.lua'):
        for comment in comments(file, file.read_text()):
            for name in re.findall(r'(?<![\w/.*%<>-])((?:[\w-]+/)*[\w-]+\.(?:c|h|lua|py|sh))\b(?!\()', comment):
                named += 1
                if '/' + name not in endings:
                    absent.append('%s: %s' % (path, name))
    assert named > 300, named
    assert not absent, 'named in a comment, and not there:\n' + '\n'.join(absent)


def test_names_of_pages():
    code = {w for file, _ in texts('.c', '.h', '.lua', '.py', '.sh', '.build') for w in re.findall(r'\bdibs_\w+', file.read_text())}
    code |= COMPOSED
    named, absent = 0, []
    for file, path in texts('.md', '.scd'):
        for i, line in enumerate(file.read_text().splitlines(), 1):
            if path.name == 'CHANGELOG.md' and line.startswith('|'):
                continue  # the table of old names
            for name in re.findall(r'\bdibs_[a-z]\w*[a-z0-9]\b', re.sub(r'[*\\]', '', line)):
                named += 1
                if name not in code:
                    absent.append('%s:%d: %s' % (path, i, name))
    assert named > 500, named
    assert not absent, 'named on a page, and not in the code:\n' + '\n'.join(absent)


def section(page, title):
    return page.split('\n# %s\n' % title)[1].split('\n# ')[0]


def test_manual():
    """dibs(1) has every command in its synopsis and its list, and names every other page."""
    tables = [re.search(r'\b%s\[\] = \{(.*?)\};' % name, (ROOT / file).read_text(), re.DOTALL).group(1)
              for file, name in (('src/cli/main.c', 'commands'), ('src/cli/whole.c', 'cli_large'))]
    commands = re.findall(r'&cli_(\w+)', ''.join(tables))
    page = (ROOT / 'man/dibs.1.scd').read_text()
    assert len(commands) > 15, commands
    missing = ['%s: dibs %s' % (title, name) for title in ('SYNOPSIS', 'COMMANDS') for name in commands
               if not re.search(r'^\*dibs %s\b' % name, section(page, title), re.MULTILINE)]
    others = [f.name.split('.') for f, _ in texts('.scd') if f.name != 'dibs.1.scd']
    assert len(others) > 7, others
    missing += ['SEE ALSO: %s(%s)' % (name, number) for name, number, _ in others
                if '*%s*(%s)' % (name, number) not in section(page, 'SEE ALSO')]
    assert not missing, 'not in man/dibs.1.scd:\n' + '\n'.join(missing)


def main():
    global ROOT
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--source', type=pathlib.Path, default=ROOT)
    ROOT = p.parse_args().source
    return tap.run([('no words are repeated where a line breaks', test_repeated),
                    ('files that comments name exist', test_files_of_comments),
                    ('names on the pages exist', test_names_of_pages),
                    ('dibs(1) lists every command and every page', test_manual)])


if __name__ == '__main__':
    sys.exit(main())
