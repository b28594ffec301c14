#!/usr/bin/env python3
"""Dependencies point one way. Two looks at the same rules: what the files of the library and of its users include, and what the
compiled files use of each other (a function can be declared in a header of its user's, where no include shows it).

    test_layers.py --source SOURCE --build BUILD

RULES says what a file may depend on besides its own folder and the C library: patterns of our headers, as they are written in an
include, and of third-party headers, in <>. All rules whose pattern matches the file's path apply together: a path from src/,
or from the project's folder for what lies outside of src/ (ROOMS). EXCEPTIONS are single dependencies against the rules, each with its reason; one that is no longer needed fails the test.
"""

import argparse
import fnmatch
import pathlib
import re
import subprocess
import sys

# What is looked at: a folder, and what its files' paths begin with.
ROOMS = {'src': '', 'lab': 'lab/', 'torture/client': 'torture/client/'}

# What the library is made of: there a public call is like any other function of its file.
LIBRARY = ['state', 'core', 'recipes', 'doctor', 'calls', 'net', 'families', 'engines', 'transaction']
# Of the core, what knows no handle.
SMALL = ['core/%s.h' % part for part in (
    'answer', 'bytes', 'driver', 'env', 'error', 'heap', 'page', 'report', 'span', 'table', 'thread', 'url')]
# The lab and the torture are subcommands: they read options and print JSON as the others do.
SUBCOMMAND = ['cli/cli.h', 'cli/json.h', 'cli/options.h', 'cli/text.h', 'dibs.h', '<jansson.h>']
CLIENTS = ['<hiredis/*>', '<libpq-fe.h>', '<mariadb/*>', '<sqlite3.h>', '<zookeeper/*>']

RULES = [
    ('state/*', []),
    ('core/*', ['dibs.h', 'engines/engine.h', 'state/*.h']),
    ('recipes/*', ['dibs.h', 'core/*.h', 'engines/engine.h', 'state/*.h']),
    ('doctor/*', ['dibs.h', 'core/*.h', 'engines/engine.h']),
    ('calls/*', ['dibs.h', 'core/*.h', 'recipes/*.h', 'doctor/*.h']),
    ('net/*', ['dibs.h'] + SMALL),
    ('net/tls.*', ['<openssl/*>']),
    ('families/*', ['dibs.h', 'engines/engine.h', 'state/*.h'] + SMALL),
    ('engines/*', ['dibs.h', 'engines/capabilities.h', 'engines/engine.h', 'state/*.h', 'net/*.h', 'doctor/facts.h'] + SMALL),
    ('engines/redis/*', ['<hiredis/*>', '<openssl/sha.h>']),
    ('engines/redlock/*', ['engines/redis/*.h']),
    ('engines/sqlite/*', ['<sqlite3.h>']),
    ('engines/postgresql/*', ['families/rows/*.h', '<libpq-fe.h>']),
    ('engines/mysql/*', ['families/rows/*.h', '<mysql.h>', '<errmsg.h>', '<mysqld_error.h>']),
    ('engines/zookeeper/*', ['families/entries/*.h', '<zookeeper/*>']),
    ('engines/etcd/*', ['families/entries/*.h', '<nghttp2/*>', '<protobuf-c/*>']),
    ('transaction/*', ['dibs.h', 'dibs_sql.h', 'core/bytes.h', 'core/calls.h', 'core/env.h', 'core/error.h']),
    ('transaction/pg*', ['<libpq-fe.h>']),
    ('transaction/my*', ['<mysql.h>', '<errmsg.h>', '<mysqld_error.h>']),
    ('transaction/sqlite*', ['<sqlite3.h>']),
    ('cli/*', ['dibs.h', 'core/span.h', '<jansson.h>']),
    ('http/*', ['dibs.h', '<jansson.h>']),
    ('http/tls.*', ['<openssl/*>']),
    ('http/link.*', ['<openssl/*>']),
    ('http/digest.*', ['<openssl/*>']),
    ('serve/*', SUBCOMMAND + ['http/http.h', 'http/buffer.h', 'http/digest.h']),
    ('gateway/*', SUBCOMMAND + ['core/span.h'] + ['http/%s.h' % part for part in (
        'answer', 'buffer', 'connection', 'digest', 'http', 'link', 'socket', 'tls', 'wire')]),
    ('lab/*', SUBCOMMAND + CLIENTS + ['dibs_sql.h', '<microhttpd.h>']),
    ('torture/client/*', SUBCOMMAND),
]

# (file, what it depends on): why. A header that it includes, or a file whose functions it uses.
EXCEPTIONS = {
    ('engines/engine.c', 'engines/*/*'): 'the list of engines',
    ('cli/whole.c', 'lab/*'): 'the list of subcommands',
    ('cli/whole.c', 'torture/*'): 'the same',
    ('cli/whole.c', 'serve/*'): 'the same',
    ('cli/whole.c', 'gateway/*'): 'the same',
}

