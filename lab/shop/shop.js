/* The shop's page. Without this file everything works but the dead button and a log that moves by itself. */
'use strict';
(() => {
  const POLL_MS = 500;
  const RETRY_MS = 2000; // the shop does not answer
  const switches = document.getElementById('switches');
  const said = document.getElementById('said');
  let posting = 0; // what the server says about switches is old while one is being sent
  let last = '';

  /* The guard in the browser: the button is dead after the first click. */
  for (const form of document.querySelectorAll('form[action="/buy"]')) {
    form.addEventListener('submit', () => {
      const button = form.querySelector('button');
      if (!switches.elements.button.checked)
        return;
      button.disabled = true;
      button.textContent = 'Ordering \u2026';
      said.textContent = 'Ordering';
    });
  }

  /* A page that the browser has kept has a used token: a new one is needed. */
  addEventListener('pageshow', (event) => {
    if (event.persisted)
      location.reload();
  });

  /* Switches are sent without leaving the page. */
  async function send(form, submitter) {
    const data = new URLSearchParams(new FormData(form));
    if (submitter && submitter.name)
      data.append(submitter.name, submitter.value);
    posting++;
    try {
      await fetch(form.action, { method: 'POST', body: data, headers: { Accept: 'text/plain' } });
    } finally {
      posting--;
    }
    last = '';
    await look();
  }

  for (const form of document.querySelectorAll('form[data-quiet]')) {
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      send(form, event.submitter).catch(lost);
    });
  }
  switches.addEventListener('change', () => send(switches).catch(lost));

  /* Only what is new is put into the log, so that it can be seen and heard. */
  function merge(log, rows) {
    const kept = new Set(rows.map((row) => row.dataset.number));
    for (const row of [...log.children])
      if (!kept.has(row.dataset.number))
        row.remove();
    for (const row of rows.reverse()) {
      const old = [...log.children].find((r) => r.dataset.number === row.dataset.number);
      if (old) {
        if (old.textContent === row.textContent)
          continue;
        old.replaceWith(row);
      } else {
        row.classList.add('new');
        log.prepend(row);
      }
      said.textContent = row.textContent.replace(/\s+/g, ' ');
    }
  }

  function show(page) {
    const stock = page.getElementById('stock');
    const on = stock.dataset.on.split(' ');
    document.getElementById('stock').replaceWith(stock);
    merge(document.getElementById('log'), [...page.querySelectorAll('#log > li')]);
    if (posting === 0)
      for (const box of switches.querySelectorAll('input'))
        box.checked = on.includes(box.name);
    document.body.classList.remove('lost');
  }

  async function look() {
    const answer = await fetch('/live', { cache: 'no-store' });
    const text = await answer.text();
    if (!answer.ok)
      throw new Error(text);
    if (text !== last)
      show(new DOMParser().parseFromString(text, 'text/html'));
    last = text;
  }

  function lost() {
    if (!document.body.classList.contains('lost'))
      said.textContent = 'The shop does not answer.';
    document.body.classList.add('lost');
    last = '';
  }

  async function poll() {
    let wait = POLL_MS;
    if (!document.hidden)
      await look().catch(() => {
        wait = RETRY_MS;
        lost();
      });
    setTimeout(poll, wait);
  }
  document.addEventListener('visibilitychange', () => document.hidden || look().catch(lost));
  poll();
})();
