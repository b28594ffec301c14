/* Small charts as SVG: lines of the last minutes, and histograms of times. */
import { count, el, rate, span, svg } from './text.js';
import { store } from './store.js';

/* A line through values; the area below it is filled. */
export function spark(values, floor = 1) {
  const top = Math.max(floor, ...values) * 1.25, step = 100 / Math.max(1, values.length - 1);
  const line = values.map((v, i) => `${(i * step).toFixed(2)} ${(29 - (v / top) * 26).toFixed(2)}`);
  const d = line.length > 1 ? 'M' + line.join('L') : `M0 ${29}L100 ${29}`;
  return svg('svg', { viewBox: '0 0 100 30', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svg('path', { class: 'area', d: d + 'L100 30L0 30Z' }), svg('path', { class: 'spark', d }));
}

/* Values a second between one sample and the next. */
function rates(of) {
  const all = store.samples, result = [];
  for (let i = 1; i < all.length; i++)
    result.push(Math.max(0, of(all[i]) - of(all[i - 1])) * 1000 / Math.max(1, all[i].at - all[i - 1].at));
  return result;
}

const sum = list => list.reduce((a, b) => a + b, 0);
const recent = values => { const some = values.slice(-5); return some.length ? sum(some) / some.length : 0; };
const lost = s => sum(Object.values(s.losses));
const asked = s => s.requests ?? 0;

const TILES = [
  { title: 'locks held', line: () => store.samples.map(s => s.held), text: v => count(v.at(-1) ?? 0) },
  { title: 'waiting', line: () => store.samples.map(s => s.waiting), text: v => count(v.at(-1) ?? 0) },
  { title: 'crashed keys', line: () => store.samples.map(() => crashed()), text: () => count(crashed()), alarm: () => crashed() > 0 },
  { title: 'grants / s here', line: () => rates(s => s.grants), text: v => rate(recent(v)) },
  { title: 'requests / s here', line: () => rates(asked), text: v => rate(recent(v)) },
  { title: 'losses here', line: () => rates(lost), text: () => count(store.samples.length ? lost(store.samples.at(-1)) : 0),
    alarm: v => v.some(x => x > 0) },
];

const crashed = () => [...store.once.values()].filter(row => row.state === 'crashed').length;

export function drawTiles(box) {
  if (!box.children.length) box.append(...TILES.map(tile => el('div.tile', el('b', '–'), el('span', tile.title), el('div'))));
  TILES.forEach((tile, i) => {
    const values = tile.line(), [number, , chart] = box.children[i].children;
    number.textContent = tile.text(values);
    chart.replaceChildren(spark(values));
    box.children[i].classList.toggle('alarm', !!tile.alarm?.(values));
  });
}

/* The upper end of the bucket in which the p-th of all values is. */
export function quantile(h, p) {
  let left = h.count * p;
  for (let i = 0; i < h.bucket.length; i++) if ((left -= h.bucket[i]) <= 0 && h.bucket[i]) return Math.min(2 ** i, h.max_us) / 1000;
  return h.max_us / 1000;
}

const TIMES = [
  ['acquire', 'Acquire', 'call to grant, without a queue'], ['wait', 'Wait', 'call to grant, through the queue'],
  ['hold', 'Hold', 'grant to release or loss'], ['late', 'Renewals late', 'how late renewals were sent'],
];

function histogram(h, title, about) {
  const used = h.bucket.map((n, i) => (n ? i : -1)).filter(i => i >= 0);
  const first = Math.max(0, (used[0] ?? 7) - 1), last = Math.max(first + 11, (used.at(-1) ?? 0) + 1), slots = last - first + 1;
  const top = Math.max(1, ...h.bucket), width = 100 / slots;
  const bars = [];
  for (let i = first; i <= last; i++) {
    const n = h.bucket[i] ?? 0, tall = n ? Math.max(1.5, (n / top) * 40) : 0;
    bars.push(svg('rect', { x: ((i - first) * width + width * 0.1).toFixed(2), y: (43 - tall).toFixed(2), width: (width * 0.8).toFixed(2), height: tall.toFixed(2) },
      svg('title', {}, `below ${span(2 ** i / 1000)}: ${count(n)}`)));
  }
  const said = h.count ? `p50 ${span(quantile(h, 0.5))}, p99 ${span(quantile(h, 0.99))}` : 'none yet';
  const chart = svg('svg', { viewBox: '0 0 100 44', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${title}: ${said}, ${count(h.count)} values` },
    svg('line', { class: 'axis', x1: 0, x2: 100, y1: 43.5, y2: 43.5 }), ...bars);
  const figure = el('figure', el('figcaption', el('b', title), el('span.soft', count(h.count))), chart,
    el('div.ends', el('span', span(2 ** first / 1000)), el('span', span(2 ** last / 1000))), el('div.soft', said));
  figure.title = about;
  return figure;
}

export function drawTimes(box) {
  const last = store.samples.at(-1);
  if (!last) return;
  const some = TIMES.filter(([key]) => last[key].count > 0);
  box.replaceChildren(...(some.length ? some.map(([key, title, about]) => histogram(last[key], title, about))
    : [el('p.soft', 'No lock was taken through this server yet.')]));
}