LIBC = re.compile(
    r'(assert|ctype|dirent|endian|errno|fcntl|fnmatch|ftw|getopt|glob|grp|inttypes|langinfo|limits|locale|math|netdb|poll|pthread|'
    r'pwd|sched|search|semaphore|signal|spawn|std\w+|string|strings|termios|time|ucontext|unistd|wchar|'
    r'(sys|netinet|arpa|linux|net)/\w+)\.h')
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|(<[^>]+>))', re.MULTILINE)


def folder(path):
    """Of a file: 'core', 'engines/redis'; 'engines' for what lies beside the engines."""
    parts = path.split('/')
    return '/'.join(parts[:2]) if parts[0] in ('engines', 'families') and len(parts) > 2 else parts[0]


def allowed(path):
    """The patterns of everything that a file may depend on; None: no rule speaks of it."""
    lists = [patterns for files, patterns in RULES if fnmatch.fnmatch(path, files)]
    return [p for patterns in lists for p in patterns] if lists else None


class Judge:
    """Collects what is wrong, and which exceptions were needed."""

    def __init__(self):
        self.wrong, self.needed = [], set()

    def excused(self, path, target):
        for file, pattern in EXCEPTIONS:
            if fnmatch.fnmatch(path, file) and fnmatch.fnmatch(target, pattern):
                self.needed.add((file, pattern))
                return True
        return False

    def include(self, path, header):
        """`header` is a path as in RULES, or <...>."""
        if header.startswith('<') and LIBC.fullmatch(header[1:-1]):
            return
        patterns = allowed(path)
        if patterns is None:
            self.wrong.append('%s: no rule says what this folder may depend on' % path)
        elif not (folder(header) == folder(path) or any(fnmatch.fnmatch(header, p) for p in patterns) or
                  self.excused(path, header)):
            self.wrong.append('%s must not include %s' % (path, header))

    def use(self, path, symbol, owner):
        """`path` uses a symbol that `owner`, another file, defines. Public calls are everybody's but the library's own."""
        mine, other = folder(path), folder(owner)
        folders = {folder(p) for p in allowed(path) or [] if '/' in p and not p.startswith('<')}
        public = (symbol.startswith('dibs_') and not symbol.startswith('dibs__') and 'dibs.h' in (allowed(path) or []) and
                  mine.split('/')[0] not in LIBRARY)
        if not (other == mine or other in folders or public or self.excused(path, owner)):
            self.wrong.append('%s must not use %s of %s' % (path, symbol, owner))


def sources(source):
    """(path as in RULES, file) of everything that is looked at."""
    for room, prefix in ROOMS.items():
        for file in sorted((source / room).rglob('*.[ch]')):
            yield prefix + str(file.relative_to(source / room)), file


def resolve(path, file, header):
    """As the compiler finds it: beside the file, else from src/, include/ or the project's folder."""
    if (file.parent / header).exists():
        return str(pathlib.PurePosixPath(path).parent / header)
    return header


def judge_includes(judge, source):
    count = 0
    for path, file in sources(source):
        for ours, theirs in INCLUDE.findall(file.read_text()):
            judge.include(path, theirs or resolve(path, file, ours))
            count += 1
    return count


def symbols(source, build):
    """(path, symbol, is it defined there?) for the compiled files: the library's, and the command's own."""
    by_object = {}
    for path, file in sources(source):
        name = str(file.relative_to(source)).replace('/', '_') + '.o'  # how meson names what is not in its folder
        by_object[name] = path
        for program in 'dibs', 'dibs-all':
            by_object[program + '.p/' + ('.._.._' + name).replace('.._.._src_cli_', '').replace('.._.._src_', '.._')] = path
    objects = [build / 'libdibs.a'] + sorted((build / 'src/cli').glob('dibs-all.p/*.o')) + sorted((build / 'src/cli').glob('dibs.p/*.o'))
    said = subprocess.run(['nm', '-A', '--format=posix'] + objects, check=True, capture_output=True, text=True).stdout
    for line in said.splitlines():
        found = re.match(r'.*?(?:\[(?:.*/)?([^/\]]+)\]|/(dibs(?:-all)?\.p/[^/]+\.o)): (\S+) (\w)', line)
        path = by_object.get(found.group(1) or found.group(2)) if found else None
        if path:
            yield path, found.group(3), found.group(4) in 'TDRBVW'


def judge_symbols(judge, source, build):
    seen = list(symbols(source, build))
    owners = {symbol: path for path, symbol, defined in seen if defined and symbol != 'main'}
    for path, symbol, defined in seen:
        if not defined and symbol in owners:
            judge.use(path, symbol, owners[symbol])
    return {folder(path) for path, _, _ in seen}


