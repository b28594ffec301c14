"""Wrong arguments, help, and URLs that cannot be used."""

import json
import os
import re
import shutil
import socket
import subprocess
import time

from harness import DATABASES, ENGINES, ENSEMBLES, HERE, Skip, free_port, read, test, wait_for

COMMANDS = ('run', 'once', 'token', 'counter', 'cell', 'ls', 'show', 'break', 'watch', 'fence', 'doctor', 'engines', 'schema')


def refused(t, *args, says, code=64):
    got, out, err = t.run(*args)
    text = err.decode()
    assert got == code, (args, got, text)
    assert says in text and text.startswith('dibs: ') and text.count('\n') == 1, (args, text)
    assert out == b'', out


@test()
def help_fits_a_screen(t):
    for args in [('--help',)] + [(c, '--help') for c in COMMANDS] + [('once', 'ls', '--help')]:
        code, out, err = t.run(*args)
        lines = out.decode().splitlines()
        assert code == 0 and err == b'', (args, code, err)
        assert 3 < len(lines) <= 24 and max(map(len, lines)) <= 80, (args, len(lines), max(map(len, lines)))
        assert 'usage: dibs' in out.decode()
        if len(args) == 2:
            assert t.run('help', args[0])[:2] == (0, out)
        assert t.run('help')[:2] == t.run('--help')[:2]
    refused(t, 'help', 'frobnicate', says="unknown command 'frobnicate'")


@test('sqlite')
def options_before_the_command(t):
    env = dict(t.env, DIBS_URL='gopher://host')
    for args in (('--url', t.url, 'ls', '--json'), ('--url=' + t.url, '--json', 'ls'), ('--json', '--url', t.url, 'ls')):
        code, out, err = t.run(*args, env=env)
        assert code == 0 and json.loads(out) == {'locks': []}, (args, code, err)
    refused(t, '--url', t.url, says="no COMMAND after '--url'")
    refused(t, '--url', says="no COMMAND after '--url'")
    refused(t, '--frobnicate', 'ls', says="ls: unknown option '--frobnicate'")
    refused(t, '--wait', '5s', 'run', 'a', '--', 'true', says="unknown command '5s'")


@test()
def version(t):
    code, out, _ = t.run('--version')
    assert code == 0 and out.startswith(b'dibs ') and out.split()[1].count(b'.') == 2, out


@test()
def no_arguments(t):
    code, out, err = t.run()
    assert code == 64 and out == b'' and b'usage: dibs' in err


