/* One lock or one key in full, and what an operator can do about it. Nothing is done without a second question, which says
 * who is affected. The name that the operator gives is recorded with the act. */
import { bytes, clock, count, el, plain, plural, say, shown, span, who } from './text.js';
import { call, part } from './api.js';
import { now, store } from './store.js';
import { stateOf } from './locks.js';

const sheet = document.getElementById('detail'), ask = document.getElementById('ask');
const BY = 'dibs-operator';

const button = (text, act, kind = '') => {
  const b = el('button' + (kind && '.' + kind), text);
  b.type = 'button';
  b.onclick = act;
  return b;
};

const facts = pairs => el('dl.facts', pairs.filter(([, v]) => v != null && v !== '').flatMap(([k, v]) => [el('dt', k), el('dd', v)]));

function table(heads, rows) {
  return el('div.wide', el('table', el('thead', el('tr', heads.map(([t, n]) => Object.assign(el('th' + (n ? '.n' : ''), t), { scope: 'col' })))),
    el('tbody', rows.map(cells => el('tr', cells.map((c, i) => el('td' + (heads[i][1] ? '.n' : ''), c)))))));
}

function show(dialog, title, ...content) {
  const close = button('Close', () => dialog.close(), 'quiet'), heading = el('h2', title);
  heading.id = dialog.id + '-title';
  dialog.replaceChildren(el('div.sheet', el('div.top', heading, dialog === sheet ? close : null), ...content));
  dialog.onclick = event => { if (event.target === dialog) dialog.close(); };
  if (!dialog.open) dialog.showModal();
}

/* ---- Locks ----------------------------------------------------------------------------------- */

const lockPath = lock => 'v1/locks/' + part(lock.name, lock.name_hex);
const leftOf = p => p.until_ms ?? now() + p.left_ms;

function parties(list, holders) {
  const heads = [['#', true], ['Owner'], ['Host and process'], [holders ? 'Held for' : 'Waiting for', true], [holders ? 'Lease left' : 'Alive for', true]];
  if (holders) heads.push(['Fence', true]);
  return table(heads, list.map((p, i) => [String(i + 1), el('span', shown(p.owner), p.shared ? el('span.soft', ' shared') : '', p.weight > 1 ? el('span.soft', ` weight ${p.weight}`) : ''),
    plain(p.host) + ':' + p.pid, span(now() - p.since_ms), p.breaking ? 'asked to release' : span(leftOf(p) - now()), ...(holders ? [String(p.fence)] : [])]));
}

export async function openLock(lock) {
  const name = el('span.mono', shown(lock.name));
  let now_;
  try {
    now_ = await call('GET', lockPath(lock));
  } catch (e) {
    if (e.status !== 404) return show(sheet, name, el('p.wrong', e.message));
    return show(sheet, name, el('p.soft', 'Nobody holds it or waits for it any more.'));
  }
  const one = { ...now_, holders: now_.holders ?? [] }, [kind, state] = stateOf(one), waiters = one.waiters ?? [];
  const buttons = el('div.buttons', button('Look again', () => openLock(lock)));
  if (store.may.break && one.holders.length) buttons.append(button('Break…', () => askBreak(one), 'danger'));
  show(sheet, name,
    facts([['State', el('span.badge.' + kind, state)], ['Highest fence', one.fence != null ? String(one.fence) : 'not known'],
      ['Wait', lock.wait_p99_ms != null ? `p99 ${span(lock.wait_p99_ms)}, of ${plural(lock.wait_count, 'wait', 'waits')} seen` : null],
      ['Last broken', one.broken_by ? `by ${plain(one.broken_by)}, ${clock(one.broken_at_ms)}` : null], ['Bytes', lock.name_hex ? el('span.mono', lock.name_hex) : null]]),
    one.holders.length ? el('h3', one.holders.length > 1 ? `Holders (${one.holders.length})` : 'Holder') : null,
    one.holders.length ? parties(one.holders, true) : null,
    el('h3', waiters.length ? `Queue (${count(one.waiter_count)})` : 'Nobody waits'), waiters.length ? parties(waiters.slice(0, 100), false) : null,
    one.notes?.length ? el('h3', 'Notes of the engine') : null, one.notes?.length ? el('pre', one.notes.map(plain).join('\n')) : null, buttons);
}

function operator() {
  const input = el('input');
  Object.assign(input, { value: localStorage.getItem(BY) ?? '', required: true, maxLength: 128, autocomplete: 'off', name: 'by' });
  return { input, field: el('label.field', 'Your name, which is recorded', input) };
}

/* A question with one answer that acts; the other one has the focus. */
function question(title, content, word, act) {
  const by = operator(), wrong = el('p.wrong'), form = el('form'), go = el('button.danger', word), no = button('Cancel', () => ask.close());
  wrong.role = 'alert';
  form.append(...content, by.field, wrong, el('div.buttons', no, go));
  form.onsubmit = async event => {
    event.preventDefault();
    localStorage.setItem(BY, by.input.value);
    go.disabled = true;
    wrong.textContent = '';
    try {
      say(await act(by.input.value, form));
      ask.close();
      sheet.close();
    } catch (e) {
      wrong.textContent = e.message;
      go.disabled = false;
    }
  };
  show(ask, title, form);
  (by.input.value ? no : by.input).focus();
}