def planted():
    """Dependencies that must be refused, and some that must not: the check itself."""
    for path, header, good in [
            ('state/lock.c', 'core/error.h', False), ('core/keeper.c', 'recipes/once.h', False),
            ('core/keeper.c', 'engines/redis/redis.h', False), ('recipes/once.c', 'engines/redis/redis.h', False),
            ('engines/redis/lock.c', 'core/handle.h', False), ('engines/redis/lock.c', '<libpq-fe.h>', False),
            ('engines/redlock/ask.c', 'engines/etcd/h2.h', False), ('engines/etcd/io.c', 'engines/redis/resp.h', False),
            ('engines/redis/lock.c', '<openssl/ssl.h>', False), ('families/rows/cell.c', '<libpq-fe.h>', False),
            ('families/rows/cell.c', 'families/entries/entries.h', False), ('families/rows/cell.c', 'engines/mysql/mysql.h', False),
            ('net/dial.c', 'engines/engine.h', False), ('net/dial.c', 'core/handle.h', False), ('core/keeper.c', 'net/dial.h', False),
            ('engines/redis/lock.c', 'families/rows/rows.h', False), ('transaction/pg.c', '<sqlite3.h>', False),
            ('transaction/sql.c', 'core/handle.h', False), ('cli/run.c', 'core/handle.h', False),
            ('lab/run.c', 'core/error.h', False), ('torture/client/worker.c', 'engines/engine.h', False),
            ('http/route.c', 'serve/serve.h', False), ('serve/ask.c', '<openssl/evp.h>', False), ('serve/ask.c', 'http/connection.h', False),
            ('http/exchange.c', '<openssl/ssl.h>', False), ('gateway/client.c', '<openssl/ssl.h>', False), ('gateway/client.c', 'http/inner.h', False), ('serve/ask.c', 'core/error.h', False),
            ('http/route.c', 'cli/json.h', False), ('serve/ask.c', 'http/http.h', True),
            ('newroom/a.c', 'dibs.h', False), ('cli/run.c', 'core/span.h', True), ('cli/run.c', '<stdio.h>', True),
            ('engines/etcd/h2.h', 'net/tls.h', True),
            ('engines/mysql/mysql.h', 'families/rows/rows.h', True), ('core/keeper.c', 'core/heap.h', True),
            ('core/close.c', 'calls/request.h', False), ('recipes/many.c', 'calls/request.h', False), ('calls/request.c', 'recipes/once.h', True)]:
        judge = Judge()
        judge.include(path, header)
        yield path + ', ' + header, good, judge
    for path, symbol, owner, good in [
            ('core/handle.c', 'dibs__onces_end', 'recipes/finish.c', False),
            ('engines/redis/lock.c', 'dibs__h2_open', 'engines/etcd/h2.c', False),
            ('cli/run.c', 'dibs__state_acquire', 'state/lock.c', False), ('core/handle.c', 'dibs__engine_find', 'engines/engine.c', True),
            ('recipes/once.c', 'dibs__fail', 'core/error.c', True), ('cli/run.c', 'dibs_lock', 'calls/calls.c', True),
            ('core/close.c', 'dibs__request_end', 'calls/request.c', False), ('recipes/many.c', 'dibs_lock', 'calls/calls.c', False),
            ('core/outcome.c', 'dibs_value_free', 'recipes/cell.c', False), ('calls/calls.c', 'dibs__do_once_wait', 'recipes/once.c', True)]:
        judge = Judge()
        judge.use(path, symbol, owner)
        yield path + ', ' + symbol, good, judge


def report(number, name, wrong):
    for line in wrong:
        print('# ' + line)
    print('%sok %d - %s' % ('not ' if wrong else '', number, name), flush=True)
    return not wrong


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--source', type=pathlib.Path, required=True)
    p.add_argument('--build', type=pathlib.Path, required=True)
    o = p.parse_args()
    print('1..4')
    judge = Judge()
    count = judge_includes(judge, o.source)
    good = report(1, 'includes point one way', judge.wrong or ([] if count > 500 else ['only %d includes found' % count]))
    includes = len(judge.wrong)
    folders = judge_symbols(judge, o.source, o.build)
    unseen = {'core', 'state', 'net', 'recipes', 'calls', 'engines', 'engines/memory', 'doctor', 'transaction', 'cli', 'torture', 'serve', 'http', 'gateway'} - folders
    good &= report(2, 'so does what compiled files use', judge.wrong[includes:] + ['no object seen of ' + f for f in unseen])
    lab = {('cli/whole.c', 'lab/*')} if 'lab' not in folders else set()  # a build without all clients has none
    good &= report(3, 'every exception is needed', ['%s, %s' % e for e in EXCEPTIONS.keys() - judge.needed - lab])
    good &= report(4, 'planted ones are noticed', [
        '%s: %s' % (name, judge.wrong or 'not noticed') for name, fine, judge in planted() if fine == bool(judge.wrong)])
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
