"""Locks that move from one engine to another: their fences go on growing, and resources refuse nobody."""

import json
import time

from harness import DATABASES, ENGINES, ENSEMBLES, test, wait_for


def with_above(url, number):
    return '%s%sfence_above=%d' % (url, '&' if '?' in url else '?', number)


def fence_of(t, url, name='a'):
    code, out, err = t.run('run', '--url', url, name, '--', 'sh', '-c', 'echo $DIBS_FENCE')
    assert code == 0, (code, err)
    return int(out)


def ahead():
    """Above every clock in microseconds, and every count."""
    return time.time_ns() // 1000 + 10 ** 12


@test(*ENGINES, *DATABASES, *ENSEMBLES)
def a_store_goes_on_above_a_fence(t):
    above = ahead()
    url = with_above(t.url, above)
    first = fence_of(t, url)
    assert first > above, (first, above)
    assert first < fence_of(t, url) < fence_of(t, with_above(t.url, above - 5)), 'one base for all'
    if t.engine in ENSEMBLES:
        assert fence_of(t, t.url) > first, 'also for those who do not name it'
    fence = fence_of(t, url)
    assert int(t.run('fence', '--url', url)[1]) >= fence
    holder = t.start('run', '--url', url, 'b', '--', 'sh', '-c', 'echo $DIBS_FENCE; exec sleep 60')
    wait_for(lambda: holder.out, 'the holder')
    who, = json.loads(t.run('show', '--json', '--url', url, 'b')[1])['holders']
    assert who['fence'] == int(holder.out), (who, holder.out)
    code, _, err = t.run('ls', '--url', with_above(t.url, 2 * above))
    assert code == 65 and b'use a new prefix' in err, (code, err)


@test(*ENGINES, *DATABASES, *ENSEMBLES, 'redlock')
def a_fence_in_the_past_is_no_hindrance(t):
    fence = fence_of(t, t.url)
    top = int(t.run('fence')[1])
    assert top >= fence, (top, fence)
    time.sleep(0.01)
    assert fence_of(t, with_above(t.url, fence)) > fence
    if t.engine == 'redlock':
        code, _, err = t.run('ls', '--url', with_above(t.url, ahead()))
        assert code == 65 and b'fence_above' in err, (code, err)


@test('etcd', 'zookeeper')
def a_store_that_was_opened_without_stays_as_it_is(t):
    fence = fence_of(t, t.url)
    code, _, err = t.run('ls', '--url', with_above(t.url, ahead()))
    assert code == 65 and b'use a new prefix' in err, (code, err)
    assert fence_of(t, t.url) > fence


@test(*ENSEMBLES)
def a_fenced_resource_goes_along(t):
    """As docs/moving.md says, from a clock to a count: without the number everybody is refused."""
    old, resource = 'sqlite://' + t.path('old.db'), 'sqlite://' + t.path('resource.db')

    def write(fence):
        return t.run('cell', 'put', '--url', resource, '--fence', str(fence), 'stock', 'x')[0]

    assert write(fence_of(t, old)) == 0
    assert write(fence_of(t, t.url)) == 76, 'refused: this is what a move looks like without care'
    top = int(t.run('fence', '--url', old)[1])
    new = t.url + '2'
    assert t.run('ls', '--url', with_above(new, top))[0] == 0
    assert write(fence_of(t, new)) == 0 and write(fence_of(t, new)) == 0
    back = int(t.run('fence', '--url', new)[1])
    assert write(fence_of(t, with_above('sqlite://' + t.path('back.db'), back))) == 0
