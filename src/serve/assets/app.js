/* Puts the page together: one stream feeds the store, and what is seen is drawn from it. */
import { drawTiles, drawTimes } from './charts.js';
import { openKey, openLock } from './detail.js';
import { Keys } from './keys.js';
import { Locks } from './locks.js';
import { apply, store } from './store.js';
import { Stream, token } from './stream.js';
import { el, plain, span } from './text.js';
import { Tree } from './tree.js';
import { Watch } from './watch.js';

const $ = id => document.getElementById(id);
const locks = new Locks($('locks'), openLock), keys = new Keys($('once'), openKey), tree = new Tree($('tree'), openLock);
const stream = new Stream(() => 'dashboard/events' + watch.query(), { frame, state, refused });
const watch = new Watch($('watch-form'), $('watch'), () => stream.start());

function frame(data) {
  const start = performance.now();
  apply(data);
  watch.take();
  draw();
  state('live');
  if (data.whole) document.documentElement.dataset.whole = (performance.now() - start).toFixed(1);
  document.documentElement.dataset.sequence = store.sequence;
}

function draw() {
  locks.update();
  keys.draw();
  tree.draw();
  watch.draw();
  drawTiles($('tiles'));
  drawTimes($('times'));
  $('engine').textContent = `${store.engine} · dibs ${store.version}`;
  $('engine').hidden = !store.engine;
  $('problem').textContent = store.problems.map(p => `The ${p.part} could not be read: ${plain(p.message)}`).join(' · ');
  $('problem').hidden = store.problems.length === 0;
  $('token').hidden = !token.get() && store.token !== true;
}

const STATES = {
  live: () => ['on', `Live, every ${span(store.every)}`], paused: () => ['', 'Paused'], connecting: () => ['', 'Connecting'],
  lost: why => ['off', 'Connection lost', why], refused: () => ['off', 'Token needed'],
};

function state(name, more) {
  const [kind, text, title] = STATES[name](more), [dot, label] = $('live').children;
  $('live').className = 'live ' + kind;
  $('live').title = title ?? '';
  if (label.textContent !== text) label.textContent = text; // a screen reader hears a change, and not every beat
  document.documentElement.dataset.state = name;
  if (name !== 'live') return;
  void dot.offsetWidth; // so that the animation starts again
  $('live').classList.add('beat');
}

function refused() {
  state('refused');
  askToken();
}

function askToken() {
  const dialog = $('ask'), form = el('form'), input = el('input'), title = el('h2', 'Token'), cancel = el('button', 'Cancel');
  title.id = 'ask-title';
  Object.assign(input, { type: 'password', required: false, autocomplete: 'off', name: 'token' });
  cancel.type = 'button';
  cancel.onclick = () => dialog.close();
  form.append(el('label.field', 'It is kept in this tab until you close it. Empty: none.', input), el('div.buttons', cancel, el('button.primary', 'Use it')));
  form.onsubmit = event => {
    event.preventDefault();
    token.set(input.value.trim());
    dialog.close();
    stream.start();
  };
  dialog.replaceChildren(el('div.sheet', title, form));
  if (!dialog.open) dialog.showModal();
  input.focus();
}

$('token').onclick = askToken;
$('search').oninput = event => { locks.filter(event.target.value); keys.filter(event.target.value); };
document.addEventListener('keydown', event => {
  if (event.key !== '/' || event.target.closest('input, textarea, select, dialog') || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  $('search').focus();
});
setInterval(() => { if (!document.hidden) locks.tick(); }, 500);
stream.start();
