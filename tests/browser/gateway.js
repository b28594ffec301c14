/* A page behind `dibs gateway`: what people and browsers do to it is one order in the application, which knows nothing of keys. */
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { assert, open, profile, scratch, start, test } = require('./browser');

/* The key is made with the form, not with the click; an order under way is asked for again when the page comes back. */
const PAGE = `<!doctype html><html lang="en"><title>Orders</title><link rel="icon" href="data:,">
<button>Order one book</button><ol id="answers"></ol><script>
sessionStorage.orderKey ??= crypto.randomUUID();
async function token() {
  localStorage.token ??= (await (await fetch('/.dibs/token?route=/orders', { method: 'POST' })).json()).token;
  return localStorage.token;
}
async function order(query) {
  sessionStorage.underWay = query;
  const headers = { 'Idempotency-Key': JSON.stringify(sessionStorage.orderKey), 'Dibs-Token': await token() };
  let answer;
  while (!answer || (answer.status === 409 && answer.headers.get('Retry-After')) || answer.status >= 502)
    try {
      answer = await fetch('/orders' + query, { method: 'POST', headers, body: 'one book' });
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  const text = answer.ok ? await answer.text() : (await answer.json()).detail;
  delete sessionStorage.underWay;
  document.querySelector('#answers').append(Object.assign(document.createElement('li'), {
    textContent: answer.status + ' ' + (answer.headers.get('Idempotent-Replayed') ? 'replayed ' : '') + text }));
}
document.querySelector('button').onclick = () => order(location.search);
if (sessionStorage.underWay !== undefined)
  order(sessionStorage.underWay);
</script>`;

/* `hold()` keeps the answers to what is executed from then on until the function that it gives is called. */
async function openApplication(t) {
  const app = { orders: 0, held: null };
  const server = http.createServer(async (request, response) => {
    for await (const piece of request)
      void piece;
    if (request.method === 'GET')
      return response.setHeader('Content-Type', 'text/html').end(PAGE);
    const number = ++app.orders;
    await app.held;
    response.writeHead(201, { 'Content-Type': 'text/plain' }).end('order ' + number);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  app.url = `http://127.0.0.1:${server.address().port}/`;
  app.hold = () => {
    let free;
    app.held = new Promise((resolve) => (free = resolve));
    return free;
  };
  return app;
}

const ROUTES = [{ path: '/orders', key: 'required', caller: 'none', token: 'required', lease: '1s', wait: '20s' }];

async function openGateway(t, app, store, listen = '127.0.0.1:0') {
  const file = path.join(scratch(t), 'gateway.json');
  fs.writeFileSync(file, JSON.stringify({ routes: ROUTES }));
  const gateway = await start(t, ['gateway', '--upstream', app.url, '--listen', listen, '--config', file, '--url', store]);
  const end = Date.now() + 20000;
  while (!(gateway.url = / at (http:\S+)\n/.exec(gateway.said)?.[1]) && Date.now() < end)
    await new Promise((resolve) => setTimeout(resolve, 10));
  gateway.url += '/';
  return gateway;
}

async function openAll(t) {
  const app = await openApplication(t), store = 'sqlite://' + path.join(scratch(t), 'gateway.db');
  return { app, store, gateway: await openGateway(t, app, store) };
}

async function waitOrders(app, count) {
  const end = Date.now() + 20000;
  while (app.orders < count && Date.now() < end)
    await new Promise((resolve) => setTimeout(resolve, 10));
  assert.equal(app.orders, count);
}

const button = (page) => page.getByRole('button');
const answers = (page) => page.locator('#answers li');

async function waitAnswers(page, ...expected) {
  await answers(page).nth(expected.length - 1).waitFor();
  assert.deepEqual((await answers(page).allInnerTexts()).sort(), expected.sort());
}

test('a double click: two requests, one order, the same answer', async (t) => {
  const { app, gateway } = await openAll(t);
  const page = await open(t, gateway.url);
  const free = app.hold();
  await button(page).dblclick();
  await waitOrders(app, 1);
  free();
  await waitAnswers(page, '201 order 1', '201 replayed order 1');
  await button(page).click(); // later, too
  await waitAnswers(page, '201 order 1', '201 replayed order 1', '201 replayed order 1');
  assert.equal(app.orders, 1);
});

test('a reload while the order is under way: the page gets the answer to its first request', async (t) => {
  const { app, gateway } = await openAll(t);
  const page = await open(t, gateway.url);
  const free = app.hold();
  await button(page).click();
  await waitOrders(app, 1);
  await page.reload(); // the browser gives up the request; the gateway does not
  free();
  await waitAnswers(page, '201 replayed order 1');
  assert.equal(app.orders, 1);
});

test('two tabs with one token: one order, and the other tab learns why', async (t) => {
  const { app, gateway } = await openAll(t);
  const context = await profile(t);
  const one = await open(t, gateway.url, {}, context), two = await open(t, gateway.url, {}, context);
  await button(one).click();
  await waitAnswers(one, '201 order 1');
  await button(two).click(); // a key of its own, and the same token
  await answers(two).first().waitFor();
  assert.match(await answers(two).first().innerText(), /^409 the token was used/);
  assert.equal(app.orders, 1);
});

test('a page of another origin gets no token', async (t) => {
  const { app, gateway } = await openAll(t);
  const page = await open(t, app.url); // another port: another origin
  const asked = page.waitForResponse((r) => r.url().includes('/.dibs/token'));
  await page.evaluate((url) => fetch(url + '.dibs/token?route=/orders', { method: 'POST', mode: 'no-cors' }), gateway.url);
  assert.equal((await asked).status(), 403);
  assert.ok(page.faults.splice(0).every((f) => f.startsWith('a request to ' + gateway.url)));
});

test('the gateway is killed while a page waits: the page asks again, and nothing is ordered twice', async (t) => {
  const { app, store, gateway } = await openAll(t);
  const page = await open(t, gateway.url);
  const free = app.hold();
  await button(page).click();
  await waitOrders(app, 1);
  await gateway.stop('SIGKILL');
  free();
  await openGateway(t, app, store, new URL(gateway.url).host);
  await answers(page).first().waitFor();
  assert.match(await answers(page).first().innerText(), /^409 an earlier run of this request.*its outcome is unknown/);
  assert.equal(app.orders, 1);
  assert.ok(page.faults.splice(0).every((f) => f.includes('net::ERR_')), 'it was not there for a moment');
});