@test()
def wrong_arguments(t):
    refused(t, 'frobnicate', says="unknown command 'frobnicate'")
    refused(t, '--frobnicate', says='unknown option')
    for c in COMMANDS:
        refused(t, c, '--frobnicate', says="unknown option '--frobnicate' (see: dibs %s --help)" % c)
    refused(t, 'run', says="no '--'")
    refused(t, 'run', 'a', says="no '--'")
    refused(t, 'run', '--', 'true', says='no lock NAME')
    refused(t, 'run', 'a', '--', says='no COMMAND')
    refused(t, 'run', '--wait', '1s', '--no-wait', 'a', '--', 'true', says='exclude each other')
    refused(t, 'run', '--wait', says='--wait needs a value')
    refused(t, 'run', '--no-wait=1', 'a', '--', 'true', says='--no-wait takes no value')
    refused(t, 'run', '--weight', '2', 'a', '--', 'true', says='--weight needs --slots')
    refused(t, 'run', '--slots', '0', 'a', '--', 'true', says="--slots '0'")
    refused(t, 'run', '-E', '256', 'a', '--', 'true', says="-E '256'")
    refused(t, 'run', '-E', 'x', 'a', '--', 'true', says="-E 'x'")
    refused(t, 'once', says="no '--'")
    refused(t, 'once', '--', 'true', says='no KEY')
    refused(t, 'once', 'a', 'b', '--', 'true', says='one KEY, not 2')
    refused(t, 'once', 'a', '--', says='no COMMAND')
    refused(t, 'once', '--on-crash', 'x', 'a', '--', 'true', says="invalid --on-crash 'x': use refuse or rerun")
    refused(t, 'once', '--on-fail', 'x', 'a', '--', 'true', says="invalid --on-fail 'x': use forget or keep")
    refused(t, 'once', '--fingerprint', '', 'a', '--', 'true', says='--fingerprint is empty')
    refused(t, 'once', '--keep', '1h', '--keep-forever', 'a', '--', 'true', says='exclude each other')
    refused(t, 'once', '--keep', '0s', 'a', '--', 'true', says='out of range')
    refused(t, 'token', says='give a subcommand: issue, redeem or reissue')
    refused(t, 'token', 'steal', says="unknown subcommand 'steal': use issue, redeem or reissue")
    refused(t, 'token', 'issue', 'x', says='issue takes no operands')
    refused(t, 'token', 'redeem', says='redeem takes TOKEN')
    refused(t, 'token', 'redeem', '--ttl', '1s', 'x', says='redeem does not accept --ttl')
    refused(t, 'counter', 'take', says='take takes NAME [N]')
    refused(t, 'counter', 'take', 'a', '1', '2', says='got 3 operands')
    refused(t, 'counter', 'add', 'a', says='add takes NAME N')
    for n in ('x', '', '1x', '0x1', '1.5', '+1', ' 1', '-', str(2 ** 63)):
        refused(t, 'counter', 'add', 'a', n, says="invalid number '%s'" % n)
    refused(t, 'counter', 'set', 'a', '-1', says='give a whole number from 0 to 9223372036854775807')
    refused(t, 'counter', 'take', 'a', '0', says='give a whole number from 1')
    refused(t, 'counter', 'take', 'a', '-1', says='give a whole number from 1')
    refused(t, 'counter', 'take', '--keep', '1s', 'a', says='--keep needs --request')
    refused(t, 'counter', 'get', '--request', 'x', 'a', says='get does not accept --request')
    refused(t, 'cell', 'get', '--if', '1', 'a', says='get does not accept --if')
    refused(t, 'cell', 'delete', '--keep', '1s', 'a', says='delete does not accept --keep')
    refused(t, 'cell', 'delete', '--if', '0', 'a', says='no cell to delete')
    refused(t, 'cell', 'put', '--if', '-1', 'a', 'x', says="--if '-1'")
    refused(t, 'cell', 'put', '--fence', '0', 'a', 'x', says="--fence '0'")
    refused(t, 'show', says='no lock NAME')
    refused(t, 'show', 'a', 'b', says='one lock NAME')
    refused(t, 'break', says='no lock NAME')
    refused(t, 'break', '--by', '', 'a', says='--by is empty')
    refused(t, 'ls', 'a', 'b', says='one PREFIX')
    refused(t, 'watch', '--interval', '1ms', says='out of range')
    refused(t, 'engines', 'x', says='takes no operands')
    refused(t, 'schema', 'x', says='takes no operands')
    refused(t, 'fence', 'x', says='takes no operands')


@test()
def durations(t):
    for bad in ('', 's', '5x', '-5s', '5 s', '0x5s', '1w', '1.s', '.5s', '1..5s', '1h30', '30m1h', '1m1m', '0.0001s', '1e3s',
                '1h 30m', '1.5.5s', '5,5s', '0.5ms'):
        refused(t, 'run', '--wait', bad, 'a', '--', 'true', says='invalid duration')
    for bad in ('99999999999999999999s', '9999999h', '366d', '9223372036854775807d'):
        refused(t, 'run', '--wait', bad, 'a', '--', 'true', says='out of range: 0ms to 365d')
    refused(t, 'run', '--wait', '366d23h59m59.999s', 'a', '--', 'true', says='out of range: 0ms to 365d')
    for command in ('run', 'once'):
        for bad in ('0s', '9ms', '25h'):
            refused(t, command, '--lease', bad, 'a', '--', 'true', says="--lease '%s' is out of range: 10ms to 1d" % bad)
    refused(t, 'run', '--min-hold', '25h', 'a', '--', 'true', says="--min-hold '25h' is out of range: 1ms to 1d")
    refused(t, 'run', '--max-hold', '9ms', 'a', '--', 'true', says="--max-hold '9ms' is out of range: 10ms to 365d")
    refused(t, 'watch', '--interval', '1d', says='out of range: 10ms to 1h')
    for good in ('500ms', '5s', '5', '0', '1.5', '1.5s', '0.001s', '2m', '1h', '1h30m', '1d2h3m4s5ms', '0.5h', '7d', '365d'):
        code, _, err = t.run('run', '--wait', good, 'a', '--', 'true')
        assert code == 0, err


