/* The table of locks. It has the rows that are seen and no others, so that 10,000 locks cost as much as 40. */
import { count, el, names, plain, shown, span } from './text.js';
import { inOrder, matches, now, store } from './store.js';

const LATE = 0.34; // a holder renews after a third of its lease: with less than this left, renewals are late
// Where locks live as long as a session, a lease has no end of its own, and since when may not be known.
const age = row => Math.min(Infinity, ...row.holders.map(p => p.since_ms ?? Infinity));
const until = row => Math.min(Infinity, ...row.holders.map(p => p.until_ms ?? Infinity));

const COLUMNS = [
  { key: 'name', title: 'Lock', sort: (a, b) => inOrder(a.name, b.name) },
  { key: 'state', title: 'State', sort: (a, b) => inOrder(stateOf(a)[0], stateOf(b)[0]) },
  { key: 'holder', title: 'Holder', sort: (a, b) => inOrder(a.holders[0]?.owner ?? '\uffff', b.holders[0]?.owner ?? '\uffff') },
  { key: 'age', title: 'Age', number: true, sort: (a, b) => inOrder(age(b), age(a)), down: true },
  { key: 'lease', title: 'Lease left', number: true, sort: (a, b) => inOrder(until(a), until(b)) },
  { key: 'queue', title: 'Queue', number: true, sort: (a, b) => a.waiter_count - b.waiter_count, down: true },
  { key: 'p99', title: 'Wait p99', number: true, sort: (a, b) => (a.wait_p99_ms ?? -1) - (b.wait_p99_ms ?? -1), down: true },
  { key: 'fence', title: 'Fence', number: true, sort: (a, b) => a.fence - b.fence, down: true },
];
const PICKS = {
  All: () => true,
  Contended: row => row.waiter_count > 0,
  Shared: row => row.slots > 0 || row.holders.some(p => p.shared),
  Breaking: row => row.holders.some(p => p.breaking),
};

export function stateOf(row) {
  const [first] = row.holders;
  if (row.damage) return ['damaged', 'damaged'];
  if (!first) return row.waiter_count ? ['waiting', 'handing over'] : ['idle', 'idle'];
  if (row.holders.some(p => p.breaking)) return ['breaking', 'breaking'];
  if (first.released) return ['idle', 'released'];
  if (row.slots) return ['slots', `${row.used} of ${row.slots}`];
  return first.shared ? ['shared', 'shared by ' + (row.holder_count ?? row.holders.length)] : ['exclusive', 'exclusive'];
}

export class Locks {
  constructor(box, open) {
    Object.assign(this, { box, open, words: [], pick: 'All', column: COLUMNS[0], down: false, rows: [], slots: [], active: null });
    this.head = el('div.head');
    this.body = el('div.rows');
    this.head.role = 'row';
    this.body.role = 'rowgroup';
    box.append(this.head, this.body);
    box.setAttribute('aria-colcount', COLUMNS.length);
    for (const column of COLUMNS) this.addHead(column);
    this.addPicks();
    box.addEventListener('scroll', () => this.paint(), { passive: true });
    box.addEventListener('keydown', event => this.key(event));
    new ResizeObserver(() => this.paint()).observe(box);
  }

  addHead(column) {
    const cell = el('div' + (column.number ? '.n' : ''), column.button = el('button', column.title));
    cell.role = 'columnheader';
    column.button.type = 'button';
    column.button.tabIndex = -1;
    column.button.onclick = () => {
      this.down = this.column === column ? !this.down : !!column.down;
      this.column = column;
      this.update();
    };
    column.cell = cell;
    this.head.append(cell);
  }

