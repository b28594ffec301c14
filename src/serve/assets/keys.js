/* Once keys that somebody may have to look at: crashed first, then damaged, then in progress. */
import { count, el, plain, plural, shown, span, who } from './text.js';
import { inOrder, matches, now, store } from './store.js';

const ORDER = { crashed: 0, damaged: 1, running: 2 };
const MOST = 200;

export class Keys {
  constructor(box, open) { Object.assign(this, { box, open, words: [] }); }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.draw();
  }

  draw() {
    const all = [...store.once.values()], many = { crashed: 0, damaged: 0, running: 0 };
    for (const row of all) many[row.state]++;
    document.getElementById('once-note').textContent =
      Object.entries(many).filter(([, n]) => n).map(([state, n]) => `${count(n)} ${state === 'running' ? 'in progress' : state}`).join(', ') + (store.cut.once ? ', and more' : '');
    const rows = all.filter(row => matches(row, this.words))
      .sort((a, b) => ORDER[a.state] - ORDER[b.state] || inOrder(a.scope, b.scope) || inOrder(a.key, b.key));
    this.box.replaceChildren(...(rows.length ? rows.slice(0, MOST).map(row => this.row(row))
      : [el('p.soft', all.length ? 'No key matches.' : 'No key is in progress or crashed.')]));
    if (rows.length > MOST) this.box.append(el('p.soft', `… and ${count(rows.length - MOST)} more: search for them`));
  }

  row(row) {
    const name = el('button.link.mono', row.scope ? [el('span.soft', shown(row.scope), ' '), ...shown(row.key)] : shown(row.key));
    name.type = 'button';
    name.onclick = () => this.open(row);
    const about = row.state === 'damaged' ? plain(row.damage) : row.runner ? who(row.runner) + (row.runs > 1 ? `, ${plural(row.runs, 'run', 'runs')}` : '') : '';
    return el('div.item', name, el('span.badge.' + row.state, row.state === 'running' ? 'in progress' : row.state),
      el('span.soft', about), el('span.soft.num', row.runner ? span(now() - row.runner.since_ms) : ''));
  }
}