@test(*ENGINES, *DATABASES)
def unknown_url_parameter(t):
    refused(t, 'ls', '--url', t.url + '?frobnicate=1', says='frobnicate')
    refused(t, 'run', '--url', t.url + '?frobnicate=1', 'a', '--', 'true', says='frobnicate')


@test()
def bad_urls(t):
    refused(t, 'ls', '--url', 'gopher://host', says='gopher')
    refused(t, 'ls', '--url', 'redis://127.0.0.1:99999', says='99999')
    refused(t, 'run', '--url', 'no url', 'a', '--', 'true', says='no url')


SECRET_FORMS = (
    '%s://:%s@h:99999', '%s://u:%s@h:x', '%s://u:%s@[::1', '%s://u:%s@h?x', '%s://u:%s@h/%%zz', '%s://u:%s@h?db=%%zz', '%s://u:%s@h?a=1&a=2',
    '%s://u:%s@h?unknown=1', '%s:u:%s@h', '%s:/u:%s@h', '%s//u:%s@h', '%s.x://u:%s@h', '%s:///u:%s@h/a/b/', '%s://?u:%s@h',
    '%s://u:%s@a,b@h,c:x')
SECRETS = ('s3c/r3t', 's3c?r3t', 's3c?r3t=1', 's3c?x=1&r3t', 's3c@r3t', 's3c:r3t', 's3c,r3t', 's3c#r3t', 's3c%r3t', 's3c%zzr3t', 's3c[r3t', 's3c]r3t',
           's3c r3t', '/s3cr3t', '?s3cr3t', 's3c//r3t', '12345/r3t', 's3cr3t')


@test()
def no_piece_of_a_password_in_a_message(t):
    """Whatever is wrong with the URL, and wherever it was typed."""
    for scheme in ('redis', 'rediss', 'redlock', 'postgresql', 'mysql', 'zookeeper', 'etcd', 'etcds', 'sqlite', 'gopher'):
        urls = [form % (scheme, secret) for form in SECRET_FORMS for secret in SECRETS][::13]  # another part for each engine
        script = 'while IFS= read -r u; do "$0" ls --url "$u" 2>&1; done'
        done = subprocess.run(['sh', '-c', script, t.dibs], input='\n'.join(urls) + '\n', env=t.env, cwd=t.folder,
                              stdout=subprocess.PIPE, text=True, timeout=120)
        lines = done.stdout.splitlines()
        assert len(lines) == len(urls), done.stdout
        for url, line in zip(urls, lines):
            assert line.startswith('dibs: ') and not re.search('s3c|r3t|12345', line), (url, line)
    for args in (('ls', '--ulr=redis://u:s3cr3t@h'), ('ls', '-uredis://u:s3cr3t@h'), ('redis://u:s3cr3t@h', 'ls'), ('engines', 'redis://u:s3cr3t@h'),
                 ('schema', 'mysql://u:s3cr3t@h/db'), ('--ulr=redis://u:s3cr3t@h',), ('token', 'redis://u:s3cr3t@h')):
        code, out, err = t.run(*args)
        assert code == 64 and b's3c' not in out + err, (args, code, out, err)


@test()
def memory_is_refused(t):
    for args in (('once', 'a', '--', 'true'), ('token', 'issue'), ('counter', 'get', 'a'), ('cell', 'get', 'a'),
                 ('run', 'a', '--', 'true'), ('ls',), ('show', 'a'), ('break', 'a'), ('watch',)):
        refused(t, args[0], '--url', 'memory:', *args[1:], says='one process only')


