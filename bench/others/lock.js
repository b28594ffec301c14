// Locks of npm packages, measured as dibs-bench measures: lock.js SCENARIO PEER [key=value]...
//
// All workers run in one process, each with its own connections. The arguments, the two steps and the line of JSON
// are those of dibs-bench.
'use strict';
const net = require('net');
const readline = require('readline');
const { createRequire } = require('module');

const [scenario, peer, ...words] = process.argv.slice(2);
const plan = Object.fromEntries(words.map((w) => [w.slice(0, w.indexOf('=')), w.slice(w.indexOf('=') + 1)]));
const load = createRequire(`${plan.modules}/`);
const count = Number(plan.workers);
const seconds = Number(plan.seconds);
const oneLock = 'cd'.includes(scenario);
const GIVE_UP = 20; // failed calls

const peers = {
  redlock: {
    title: 'npm redlock 4.2',
    async open(key) {
      const Redis = load('ioredis');
      const Redlock = load('redlock');
      const clients = (plan.ports || plan.port).split(',').map((p) => new Redis(Number(p), '127.0.0.1'));
      await Promise.all(clients.map((c) => c.ping()));
      const redlock = new Redlock(clients, { retryCount: -1 }); // by default it gives up after ten tries
      redlock.on('clientError', () => {});
      let lock;
      return { async acquire() { lock = await redlock.lock(key, 10000); }, release: () => lock.unlock() };
    },
  },
  'advisory-lock': {
    title: 'npm advisory-lock',
    async open(key) {
      const mutex = load('advisory-lock').default(`postgres://postgres@127.0.0.1:${plan.sql_port}/bench`)(key);
      let unlock;
      return { async acquire() { unlock = await mutex.lock(); }, release: () => unlock() };
    },
  },
};

class Stock {
  constructor() {
    this.waiting = [];
    this.socket = net.connect(Number(plan.stock_port), '127.0.0.1').setNoDelay(true);
    readline.createInterface({ input: this.socket }).on('line', (line) => {
      if (!line.startsWith('$')) this.waiting.shift()(line);
    });
  }

  ask(command) {
    return new Promise((done) => { this.waiting.push(done); this.socket.write(`${command}\r\n`); });
  }

  async read() { return Number(await this.ask('GET stock')); }

  write(value) { return this.ask(`SET stock ${value}`); }
}

const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function step(name) {
  if (plan.steps !== '1') return;
  console.log(name);
  await input.next();
}

const now = () => Number(process.hrtime.bigint()) / 1e9;
const inside = new Map();
let owner = -1;
let changes = 0;
let end = Infinity;

async function turn(w) {
  const asked = now();
  await w.lock.acquire();
  const had = now();
  if (inside.has(w.key)) w.violations += 1;
  inside.set(w.key, w);
  if (had < end && owner !== w.id) { owner = w.id; changes += 1; }
  if (w.stock) await w.stock.write(await w.stock.read() - 1);
  if (inside.get(w.key) !== w) w.violations += 1;
  inside.delete(w.key);
  await w.lock.release();
  const done = now();
  if (done > end && !w.stock) return;
  w.turns += 1;
  w.last = done;
  w.times.push((oneLock ? had : done) - asked);
}

async function work(w) {
  const limit = scenario === 'd' ? Number(plan.rounds) : Infinity;
  while (w.turns < limit && w.errors < GIVE_UP && now() < end) {
    try {
      await turn(w);
    } catch (e) {
      w.errors += 1;
      console.error(String(e && e.message));
      await new Promise((r) => { setTimeout(r, 5); });
    }
  }
}

async function open(id) {
  const key = `bench-${scenario}-${oneLock ? 0 : id}`;
  const lock = await peers[peer].open(key);
  for (let i = 0; i < ({ a: 20, b: 3 }[scenario] || 0); i += 1) { await lock.acquire(); await lock.release(); }
  return { id, key, lock, stock: scenario === 'd' ? new Stock() : null, turns: 0, errors: 0, violations: 0, last: 0, times: [] };
}

function report(workers, start, cpu, left) {
  const sum = (what) => workers.reduce((all, w) => all + w[what], 0);
  const times = workers.flatMap((w) => w.times).sort((x, y) => x - y);
  const at = (share) => Math.round((times[Math.floor((times.length - 1) * share)] || 0) * 1e7) / 10;
  const turns = sum('turns');
  const span = scenario === 'd' ? Math.max(...workers.map((w) => w.last)) - start : seconds;
  const operations = scenario === 'c' ? changes : turns;
  const row = { peer, title: peers[peer].title, scenario, shape: 'each', workers: count, turns, changes, seconds: span,
    rate: Math.round(operations / span * 10) / 10, p50_us: at(0.5), p99_us: at(0.99),
    most: Math.max(...workers.map((w) => w.turns)), least: Math.min(...workers.map((w) => w.turns)),
    cpu_us: Math.round((cpu.user + cpu.system) / Math.max(operations, 1)), errors: sum('errors'), violations: sum('violations') };
  if (scenario === 'd') Object.assign(row, { stock_left: left, complete: left === 0, exact: left === count * Number(plan.rounds) - turns });
  console.log(JSON.stringify(row));
  return row.errors || row.violations || row.exact === false || !turns ? 1 : 0;
}

async function main() {
  const workers = [];
  for (let i = 0; i < count; i += 1) workers.push(await open(i));
  const stock = scenario === 'd' ? new Stock() : null;
  if (stock) await stock.write(count * Number(plan.rounds));
  await step('ready');
  const cpu = process.cpuUsage();
  changes = 0;
  owner = -1;
  const start = now();
  end = start + seconds;
  await Promise.all(workers.map(work));
  const used = process.cpuUsage(cpu);
  await step('finished');
  process.exit(report(workers, start, used, stock ? await stock.read() : 0));
}

main().catch((e) => { console.error(e); process.exit(1); });
