/* The dashboard of `dibs serve`, with clients that take locks beside it (crowd.c). What it shows is what `dibs ls` shows. */
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const { execFileSync, spawn, spawnSync } = require('node:child_process');
const { assert, open, profile, scratch, start, test } = require('./browser');

const SUPPORT = path.join(__dirname, '..', 'support');
const hex = (name) => Buffer.from(name).toString('hex');

/* Until it holds; pages show a change within about a second, and the machine may be busy. */
async function until(what, seen, ms = 30000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await seen();
    if (value)
      return value;
    assert.ok(Date.now() < end, 'in vain: ' + what);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/* Ends with its input, as the programs below do. */
function helper(t, program, args, env = process.env) {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'], env });
  const lines = readline.createInterface({ input: child.stdout });
  const ended = new Promise((resolve) => child.on('close', resolve));
  t.after(async () => {
    child.stdin.end();
    await ended;
  });
  return { child, lines, ended };
}

/* A store of an engine; null: it is not installed. */
async function makeStore(t, engine) {
  if (engine === 'sqlite')
    return 'sqlite://' + path.join(scratch(t), 'dibs.db');
  const env = { ...process.env, TMPDIR: '/tmp' }; // databases run as another account, which may not enter ours
  const made = helper(t, 'python3', [path.join(SUPPORT, 'scratch_stores.py'), engine, 'sh', '-c', 'echo "$DIBS_URL"; exec cat'], env);
  return new Promise((resolve) => {
    made.lines.once('line', resolve);
    made.ended.then(() => resolve(null));
  });
}

class Crowd {
  constructor(t, url) {
    const made = helper(t, process.env.DIBS_TEST_CROWD, [url]);
    this.input = made.child.stdin;
    this.said = []; // [status, name, fence]
    made.lines.on('line', (line) => {
      const [status, name, fence] = line.split(' ');
      this.said.push([status, Buffer.from(name, 'hex'), fence]);
    });
  }

  take(name, owner = '-', kind = 'x') { this.input.write(`take ${owner} ${kind} ${hex(name)}\n`); }
  many(count, prefix) { this.input.write(`many ${count} ${prefix}\n`); }
  free(name) { this.input.write(`free ${hex(name)}\n`); }
  granted(count) { return until(`${count} grants`, () => this.said.filter(([status]) => status === 'OK').length >= count, 120000); }
  lost(name) { return until('a loss', () => this.said.some(([status, of]) => status === 'LOST' && of.equals(Buffer.from(name)))); }
}

const serve = (t, url, ...more) => start(t, ['serve', '--listen', '127.0.0.1:0', '--url', url, ...more]);
const dibs = (...args) => spawnSync(process.env.DIBS, args, { encoding: 'utf8' });
const ls = (url) => JSON.parse(execFileSync(process.env.DIBS, ['ls', '--json', '--url', url], { maxBuffer: 1 << 28 })).locks;

const row = (page, name) => page.locator('.row:visible').filter({ has: page.locator('.name', { hasText: name }) });
const live = (page) => page.locator('html[data-state=live]').waitFor();

async function setUp(t, engine = 'sqlite', options = {}) {
  const url = await makeStore(t, engine);
  if (!url)
    return null;
  const server = await serve(t, url);
  const crowd = new Crowd(t, url);
  return { url, server, crowd, page: await open(t, server.url + '/', options) };
}

/* What the page knows, without asking it for pixels: its rows are few, its store has all of them. */
const stored = (page) => page.evaluate(async () => {
  const { store } = await import('/store.js');
  return [...store.locks.values()].map(({ name, name_hex, slots, used, fence, waiter_count, holders }) => ({
    name, name_hex, slots, used, fence, waiter_count,
    holders: holders.map((p) => [p.owner, p.host, p.pid, p.fence, p.since_ms]),
  }));
});
const listed = (url) => ls(url).map(({ name, name_hex, slots, used, fence, waiter_count, holders }) => ({
  name, name_hex, slots, used, fence, waiter_count,
  holders: holders.map((p) => [p.owner, p.host, p.pid, p.fence, p.since_ms]),
}));
const sorted = (rows) => JSON.stringify(rows.map((r) => JSON.stringify(r)).sort());

test('a lock that another client takes and releases comes and goes', async (t) => {
  const { crowd, page } = await setUp(t);
  await live(page);
  assert.match(await page.locator('#empty').innerText(), /No lock is held/);
  crowd.take('stock:1', 'alice');
  await row(page, 'stock:1').waitFor();
  assert.match(await row(page, 'stock:1').innerText(), /exclusive[^]*alice/);
  crowd.take('stock:1', 'bob');
  await until('bob in the queue', async () => (await row(page, 'stock:1').locator('.queue').innerText()) === '1');
  await until('the tree', async () => /alice[^]*holds stock:1[^]*bob[^]*waits for stock:1/.test(await page.locator('#tree').innerText()));
  crowd.free('stock:1');
  await until('bob holds', async () => /bob/.test(await row(page, 'stock:1').locator('.holder').innerText()));
  await until('his wait', async () => / s$/.test(await row(page, 'stock:1').locator('.p99').innerText()));
  crowd.free('stock:1');
  await until('nothing', async () => page.locator('#empty').isVisible());
});

for (const engine of ['sqlite', 'redis', 'redlock', 'postgresql', 'mysql', 'zookeeper', 'etcd'])
  test(`${engine}: the page has what dibs ls has`, async (t) => {
    const made = await setUp(t, engine);
    if (!made)
      return t.skip(engine + ' is not installed');
    const { url, crowd, page } = made;
    for (let i = 0; i < 30; i++)
      crowd.take('order:' + i, 'worker-' + (i % 7));
    crowd.take('order:3', 'late');
    crowd.take('order:3', 'later');
    crowd.take('line\nbreak "quoted" \\ 🔒', 'odd');
    const plural = engine !== 'redlock'; // which has no shared locks, no semaphores and no queue
    for (const reader of plural ? ['r1', 'r2', 'r3'] : [])
      crowd.take('catalogue', reader, 's');
    if (plural)
      crowd.take('uploads', 'u1', '5/2');
    await crowd.granted(plural ? 35 : 31);
    if (plural)
      await until('the queue', () => listed(url).some((lock) => lock.waiter_count === 2));
    const plain = (rows) => sorted(engine === 'etcd' ? rows.map((r) => ({ ...r, holders: r.holders.map((p) => p.slice(0, 4)) })) : rows); // it knows no time
    await until('equality with dibs ls', async () => plain(await stored(page)) === plain(listed(url)));
    assert.equal((await stored(page)).length, plural ? 33 : 31);
  });

test('an operator breaks a lock after a second question, and it is recorded', async (t) => {
  const { url, crowd, page } = await setUp(t);
  crowd.take('stock:1', 'alice');
  await crowd.granted(1);
  crowd.take('stock:1', 'bob');
  await row(page, 'stock:1').click();
  await page.getByRole('button', { name: 'Break…' }).click();
  const question = page.getByRole('dialog', { name: /Break stock:1/ });
  assert.match(await question.innerText(), /Loses it[^]*alice[^]*Gets it next[^]*bob[^]*Next fence[^]*above \d+/);
  await question.getByRole('button', { name: 'Cancel' }).click();
  assert.equal(listed(url)[0].holders[0][0], 'alice');
  await page.getByRole('button', { name: 'Break…' }).click();
  await question.getByLabel(/Your name/).fill('olga');
  await question.getByLabel(/Take it now/).check();
  await question.getByRole('button', { name: 'Break the lock' }).click();
  await until('bob holds', async () => /bob/.test(await row(page, 'stock:1').locator('.holder').innerText()));
  await crowd.lost('stock:1');
  assert.equal(JSON.parse(dibs('show', '--json', '--url', url, 'stock:1').stdout).broken_by, 'olga');
});

test('rows are found by name, owner and host', async (t) => {
  const { crowd, page } = await setUp(t);
  for (let i = 0; i < 40; i++)
    crowd.take('order:' + i, 'worker-' + (i % 4));
  crowd.take('invoice:7', 'billing');
  await until('all', async () => (await page.locator('#count').innerText()) === '41');
  await page.keyboard.press('/'); // the search has the focus now
  await page.keyboard.type('order:1 worker-3');
  await until('some', async () => (await page.locator('#count').innerText()) === '3 of 41'); // 11, 15, 19
  assert.deepEqual((await page.locator('.row:visible .name').allInnerTexts()).sort(), ['order:11', 'order:15', 'order:19']);
  await page.locator('#search').fill('nobody');
  assert.match(await page.locator('#empty').innerText(), /No lock matches/);
  await page.locator('#search').fill('');
  await page.getByRole('button', { name: 'Holder' }).click();
  await until('order by holder', async () => (await page.locator('.row:visible .holder').first().innerText()).startsWith('billing'));
});

test('names are text, whatever is in them', async (t) => {
  const { crowd, page } = await setUp(t);
  const names = ['<script>alert(1)</script>', '<img src=x onerror=alert(2)>', 'tab\tnewline\n', '\u202eevil', '🔒', 'n'.repeat(512),
                 Buffer.from('caf\xe9', 'latin1'), '\x01\x1b[31m'];
  page.on('dialog', () => assert.fail('a name was run'));
  for (const name of names)
    crowd.take(name, name === '🔒' ? '<b>owner</b>' : '-');
  await until('all', async () => (await page.locator('#count').innerText()) === String(names.length));
  const seen = await page.locator('.row:visible .name').allTextContents();
  for (const name of ['<script>alert(1)</script>', '<img src=x onerror=alert(2)>', 'tab\\tnewline\\n', '\\u202eevil', '🔒', 'n'.repeat(512), 'caf\\xe9', '\\x01\\x1b[31m'])
    assert.ok(seen.includes(name), name);
  assert.equal(await page.locator('.row script, .row img, .row b').count(), 0);
  await row(page, '<script>').click();
  assert.match(await page.locator('#detail h2').innerText(), /<script>alert\(1\)<\/script>/);
});

test('parties that wait for each other are marked as a cycle', async (t) => {
  const { crowd, page } = await setUp(t);
  crowd.take('a', 'one');
  crowd.take('b', 'two');
  crowd.take('c', 'three');
  await crowd.granted(3);
  crowd.take('b', 'one');
  crowd.take('c', 'two');
  await until('a chain', async () => (await page.locator('#tree .item').count()) === 3);
  assert.equal(await page.locator('.badge.cycle').count(), 0);
  crowd.take('a', 'three');
  await page.locator('.badge.cycle').waitFor();
  assert.match(await page.locator('#tree').innerText(), /3 wait for each other/);
});

test('keys: crashed first; an operator resolves one and forgets another', async (t) => {
  const { url, page } = await setUp(t);
  const run = spawn(process.env.DIBS, ['once', '--url', url, 'zz:running', '--', 'sleep', '600'], { stdio: 'ignore' });
  t.after(() => run.kill());
  for (const key of ['order:17', 'order:18'])
    dibs('once', '--url', url, '--scope', 'pay', key, '--', 'sh', '-c', 'kill -9 $$');
  await until('three keys', async () => (await page.locator('#once .item').count()) === 3);
  await until('the crashed ones first', async () => // they were in progress before
    (await page.locator('#once .badge').allInnerTexts()).join() === 'crashed,crashed,in progress');
  await page.locator('#once').getByRole('button', { name: 'pay order:17' }).click();
  await page.getByRole('button', { name: 'Resolve…' }).click();
  await page.getByLabel(/Your name/).fill('olga');
  await page.getByLabel(/It was done/).check();
  await page.getByRole('button', { name: 'Record it' }).click();
  await until('two keys', async () => (await page.locator('#once .item').count()) === 2);
  await page.locator('#once').getByRole('button', { name: 'pay order:18' }).click();
  await page.getByRole('button', { name: 'Forget…' }).click();
  await page.getByRole('button', { name: 'Forget the key' }).click(); // it knows the operator's name now
  await until('one key', async () => (await page.locator('#once .item').count()) === 1);
  const keys = JSON.parse(dibs('once', 'ls', '--state', 'done,free', '--json', '--url', url).stdout).keys;
  assert.deepEqual(keys.filter((k) => k.scope === 'pay').map((k) => [k.key, k.state, k.decided_by]),
                   [['order:17', 'done', 'olga'], ['order:18', 'free', 'olga']]);
});

/* [name, verbs, prefixes...]: the token is "secret of NAME". */
function tokens(t, ...clients) {
  const file = path.join(scratch(t), 'tokens');
  const line = ([name, ...rest]) => [name, crypto.createHash('sha256').update('secret of ' + name).digest('hex'), ...rest].join(' ');
  fs.writeFileSync(file, clients.map((client) => line(client) + '\n').join(''), { mode: 0o600 });
  return file;
}

async function enter(page, name) {
  await page.getByRole('dialog', { name: 'Token' }).getByLabel(/It is kept/).fill('secret of ' + name);
  await page.getByRole('button', { name: 'Use it' }).click();
  await live(page);
}

test('a token that may only read sees no button, and is refused; prefixes bound what is seen', async (t) => {
  const url = await makeStore(t, 'sqlite');
  const server = await serve(t, url, '--tokens', tokens(t, ['reader', 'read'], ['team', 'read,break', 'team:'], ['root', 'read,lock,break,admin']));
  const crowd = new Crowd(t, url);
  for (const name of ['team:1', 'team:2', 'other:1'])
    crowd.take(name, 'alice');
  await crowd.granted(3);
  const page = await open(t, server.url + '/');
  await page.locator('html[data-state=refused]').waitFor();
  assert.equal(await page.locator('.row').count(), 0);
  await enter(page, 'reader');
  await row(page, 'team:1').click();
  await page.locator('#detail').getByText('alice').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Break…' }).count(), 0);
  const said = await page.evaluate(async () => {
    const { headers } = await import('/stream.js');
    const send = { method: 'POST', headers: headers({ 'Content-Type': 'application/json' }), body: '{"by": "eve", "now": true}' };
    return (await fetch('/v1/locks/team:1/break', send)).status;
  });
  assert.equal(said, 403);
  assert.equal(listed(url).length, 3);
  const scoped = await open(t, server.url + '/');
  await enter(scoped, 'team');
  await until('its own', async () => (await scoped.locator('#count').innerText()) === '2');
  assert.deepEqual((await stored(scoped)).map((lock) => lock.name).sort(), ['team:1', 'team:2']);
  crowd.free('other:1');
  crowd.take('other:2');
  crowd.take('team:3');
  await row(scoped, 'team:3').waitFor();
  assert.deepEqual((await stored(scoped)).map((lock) => lock.name).sort(), ['team:1', 'team:2', 'team:3']);
  await row(scoped, 'team:1').click();
  await scoped.getByRole('button', { name: 'Break…' }).waitFor();
});

test('many viewers cost the engine as much as one', async (t) => {
  const { crowd, page, server } = await setUp(t);
  crowd.take('a', 'alice');
  await row(page, 'a').waitFor();
  const asked = async () => value(await metrics(server), 'dibs_engine_calls_total', { op: 'lock_list', status: 'OK' });
  const during = async (ms) => {
    const before = await asked();
    await new Promise((resolve) => setTimeout(resolve, ms));
    return await asked() - before;
  };
  const alone = await during(5000);
  const ends = [];
  for (let i = 0; i < 40; i++) {
    const stop = new AbortController();
    const events = await fetch(server.url + '/dashboard/events', { headers: { Accept: 'text/event-stream' }, signal: stop.signal });
    const read = (async () => { for await (const piece of events.body) void piece; })().catch(() => {});
    ends.push(() => { stop.abort(); return read; });
  }
  assert.equal(await value(await metrics(server), 'dibs_dashboard_viewers', {}), 41);
  const many = await during(5000);
  await Promise.all(ends.map((end) => end()));
  t.diagnostic(`listings in 5 s: ${alone} with one viewer, ${many} with 41`);
  assert.ok(alone >= 1 && alone <= 7 && many >= 1 && many <= 7);
});

/* ---- Metrics --------------------------------------------------------------------------------- */

/* Reads Prometheus' text format strictly: [{name, labels, value}]. */
function parse(text) {
  const kinds = {}, samples = [];
  assert.ok(text.endsWith('\n'));
  for (const line of text.slice(0, -1).split('\n')) {
    const comment = /^# (HELP|TYPE) ([a-z_]+) (.+)$/.exec(line);
    if (comment) {
      if (comment[1] === 'TYPE') {
        assert.ok(!(comment[2] in kinds) && /^(counter|gauge|histogram)$/.test(comment[3]), line);
        kinds[comment[2]] = comment[3];
      }
      continue;
    }
    const sample = /^([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (\d+(?:\.\d+)?)$/.exec(line);
    assert.ok(sample, 'not in the format: ' + line);
    const labels = Object.fromEntries([...(sample[2] ?? '').matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    assert.ok(sample[1] in kinds || kinds[sample[1].replace(/_(bucket|sum|count)$/, '')] === 'histogram', 'no TYPE before: ' + line);
    samples.push({ name: sample[1], labels, value: Number(sample[3]) });
  }
  return samples;
}

function checkHistograms(samples) {
  const series = new Map();
  for (const s of samples.filter((x) => x.name.endsWith('_bucket'))) {
    const { le, ...rest } = s.labels, key = s.name + JSON.stringify(rest);
    series.set(key, [...(series.get(key) ?? []), [le === '+Inf' ? Infinity : Number(le), s.value, s.name, rest]]);
  }
  assert.ok(series.size >= 4);
  for (const [key, buckets] of series) {
    assert.equal(buckets.at(-1)[0], Infinity, key);
    for (let i = 1; i < buckets.length; i++)
      assert.ok(buckets[i][0] > buckets[i - 1][0] && buckets[i][1] >= buckets[i - 1][1], key);
    const [, all, name, labels] = buckets.at(-1);
    assert.equal(value(samples, name.replace(/bucket$/, 'count'), labels), all, key);
  }
}

const value = (samples, name, labels) =>
  samples.find((s) => s.name === name && Object.entries(labels).every(([k, v]) => s.labels[k] === v))?.value ?? 0;

async function metrics(server) {
  const answer = await fetch(server.url + '/metrics');
  assert.equal(answer.status, 200);
  assert.match(answer.headers.get('content-type'), /^text\/plain; version=0\.0\.4/);
  return parse(await answer.text());
}

test('metrics: in the format, and counts are those of what was done', async (t) => {
  const url = await makeStore(t, 'sqlite');
  const server = await serve(t, url);
  const post = async (to, body) => {
    const answer = await fetch(server.url + to, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
    return [answer.status, await answer.json()];
  };
  const granted = [], before = await metrics(server); // the server itself takes a lock when it starts
  for (let i = 0; i < 5; i++) {
    const [status, body] = await post('/v1/acquire', { name: 'stock:' + i });
    assert.equal(status, 201);
    granted.push(body.grant);
  }
  for (let i = 0; i < 3; i++)
    assert.equal((await post('/v1/acquire', { name: 'stock:0' }))[0], 409);
  for (const grant of granted.slice(0, 2))
    assert.equal((await post('/v1/release', { grant }))[0], 200);
  assert.equal((await post('/v1/locks/stock:4/break', { by: 'olga', now: true }))[0], 200);
  assert.equal((await post('/v1/once/order:1/begin', {}))[0], 201);
  assert.equal((await fetch(server.url + '/v1/locks/nobody')).status, 404);
  assert.equal((await fetch(server.url + '/no/such/route')).status, 404);
  dibs('once', '--url', url, 'order:2', '--', 'sh', '-c', 'kill -9 $$');
  const m = await metrics(server);
  checkHistograms(m);
  const is = (expected, name, labels = {}) => assert.equal(value(m, name, labels) - value(before, name, labels), expected, name + JSON.stringify(labels));
  is(5, 'dibs_lock_calls_total', { outcome: 'granted' });
  is(3, 'dibs_lock_calls_total', { outcome: 'busy' });
  is(2, 'dibs_lock_releases_total');
  is(5, 'dibs_lock_acquire_seconds_count');
  is(5, 'dibs_http_requests_total', { route: '/v1/acquire', method: 'POST', code: '201' });
  is(3, 'dibs_http_requests_total', { route: '/v1/acquire', code: '409' });
  is(8, 'dibs_http_request_seconds_count', { route: '/v1/acquire' });
  is(1, 'dibs_http_requests_total', { route: '/v1/locks/{name}', code: '404' });
  is(1, 'dibs_http_requests_total', { route: 'none', code: '404' });
  assert.equal(value(m, 'dibs_engine_up', {}), 1);
  for (const [expected, name, labels] of [[2, 'dibs_locks_held', {}], // stock:2 and stock:3
                                          [1, 'dibs_once_keys', { state: 'running' }], [1, 'dibs_once_keys', { state: 'crashed' }]])
    await until(name, async () => value(await metrics(server), name, labels) === expected); // at most 5 s old
  await until('the loss', async () => value(await metrics(server), 'dibs_lock_losses_total', { cause: 'broken' }) === 1);
});

test('a damaged record is shown as such, and breaks nothing', async (t) => {
  const { url, crowd, page } = await setUp(t);
  const run = spawn(process.env.DIBS, ['once', '--url', url, 'sound', '--', 'sleep', '600'], { stdio: 'ignore' });
  t.after(() => run.kill());
  spawnSync(process.env.DIBS, ['once', '--url', url, 'broken', '--', 'true']);
  execFileSync('sqlite3', ['-cmd', '.timeout 20000', new URL(url).pathname, `UPDATE cell SET data = x'00ff' WHERE key LIKE '%broken%'`]);
  crowd.take('stock:1', 'alice');
  await row(page, 'stock:1').waitFor();
  await until('both keys', async () => (await page.locator('#once .item').count()) === 2);
  assert.deepEqual(await page.locator('#once .badge').allInnerTexts(), ['damaged', 'in progress']);
  await page.locator('#once').getByRole('button', { name: 'broken' }).click();
  await page.locator('#detail').getByText('damaged', { exact: true }).waitFor();
});

/* ---- The page, further ----------------------------------------------------------------------- */

test('counters and cells that are watched', async (t) => {
  const { url, page } = await setUp(t);
  dibs('counter', 'set', '--url', url, 'seats', '10');
  dibs('cell', 'put', '--url', url, 'config', 'mode=blue');
  await page.getByLabel('Name to watch').fill('seats');
  await page.getByRole('button', { name: 'Watch', exact: true }).click();
  await until('ten', async () => /seats[^]*10/.test(await page.locator('#watch').innerText()));
  dibs('counter', 'take', '--url', url, 'seats', '3');
  await until('seven', async () => /seats[^]*\b7\b/.test(await page.locator('#watch').innerText()));
  await page.getByLabel('Kind').selectOption('cell');
  await page.getByLabel('Name to watch').fill('config');
  await page.keyboard.press('Enter');
  await until('the cell', async () => /config[^]*mode=blue/.test(await page.locator('#watch').innerText()));
  await page.reload(); // the browser remembers
  await until('both', async () => /seats[^]*7[^]*config[^]*mode=blue/.test(await page.locator('#watch').innerText()));
});

test('10,000 locks are drawn in less than a second', async (t) => {
  const { crowd, page } = await setUp(t, 'redis') ?? {};
  if (!page)
    return t.skip('redis-server is not installed');
  crowd.many(10000, 'bulk:');
  await crowd.granted(10000);
  await until('all', async () => (await page.locator('#count').innerText()) === '10,000');
  let fresh, drawn = Infinity;
  for (let i = 0; i < 4 && drawn >= 1000; i++) { // the machine may be busy
    fresh = await open(t, page.url());
    await until('all again', async () => (await fresh.locator('#count').innerText()) === '10,000');
    drawn = Number(await fresh.evaluate(() => document.documentElement.dataset.whole));
  }
  t.diagnostic(`a whole frame of 10,000 locks: drawn in ${drawn} ms`);
  assert.ok(drawn < 1000);
  assert.ok(await fresh.locator('.row').count() < 100);
  await fresh.locator('#locks').focus();
  await fresh.keyboard.press('End');
  await until('the last row', async () => (await fresh.locator('.row.active .name').innerText()) === 'bulk:09999');
});

test('a page that is hidden asks for nothing', async (t) => {
  const { crowd, page, server } = await setUp(t);
  const viewers = async () => {
    const text = await (await fetch(server.url + '/metrics')).text();
    return Number(/^dibs_dashboard_viewers (\d+)$/m.exec(text)[1]);
  };
  const hide = (hidden) => page.evaluate((on) => {
    Object.defineProperty(document, 'hidden', { value: on, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await live(page);
  assert.equal(await viewers(), 1);
  await hide(true);
  await page.locator('html[data-state=paused]').waitFor();
  await until('no stream', async () => (await viewers()) === 0);
  crowd.take('meanwhile', 'alice');
  await crowd.granted(1);
  await new Promise((resolve) => setTimeout(resolve, 2500)); // longer than two frames
  assert.equal(await row(page, 'meanwhile').count(), 0);
  await hide(false);
  await row(page, 'meanwhile').waitFor();
});

test('the page looks right in the dark, and on a phone', async (t) => {
  const { crowd, page, server } = await setUp(t, 'sqlite', { colorScheme: 'dark' });
  const shade = (p) => p.evaluate(() => Number(/\d+/.exec(getComputedStyle(document.body).backgroundColor)[0]));
  crowd.take('order:' + 'x'.repeat(300), 'a-worker-with-a-long-name');
  await row(page, 'order:').waitFor();
  assert.ok(await shade(page) < 60);
  const phone = await open(t, server.url + '/', { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
  await row(phone, 'order:').waitFor();
  assert.ok(await shade(phone) > 200);
  assert.equal(await phone.evaluate(() => document.documentElement.scrollWidth), 360); // nothing is cut off at the side
  await row(phone, 'order:').tap();
  const sheet = await phone.locator('#detail').boundingBox();
  assert.ok(sheet.x >= 0 && sheet.width <= 360);
});

test('it can be used with a keyboard, and be read aloud', async (t) => {
  const { crowd, page } = await setUp(t);
  for (const name of ['a', 'b', 'c'])
    crowd.take(name, 'owner-of-' + name);
  await until('all', async () => (await page.locator('#count').innerText()) === '3');
  for (const role of ['banner', 'main'])
    assert.equal(await page.getByRole(role).count(), 1, role);
  for (const name of ['Overview', 'Locks', 'Blocked by', 'Once keys', 'Times', 'Counters and cells'])
    assert.equal(await page.getByRole('region', { name }).count(), 1, name);
  assert.equal(await page.getByRole('grid', { name: 'Locks' }).getAttribute('aria-rowcount'), '4');
  await page.getByRole('grid', { name: 'Locks' }).focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  const active = await page.locator('#locks').getAttribute('aria-activedescendant');
  assert.equal(await page.locator('#' + active + ' .name').innerText(), 'b');
  await page.keyboard.press('Enter');
  await page.getByRole('dialog', { name: 'b' }).waitFor();
  await page.keyboard.press('Escape');
  await until('it is closed', async () => !(await page.locator('#detail').isVisible()));
  const nameless = await page.locator('button:visible, input:visible, select:visible').evaluateAll((all) =>
    all.filter((e) => !(e.innerText?.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML));
  assert.deepEqual(nameless, []);
});

test('a page whose server is gone says so, and goes on with the next one', async (t) => {
  const url = await makeStore(t, 'sqlite');
  const server = await serve(t, url);
  const crowd = new Crowd(t, url);
  const page = await (await profile(t)).newPage(); // of its own: the browser complains about refused connections
  await page.goto(server.url);
  crowd.take('a', 'alice');
  await row(page, 'a').waitFor();
  await server.stop('SIGKILL');
  await page.locator('html[data-state=lost]').waitFor();
  assert.equal(await page.locator('#live').innerText(), 'Connection lost');
  crowd.take('b', 'bob');
  await start(t, ['serve', '--listen', new URL(server.url).host, '--url', url]);
  await row(page, 'b').waitFor();
  assert.equal(await page.locator('#count').innerText(), '2');
});