@test()
def url_from_environment_and_default(t):
    env = dict(t.env, DIBS_URL='gopher://host')
    code, _, err = t.run('ls', env=env)
    assert code == 64 and b'gopher' in err
    code, out, err = t.run('run', 'a', '--', 'sh', '-c', 'echo $DIBS_NAME')
    assert (code, out) == (0, b'a\n'), err
    assert os.listdir(t.path('state')), 'the embedded store is in the state folder'


@test('redis')
def url_from_a_file(t):
    place = t.path('url')
    with open(place, 'w') as f:
        f.write(t.url + '\r\n')
    env = dict(t.env, DIBS_URL='')
    assert t.run('counter', 'set', '--url-file', place, 'n', '7', env=env)[0] == 0
    assert t.run('--url-file', place, 'counter', 'get', 'n', env=env)[:2] == (0, b'7\n')
    by_variable = dict(env, DIBS_URL_FILE=place)
    assert t.run('counter', 'get', 'n', env=by_variable)[:2] == (0, b'7\n')
    assert t.run('counter', 'get', 'n', env=t.env)[:2] == (0, b'7\n'), 'the same server by DIBS_URL'
    script = 'echo "${DIBS_URL-none} ${DIBS_URL_FILE-none}"'
    code, out, err = t.run('run', '--url-file', place, 'a', '--', 'sh', '-c', script, env={'PATH': os.environ['PATH']})
    assert (code, out) == (0, b'none none\n'), ('the command does not get it', code, out, err)
    refused(t, 'ls', '--url-file', t.path('none'), says='cannot read the URL from')
    for wrong in ('', '\n', t.url + '\n' + t.url + '\n', 'x' * 5000):
        with open(place, 'w') as f:
            f.write(wrong)
        refused(t, 'ls', '--url-file', place, says=place)
    code, _, err = t.run('ls', env=dict(t.env, DIBS_URL_FILE=place))
    assert code == 64 and b'DIBS_URL and DIBS_URL_FILE are both set' in err, err


@test()
def a_password_is_not_seen_in_the_list_of_processes(t):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen(8)
        for option in (('--url=%s',), ('--url', '%s')):
            url = 'redis://ann:s3cr3t@127.0.0.1:%d/0' % s.getsockname()[1]
            process = t.start('run', *(o.replace('%s', url) for o in option), 'a', '--', 'true')
            shown = 'redis://***@127.0.0.1:%d/0' % s.getsockname()[1]
            line = wait_for(lambda: (lambda c: c if shown.encode() in c else None)(read('/proc/%d/cmdline' % process.pid)),
                            'the URL without its login')
            assert b's3cr3t' not in line and b'ann' not in line, line
            process.popen.kill()


@test()
def every_command_reads_the_url_from_a_file(t):
    """And hides a login that is in its arguments: all of them by the same two options."""
    operands = {'run': ('a', '--', 'true'), 'once': ('a', '--', 'true'), 'token': ('redeem', 'a'), 'counter': ('get', 'a'), 'cell': ('get', 'a'),
                'show': ('a',), 'break': ('a',), 'watch': ('a',), 'gateway': ('--upstream', 'http://127.0.0.1:1'), 'lab': ('shop', '--strategy', 'dibs-redis')}
    code, out, err = t.run('help')
    commands = [line.split()[0] for line in out.decode().splitlines() if line.startswith('  ') and not line.startswith('  dibs')]
    assert len(commands) > 12, commands
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen(64)
        url = 'redis://ann:s3cr3t@127.0.0.1:%d/0' % s.getsockname()[1]
        for command in commands:
            refused(t, '--url-file=' + t.path('none'), command, *operands.get(command, ()), says='cannot read the URL from')
            if command in ('engines', 'schema'):
                continue  # they connect to nothing
            process = t.start(command, *operands.get(command, ()), '--url', url) if command not in ('run', 'once') else \
                t.start(command, '--url', url, *operands[command])
            wait_for(lambda: b'***' in read('/proc/%d/cmdline' % process.pid), command)
            process.popen.kill()


