/* Counters and cells to watch, by name: engines do not list them. The server reads each once for all who watch it. */
import { bytes, count, el, plain, shown } from './text.js';
import { spark } from './charts.js';
import { store } from './store.js';

const KEPT = 'dibs-watched', MOST = 16, LINE = 120;

export class Watch {
  constructor(form, box, changed) {
    Object.assign(this, { box, changed, names: [], history: new Map() });
    try { this.names = JSON.parse(localStorage.getItem(KEPT)) ?? []; } catch { /* what is there is not ours */ }
    form.onsubmit = event => {
      event.preventDefault();
      this.add({ kind: form.kind.value, name: form.name.value });
      form.elements.name.value = '';
    };
  }

  add(one) {
    if (this.names.length >= MOST || this.names.some(n => n.kind === one.kind && n.name === one.name)) return;
    this.set([...this.names, one]);
  }

  set(names) {
    this.names = names;
    localStorage.setItem(KEPT, JSON.stringify(names));
    this.changed();
    this.draw();
  }

  query() { return this.names.length ? '?watch=' + encodeURIComponent(JSON.stringify(this.names.map(n => [n.kind, n.name]))) : ''; }

  take() {
    for (const w of store.watched) {
      if (w.kind !== 'counter' || w.value == null) continue;
      const line = this.history.get(w.name) ?? [];
      this.history.set(w.name, [...line, w.value].slice(-LINE));
    }
  }

  draw() {
    document.getElementById('watch-note').textContent = this.names.length ? `${this.names.length} of at most ${MOST}` : '';
    this.box.replaceChildren(...this.names.map(one => this.row(one, store.watched.find(w => w.kind === one.kind && w.name === one.name))));
  }

  row(one, seen) {
    const drop = el('button.quiet', '×'), known = seen && !seen.problem;
    drop.type = 'button';
    drop.setAttribute('aria-label', 'Stop watching ' + plain(one.name));
    drop.onclick = () => this.set(this.names.filter(n => n !== one));
    const value = !seen ? '…' : seen.problem ? plain(seen.problem) : one.kind === 'counter' ? count(seen.value) : bytes(seen.size);
    const row = el('div.item', el('span', el('span.mono', shown(one.name)), el('span.soft', ' ' + one.kind)), el('span', el('b.num', value), drop));
    if (known && one.kind === 'cell') row.append(el('span.soft.whole', 'version ', seen.version, ': ', el('span.mono', shown(seen.text ?? ''), seen.cut ? '…' : '')));
    const line = this.history.get(one.name);
    if (known && one.kind === 'counter' && line?.length > 1) row.append(spark(line));
    return row;
  }
}
