/* Who is blocked by whom. A party holds locks and waits for locks; it is the same one when owner, host and process are.
 * Roots are parties that block others and wait for nothing. What no root reaches waits in a cycle: it will not end by itself. */
import { count, el, names, shown, span } from './text.js';
import { inOrder, now, store } from './store.js';

const MOST = 60; // lines; the rest is counted
const keyOf = p => [p.owner, p.host, p.pid].join('\u0000');

export function graph() {
  const parties = new Map();
  const party = p => {
    const key = keyOf(p);
    if (!parties.has(key)) parties.set(key, { key, ...p, holds: [], waits: [], blocks: new Set(), blockers: new Set() });
    return parties.get(key);
  };
  for (const lock of store.locks.values()) {
    if (!lock.waiters?.length) continue;
    for (const w of lock.waiters) party(w).waits.push({ lock, since: w.since_ms });
  }
  for (const lock of store.locks.values())
    for (const h of lock.holders)
      if (lock.waiters?.length || parties.has(keyOf(h))) party(h).holds.push(lock);
  for (const p of parties.values())
    for (const lock of p.holds)
      for (const w of lock.waiters ?? []) {
        const other = parties.get(keyOf(w));
        if (other === p) continue; // a second share of its own lock: no party blocks itself
        p.blocks.add(other);
        other.blockers.add(p);
      }
  return [...parties.values()];
}

/* Parties that can reach themselves: Tarjan's components of more than one. An own stack: chains may be long. */
export function cycles(parties) {
  const index = new Map(), low = new Map(), open = [], isOpen = new Set(), found = [];
  for (const start of parties) {
    if (index.has(start)) continue;
    const work = [[start, [...start.blocks], 0]];
    while (work.length) {
      const frame = work.at(-1), [p, next] = frame;
      if (!index.has(p)) { index.set(p, index.size); low.set(p, index.get(p)); open.push(p); isOpen.add(p); }
      if (frame[2] < next.length) {
        const q = next[frame[2]++];
        if (!index.has(q)) work.push([q, [...q.blocks], 0]);
        else if (isOpen.has(q)) low.set(p, Math.min(low.get(p), index.get(q)));
        continue;
      }
      work.pop();
      if (work.length) low.set(work.at(-1)[0], Math.min(low.get(work.at(-1)[0]), low.get(p)));
      if (low.get(p) !== index.get(p)) continue;
      const group = open.splice(open.indexOf(p));
      group.forEach(q => isOpen.delete(q));
      if (group.length > 1) found.push(group);
    }
  }
  return found;
}

export class Tree {
  constructor(box, open) { Object.assign(this, { box, open }); }

  draw() {
    const parties = graph(), loops = cycles(parties), inLoop = new Set(loops.flat());
    const roots = parties.filter(p => p.blocks.size && !p.blockers.size).sort((a, b) => b.blocks.size - a.blocks.size || inOrder(a.key, b.key));
    const hidden = [...store.locks.values()].filter(lock => lock.waiter_count > (lock.waiters?.length ?? 0)).length;
    this.lines = 0;
    this.seen = new Set();
    this.loops = inLoop;
    const list = el('ul.tree', loops.map(group => this.loop(group)), roots.map(p => this.branch(p)));
    const note = [loops.length ? (loops.length === 1 ? 'a cycle' : loops.length + ' cycles') : '', hidden ? 'not all queues are shown in full' : ''];
    document.getElementById('tree-note').textContent = note.filter(Boolean).join(', ');
    this.box.replaceChildren(list.children.length ? list : el('p.soft', 'Nobody waits.'));
    if (this.lines > MOST) this.box.append(el('p.soft', `… and ${count(this.lines - MOST)} more`));
  }

  loop(group) {
    const item = el('li', el('div.item', el('span', el('span.badge.cycle', 'cycle'), ` ${group.length} wait for each other, for ever`)));
    this.lines++;
    item.append(el('ul.branch', group.sort((a, b) => inOrder(a.key, b.key)).map(p => this.branch(p, true))));
    return item;
  }

  /* One party, what it waits for, and those whom it blocks. In a cycle each party is listed once, flat. */
  branch(p, flat) {
    this.lines++;
    if (this.lines > MOST) return null;
    const again = this.seen.has(p), waits = p.waits[0];
    this.seen.add(p);
    const text = el('span', names(p)[0], el('span.soft', ' ' + names(p)[1]));
    if (waits) text.append(el('span.soft', ' waits for '), this.link(waits.lock));
    const held = p.holds.filter(lock => lock.waiters?.length || waits);
    if (held.length) text.append(el('span.soft', waits ? ', holds ' : ' holds '), ...held.slice(0, 4).flatMap((lock, i) => [i ? ', ' : '', this.link(lock)]),
      held.length > 4 ? ` and ${held.length - 4} more` : '');
    const item = el('li', el('div.item', text, el('span.soft.num', waits ? (waits.since ? span(now() - waits.since) : '') : `blocks ${p.blocks.size}`)));
    const below = again ? [] : [...p.blocks].filter(q => !flat || !this.loops.has(q));
    if (below.length) {
      const shownOnes = below.slice(0, 8).map(q => this.branch(q)).filter(Boolean);
      if (below.length > 8) shownOnes.push(el('li', el('div.item', el('span.soft', `and ${count(below.length - 8)} more`))));
      item.append(el('ul.branch', shownOnes));
    }
    return item;
  }

  link(lock) {
    const button = el('button.link.mono', shown(lock.name.length > 48 ? lock.name.slice(0, 48) + '…' : lock.name));
    button.type = 'button';
    button.onclick = () => this.open(lock);
    return button;
  }
}