def machine(t, script, *, seconds=60):
    """Runs a script where /var/lib is empty and nobody else's."""
    begin = 'mount -t tmpfs -o mode=755 tmpfs /var/lib && echo here && ' if os.geteuid() == 0 else 'exit 1;'
    env = {'PATH': os.environ['PATH'], 'D': t.dibs, 'T': t.folder}
    done = subprocess.run(['unshare', '-m', 'bash', '-c', begin + 'set -u;' + script], env=env, cwd=t.folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=seconds)
    if not done.stdout.startswith('here\n'):
        raise Skip('no mount of our own: ' + done.stdout)
    return done.stdout


@test()
def one_store_for_the_machine(t):
    """Root's default; two users of a group exclude each other and root; anybody else is told what to do."""
    os.chmod(t.folder, 0o777)
    os.chmod(os.path.dirname(t.folder), 0o755)
    t.dibs = shutil.copy(t.dibs, t.path('dibs'))
    out = machine(t, '''
        as() { local uid=$1; shift; setpriv --reuid "$uid" --regid "$uid" --groups "$GROUPS_OF" env HOME="$T" "$@"; }
        GROUPS_OF=2000
        as 2001 "$D" ls --url sqlite:machine; echo "absent $?"
        "$D" run a -- stat -c 'root %a' /var/lib/dibs /var/lib/dibs/dibs.db
        HOME=$T "$D" ls --all --names; XDG_STATE_HOME=$T/x "$D" ls --all --names
        as 2001 "$D" ls --url sqlite:machine; echo "foreign $?"
        rm -r /var/lib/dibs; install -d -m 2770 -g 2000 /var/lib/dibs
        as 2001 "$D" run --url sqlite:machine job -- sh -c 'touch "$0"; until test -e "$1"; do sleep 0.02; done' "$T/up" "$T/go" &
        until test -e "$T/up"; do sleep 0.02; done
        as 2002 "$D" run --url sqlite:machine --no-wait job -- echo both; echo "second $?"
        "$D" run --no-wait job -- echo both; echo "root $?"
        as 2002 "$D" run --url sqlite:machine job -- echo turn &
        until "$D" show job | grep -q 'waiters: 1'; do sleep 0.02; done
        touch "$T/go"; wait
        "$D" run job -- echo after
        as 2001 "$D" run --url sqlite:machine job -- echo again
        GROUPS_OF=2003; as 2003 "$D" ls --url sqlite:machine; echo "other $?"
        ''')
    t.note('%s', out.replace('\n', ' | '))
    lines = [re.sub('not obtained: held by .*', 'busy', line) for line in out.splitlines()]
    hint = 'install -d -m 2770 -g GROUP /var/lib/dibs'
    assert [i for i, line in enumerate(lines) if hint in line] == [1, 6, len(lines) - 2], lines
    assert [line for line in lines if hint not in line] == [
        'here', 'absent 69', 'root 700', 'root 600', 'a', 'foreign 69', "dibs: 'job' busy", 'second 75', "dibs: 'job' busy", 'root 75',
        'turn', 'after', 'again', 'other 69'], lines