  addPicks() {
    this.picks = Object.keys(PICKS).map(name => {
      const button = el('button', name + ' ', el('small'));
      button.type = 'button';
      button.onclick = () => { this.pick = name; this.update(); };
      return button;
    });
    document.getElementById('pick').append(...this.picks);
  }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.box.scrollTop = 0;
    this.update();
  }

  /* After a frame, or another choice. */
  update() {
    const all = [...store.locks.values()];
    const fits = all.filter(row => matches(row, this.words));
    this.rows = fits.filter(PICKS[this.pick]);
    const sort = this.column.sort, sign = this.down ? -1 : 1;
    this.rows.sort((a, b) => sign * sort(a, b) || inOrder(a.name, b.name));
    for (const column of COLUMNS)
      if (column === this.column) column.cell.setAttribute('aria-sort', this.down ? 'descending' : 'ascending');
      else column.cell.removeAttribute('aria-sort');
    this.picks.forEach((button, i) => {
      const name = Object.keys(PICKS)[i];
      button.setAttribute('aria-pressed', name === this.pick);
      button.lastChild.textContent = name === 'All' ? '' : count(fits.filter(PICKS[name]).length);
    });
    this.tell(all.length);
    this.paint();
  }

  tell(total) {
    const empty = document.getElementById('empty');
    const part = this.rows.length !== total ? count(this.rows.length) + ' of ' : '';
    document.getElementById('count').textContent = part + count(total) + (store.cut.locks ? ' (the first by name; there are more)' : '');
    empty.hidden = this.rows.length > 0;
    empty.textContent = total ? 'No lock matches.' : 'No lock is held or waited for.';
    this.box.hidden = this.rows.length === 0;
    this.box.setAttribute('aria-rowcount', this.rows.length + 1);
  }

  paint() {
    const height = parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row'));
    const head = this.head.offsetHeight, room = Math.ceil(this.box.clientHeight / height) + 8;
    const first = Math.max(0, Math.floor((this.box.scrollTop - head) / height) - 4);
    const last = Math.min(this.rows.length, first + room);
    this.height = height;
    this.body.style.height = this.rows.length * height + 'px';
    for (let i = first; i < last; i++) this.fill(this.slot(i - first), i, height);
    for (let i = last - first; i < this.slots.length; i++) this.slots[i].hidden = true;
    this.point();
  }

  slot(i) {
    if (this.slots[i]) return this.slots[i];
    const row = el('div.row', COLUMNS.map(column => {
      const cell = el(`div.${column.key}` + (column.number && column.key !== 'lease' ? '.n' : ''));
      cell.role = 'gridcell';
      return cell;
    }));
    row.role = 'row';
    row.id = 'row-' + i;
    row.onclick = () => { this.active = row.lock.id; this.point(); this.open(row.lock); };
    this.slots[i] = row;
    this.body.append(row);
    return row;
  }

  fill(slot, i, height) {
    const lock = this.rows[i];
    slot.hidden = false;
    slot.style.transform = `translateY(${i * height}px)`;
    if (slot.lock !== lock) this.write(slot, lock, i);
    slot.setAttribute('aria-rowindex', i + 2);
    this.count(slot, lock);
  }

  /* What changes only with a frame. */
  write(slot, lock) {
    const [name, state, holder, , lease, queue, p99, fence] = slot.children;
    const [kind, text] = stateOf(lock), [p] = lock.holders, more = (lock.holder_count ?? lock.holders.length) - 1;
    slot.lock = lock;
    name.replaceChildren(...shown(lock.name));
    name.title = plain(lock.name);
    state.replaceChildren(el('span.badge.' + kind, text));
    holder.replaceChildren(...(p ? [names(p)[0], el('small', (more > 0 ? ` and ${more} more ` : ' ') + names(p)[1])] : []));
    holder.title = lock.holders.slice(0, 9).map(q => `${plain(q.owner)} ${plain(q.host)}:${q.pid}`).join('\n');
    lease.replaceChildren(...(p ? [el('i'), el('span')] : []));
    queue.textContent = lock.waiter_count ? count(lock.waiter_count) : '';
    p99.textContent = lock.wait_p99_ms == null ? '' : span(lock.wait_p99_ms);
    fence.textContent = lock.fence ?? '';
    fence.title = lock.fence ?? '';
  }

  /* What changes with time. */
  count(slot, lock) {
    const lease = slot.children[4], at = now();
    const since = age(lock), next = lock.holders.find(p => p.until_ms === until(lock));
    slot.children[3].textContent = since < Infinity ? span(at - since) : '';
    if (!next) {
      if (lock.holders.length) lease.replaceChildren(el('span.soft', 'session'));
      return;
    }
    const left = next.until_ms - at, part = Math.max(0, Math.min(1, left / next.full));
    lease.lastChild.textContent = left > 0 ? span(left) : 'expired';
    lease.firstChild.style.setProperty('--left', Math.round(part * 100));
    lease.className = 'lease' + (left <= 0 ? ' out' : part < LATE ? ' low' : '');
  }

  tick() {
    for (const slot of this.slots) if (!slot.hidden && slot.lock) this.count(slot, slot.lock);
  }

  point() {
    for (const slot of this.slots) {
      const on = !slot.hidden && slot.lock?.id === this.active;
      slot.classList.toggle('active', on);
      slot.setAttribute('aria-selected', on);
      if (on) this.box.setAttribute('aria-activedescendant', slot.id);
    }
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
    const at = this.rows.findIndex(row => row.id === this.active);
    if (event.key === 'Enter' && at >= 0) this.open(this.rows[at]);
    else if (!step || !this.rows.length || event.target !== this.box) return;
    else this.go(Math.max(0, Math.min(this.rows.length - 1, at + step)));
    event.preventDefault();
  }

  go(i) {
    const top = i * this.height, head = this.head.offsetHeight;
    this.active = this.rows[i].id;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + head + this.height > this.box.scrollTop + this.box.clientHeight)
      this.box.scrollTop = top + head + this.height - this.box.clientHeight;
    this.paint();
  }
}
