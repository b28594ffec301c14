/* What the stream has told, kept by name. A frame is whole (everything) or what has changed since the last one. */

export const store = {
  locks: new Map(), once: new Map(), watched: [], samples: [], problems: [],
  engine: '', may: {}, sequence: 0, ahead: 0, cut: {}, every: 1000, took: 0, seen: 0,
};

const KEPT = 300; // samples: five minutes at one a second

/* Exact bytes identify a name that is not UTF-8; the two kinds cannot collide. */
export const lockId = row => (row.name_hex ? '\u0001' + row.name_hex : '\u0002' + row.name);
export const onceId = row => [row.scope_hex ?? '', row.scope, row.key_hex ?? '', row.key].join('\u0000');

/* The server's clock, by this machine's: leases are counted down on it. */
export const now = () => Date.now() + store.ahead;

/* What a search looks at; most rows are never searched. */
const textOf = row => (row.text ??=
  [row.name ?? row.scope + ' ' + row.key, ...(row.holders ?? [row.runner ?? {}]).map(p => p.owner + ' ' + p.host)].join(' ').toLowerCase());
export const matches = (row, words) => words.every(word => textOf(row).includes(word));

function merge(map, part, id) {
  if (!part) return;
  for (const gone of part.drop ?? []) map.delete(id(gone));
  for (const row of part.put ?? []) {
    const old = map.get(id(row));
    row.id = id(row);
    for (const p of row.holders ?? []) // the longest lease seen is the full one
      if (p.until_ms) p.full = Math.max(p.until_ms - now(), old?.holders?.find(q => q.fence === p.fence)?.full ?? 0, 1);
    map.set(row.id, row);
  }
}

export function apply(frame) {
  const whole = frame.whole;
  store.ahead = frame.at_ms - Date.now();
  if (whole) {
    store.locks.clear();
    store.once.clear();
    Object.assign(store, { engine: frame.engine, version: frame.version, may: frame.may, token: frame.token });
    if (frame.started_ms !== store.started) store.samples = [];
    store.started = frame.started_ms;
  }
  store.sequence = frame.seq;
  store.every = frame.every_ms;
  store.took = frame.took_ms;
  store.problems = frame.problems ?? [];
  store.seen = Date.now();
  merge(store.locks, frame.locks, lockId);
  merge(store.once, frame.once, onceId);
  if (frame.locks) store.cut.locks = frame.locks.cut;
  if (frame.once) store.cut.once = frame.once.cut;
  store.watched = frame.watched ?? store.watched;
  if (frame.server) sample(frame);
}

function sample(frame) {
  let held = 0, waiting = 0;
  for (const row of store.locks.values()) {
    held += row.holders.length > 0;
    waiting += row.waiter_count;
  }
  const last = store.samples[store.samples.length - 1];
  if (last && frame.at_ms - last.at < 200) store.samples.pop(); // a whole frame just after a change
  store.samples.push({ at: frame.at_ms, held, waiting, ...frame.server });
  if (store.samples.length > KEPT) store.samples.shift();
}

export const inOrder = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