@test()
def the_machine_store_is_opened_later(t):
    """Members are told what root does next; that works; and the doctor is content with what the manual says."""
    os.chmod(t.folder, 0o755)
    os.chmod(os.path.dirname(t.folder), 0o755)
    t.dibs = shutil.copy(t.dibs, t.path('dibs'))
    out = machine(t, '''
        as() { local uid=$1; shift; setpriv --reuid "$uid" --regid "$uid" --groups 2000 "$D" "$@" --url sqlite:machine; }
        ids() { tr -s ' ' | sed -n 's/^\\(danger\\|warning\\|note\\) \\([^:]*\\): .*/\\1 \\2/p' | grep -v sqlite.memory; }
        as 2001 ls; as 2001 doctor | ids; echo absent
        "$D" counter set n 7 >/dev/null; as 2001 doctor | ids; echo closed
        install -d -m 2770 -g 2000 /var/lib/dibs; as 2001 counter get n; as 2001 doctor | ids; echo opened
        eval "$(as 2001 counter get n 2>&1 | sed 's/.*: root gives it to them with: //; s/GROUP/2000/')"
        as 2001 counter get n; as 2002 counter take n; as 2001 counter take n; "$D" counter get n
        for uid in 2001 2002; do as $uid doctor | ids; done; "$D" doctor | ids; echo given
        mount -o remount,ro /var/lib; "$D" doctor | ids
        ''')
    t.note('%s', out.replace('\n', ' | '))
    lines = out.splitlines()
    assert ': it is not there: root creates it' in lines.pop(1), out
    told = [line for line in lines if 'cannot be read and written: Permission denied: ' in line]
    assert len(told) == 1 and told[0] in lines[lines.index('closed'):lines.index('opened')], out
    assert [line for line in lines if line not in told] == [
        'here', 'danger sqlite.folder', 'note sqlite.absent', 'absent', 'danger sqlite.folder-rights', 'closed', 'danger sqlite.file-rights',
        'danger sqlite.beside-rights', 'warning sqlite.owner', 'opened', '7', '6', '5', '5', 'given', 'danger sqlite.read-only'], out


@test()
def root_follows_no_link_of_others(t):
    """A member of the group cannot choose where root makes files, nor shut the group out. A link in a folder of one's own is followed."""
    os.chmod(t.folder, 0o755)
    os.chmod(os.path.dirname(t.folder), 0o755)
    t.dibs = shutil.copy(t.dibs, t.path('dibs'))
    out = machine(t, '''
        as() { setpriv --reuid 2001 --regid 2001 --groups 2000 "$@"; }
        install -d -m 2770 -g 2000 /var/lib/dibs; mkdir -m 700 own
        as ln -s "$T/own" /var/lib/dibs/dibs.db-dibs
        "$D" run a -- echo beside; echo "beside $?"
        rm -r /var/lib/dibs/*
        for target in "$T/own/made" "$T/own/there"; do
            touch own/there; as ln -s "$target" /var/lib/dibs/dibs.db
            "$D" run a -- echo link; echo "link $?"; "$D" doctor --quiet; echo "doctor $?"
            rm -r /var/lib/dibs/* own/there
        done
        ls -A own
        (umask 077; as bash -c 'touch "/var/lib/dibs/dibs.db.$$"; exec "$0" run --url sqlite:machine a -- stat -c "left %a" /var/lib/dibs/dibs.db' "$D")
        mkdir -m 700 other; touch other/real.db; ln -s ../other/real.db own/link.db
        "$D" run --url "sqlite:$T/other/real.db" a -- "$D" run --no-wait --url "sqlite:$T/own/link.db" a -- echo both; echo "own $?"
        ''')
    t.note('%s', out.replace('\n', ' | '))
    lines = [re.sub('not obtained: held by .*', 'busy', line) for line in out.splitlines()]
    says = 'is a link, and others can write in its folder'
    assert sum(says in line for line in lines) == 4, lines
    assert [line for line in lines if says not in line and 'dibs.db-dibs' not in line] == [
        'here', 'beside 69', 'link 69', 'doctor 2', 'link 69', 'doctor 2', 'left 660', "dibs: 'a' busy", 'own 75'], lines