function choice(name, value, title, about, checked) {
  const input = el('input');
  Object.assign(input, { type: 'radio', name, value, checked: !!checked });
  return el('label.choice', input, el('b', title), el('small', about));
}

function askBreak(lock) {
  const next = lock.waiters?.[0];
  question(['Break ', el('span.mono', shown(lock.name)), '?'], [
    facts([['Loses it', el('span', lock.holders.slice(0, 5).map(p => el('div', who(p), el('span.soft', ` fence ${p.fence}`))), lock.holders.length > 5 ? `and ${lock.holders.length - 5} more` : null)],
      ['Gets it next', next ? who(next) : 'the next client that asks'], ['Next fence', `above ${lock.fence ?? lock.holders[0]?.fence}`]]),
    choice('how', 'ask', 'Ask the holders to release it', 'They are notified within about a second. The lock is free when they have released it or their leases have expired.', true),
    choice('how', 'now', 'Take it now', 'The lock is free at once, while a holder may still be working. Only a resource that checks the fence is protected.'),
  ], 'Break the lock', async (by, form) => {
    await call('POST', lockPath(lock) + '/break', { by, now: form.how.value === 'now' });
    return `${plain(lock.name)}: ${form.how.value === 'now' ? 'broken' : 'holders were asked to release it'}`;
  });
}

/* ---- Keys ------------------------------------------------------------------------------------ */

const keyPath = row => 'v1/once/' + part(row.key, row.key_hex);
const scopeOf = row => (row.scope ? '?scope=' + part(row.scope, row.scope_hex) : '');

export async function openKey(row) {
  const name = el('span.mono', row.scope ? [el('span.soft', shown(row.scope), ' ')] : [], shown(row.key));
  let one;
  try {
    one = await call('GET', keyPath(row) + scopeOf(row));
  } catch (e) {
    return show(sheet, name, el('p.wrong', e.status === 404 ? 'The key has no record any more.' : e.message));
  }
  const p = one.runner, buttons = el('div.buttons', button('Look again', () => openKey(row)));
  if (store.may.admin) {
    buttons.append(button('Forget…', () => askForget({ ...row, ...one })));
    if (one.state === 'crashed' || one.state === 'running') buttons.append(button('Resolve…', () => askResolve({ ...row, ...one }), 'primary'));
  }
  show(sheet, name,
    facts([['State', el('span.badge.' + one.state, one.state === 'running' ? 'in progress' : one.state)], ['Damage', one.damage ? plain(one.damage) : null],
      ['Runner', p ? who(p) : null], ['Since', p ? clock(p.since_ms) : null], ['Runs', one.runs], ['Fence', p?.fence], ['Version', String(one.version)],
      ['Record kept', one.left_ms == null ? null : span(one.left_ms)], ['Decided by', one.decided_by ? plain(one.decided_by) : null],
      ['Result', one.result_size ? bytes(one.result_size) + `, code ${one.code}` : null]]),
    one.steps?.length ? el('h3', 'Steps') : null,
    one.steps?.length ? table([['Step'], ['Data']], one.steps.map(s => [el('span.mono', shown(s.name)), el('pre', shown(s.data ?? s.data_hex ?? ''))])) : null,
    buttons);
}

function askForget(row) {
  question(['Forget ', el('span.mono', shown(row.key)), '?'], [
    el('p.warning', 'The next call with this key runs the work again.' + (row.state === 'running' ? ' A run is in progress: it loses the key.' : row.state === 'crashed' ? ' The crashed run may have had its effect already.' : '')),
    facts([['Runner', row.runner ? who(row.runner) : null], ['Version', String(row.version)]]),
  ], 'Forget the key', async by => {
    await call('POST', keyPath(row) + '/forget', { by, scope: row.scope, version: row.version, running: row.state === 'running' || row.state === 'damaged' });
    return `${plain(row.key)}: forgotten`;
  });
}

function askResolve(row) {
  const running = row.state === 'running';
  question([running ? 'Declare the run dead: ' : 'What became of ', el('span.mono', shown(row.key)), running ? '' : '?'], [
    facts([['Runner', row.runner ? who(row.runner) : null], ['Since', row.runner ? clock(row.runner.since_ms) : null]]),
    ...(running ? [el('p.warning', 'A runner that is only slow loses the key.')] : [
      choice('outcome', 'done', 'It was done', 'Callers get an empty result, and the work does not run again.', true),
      choice('outcome', 'failed', 'It failed, finally', 'Callers get a failure, and the work does not run again.'),
      choice('outcome', 'free', 'Nothing has happened', 'The next call runs the work.')]),
  ], running ? 'Declare it dead' : 'Record it', async (by, form) => {
    const outcome = running ? 'crashed' : form.outcome.value;
    await call('POST', keyPath(row) + '/resolve', { by, scope: row.scope, version: row.version, outcome });
    return `${plain(row.key)}: ${outcome}`;
  });
}