@test()
def man_pages_fit_a_terminal(t):
    """As a terminal of 80 columns shows them: no line is longer, no line of a synopsis is broken, and dibs(3) has every status."""
    if not shutil.which('scdoc') or not shutil.which('groff'):
        raise Skip('scdoc and groff are not installed')
    folder = os.path.join(HERE, '..', '..', 'man')
    for name in sorted(n for n in os.listdir(folder) if n.endswith('.scd')):
        source = read(os.path.join(folder, name))
        page = subprocess.run(['scdoc'], input=source, stdout=subprocess.PIPE, check=True).stdout
        shown = subprocess.run(['groff', '-t', '-man', '-rLL=80n', '-Tutf8', '-P-cbu'], input=page, stdout=subprocess.PIPE, check=True).stdout.decode()
        for line in shown.splitlines():
            assert len(line) <= 80, (name, line)
        synopsis = source.decode().split('# SYNOPSIS')[1].split('\n# ')[0]
        for line in re.findall(r'^\*dibs.*', synopsis, re.M):
            assert len(re.sub(r'[*_`]|\+\+$', '', line)) + 7 <= 80, (name, line)
    header = read(os.path.join(folder, '..', 'include', 'dibs.h')).decode()
    page = read(os.path.join(folder, 'dibs.3.scd')).decode()
    statuses = re.findall(r'^    ROW\(\d+, (\w+), ', header, re.M)
    assert len(statuses) > 20, statuses
    for status in statuses:
        assert 'DIBS_' + status in page.replace('\\', ''), status


@test()
def server_down_at_open(t):
    start = time.monotonic()
    refused(t, 'run', '--url', 'redis://127.0.0.1:%d' % free_port(), 'a', '--', 'true', says='', code=69)
    assert time.monotonic() - start < 15


@test()
def silent_server_at_open(t):
    """A server that takes the connection and says nothing: 5 s, whatever --wait says."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen(8)
        url = 'redis://127.0.0.1:%d' % s.getsockname()[1]
        start = time.monotonic()
        refused(t, 'run', '--url', url, '--wait', '1h', 'a', '--', 'true', says='', code=69)
        assert time.monotonic() - start < 15


@test()
def output_that_cannot_be_written(t):
    with open('/dev/full', 'wb') as full:
        for command in (['engines'], ['ls'], ['ls', '--json'], ['show', '--json', 'a'], ['doctor', '--json'], ['fence', '--json'], ['counter', 'get', '--json', 'a']):
            done = subprocess.run([t.dibs, *command], env=t.env, stdout=full, stderr=subprocess.PIPE, text=True)
            told = [line for line in done.stderr.splitlines() if 'cannot write' in line]
            assert done.returncode == 74 and told == ['dibs: cannot write the output: No space left on device'], (command, done)


FORMS = {'redis': 'redis://%s', 'rediss': 'rediss://%s', 'redlock': 'redlock://%s,127.0.0.1:1,127.0.0.1:2', 'postgresql': 'postgresql://u@%s/db',
         'mysql': 'mysql://u:p@%s/db', 'zookeeper': 'zookeeper://%s', 'etcd': 'etcd://%s', 'etcds': 'etcds://%s'}


@test()
def another_server_than_meant(t):
    """Every engine at the port of every other server, at one that says nothing and at one that is closed: the message names host and
    port, and says what was looked for there."""
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        silent.listen(64)
        places = {'silent': '127.0.0.1:%d' % silent.getsockname()[1], 'closed': '127.0.0.1:%d' % free_port()}
        for kind in ('redis', *DATABASES, *ENSEMBLES):
            places[kind] = re.search(r'[^/@]+:\d+', t.servers.clean_url(kind).split('//')[1].split('@')[-1]).group()
        tried = [(engine, kind, place, t.start('ls', '--url', form % place)) for engine, form in FORMS.items() for kind, place in places.items()
                 if kind != engine and (kind != 'redis' or engine not in ('rediss', 'redlock'))]
        for engine, kind, place, process in tried:
            code, text = process.wait(60), process.err.decode()
            assert code == 69 and place in text and text.count('\n') == 1, (engine, kind, code, text)
            assert '?' in text or 'listens there' in text or (engine, kind) == ('zookeeper', 'mysql'), (engine, kind, text)
            assert not re.search(r'\b(\w+): \1:|: *$|:  ', text), (engine, kind, text)
    for engine, port, usual in (('etcd', 6379, 'redis redlock'), ('redis', 5432, 'postgresql'), ('postgresql', 3306, 'mysql')):
        code, _, err = t.run('ls', '--url', FORMS[engine] % ('127.0.0.2:%d' % port))
        assert code == 69 and b'port %d is usually that of %s' % (port, usual.encode()) in err, err
