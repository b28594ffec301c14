/* The page of `dibs lab shop`: each guard stops its duplicates, and without it they are in the log. */
'use strict';

const path = require('node:path');
const { execFile } = require('node:child_process');
const { promisify } = require('node:util');
const { assert, open, profile, scratch, start, test } = require('./browser');

const run = promisify(execFile);

/* ---- The shop ------------------------------------------------------------------------------------------------- */

async function openShop(t, stock = 20) {
  const store = 'sqlite://' + path.join(scratch(t), 'shop.db');
  return start(t, ['lab', 'shop', '--strategy', 'dibs-sqlite', '--url', store, '--port', '0', '--threads', '16',
                   '--stock', String(stock)]);
}

async function stock(shop) {
  return (await fetch(shop.url + 'stock')).json();
}

/* The log as a client without a browser reads it, oldest first: "POST /buy 303 sold". Looking at orders is left out. */
async function log(shop, all = false) {
  const live = await (await fetch(shop.url + 'live')).text();
  const rows = [...live.matchAll(/<code>(.*?)<\/code>.*?\u2192 (\d+)<\/span> <span class="badge">(.*?)<\/span>/g)];
  return rows.map((r) => `${r[1]} ${r[2]} ${r[3]}`).reverse().filter((line) => all || line.startsWith('POST'));
}

/* A log is complete when requests have been answered, which a browser that has gone on does not wait for. */
async function waitLog(shop, expected) {
  const end = Date.now() + 20000;
  while ((await log(shop)).length < expected.length && Date.now() < end)
    await new Promise((resolve) => setTimeout(resolve, 50));
  assert.deepEqual(await log(shop), expected);
}

/* Guards as the names of those that are on, by the page's own switches. */
const NAMES = { button: /Dead button/, redirect: /Redirect after POST/, token: /One-time token/, once: /Idempotency key/,
                slow: /Slow shop/ };

async function leaveOn(page, ...wanted) {
  for (const [name, label] of Object.entries(NAMES)) {
    const box = page.getByRole('switch', { name: label });
    if ((await box.isChecked()) === wanted.includes(name))
      continue;
    const sent = page.waitForResponse((r) => r.url().endsWith('/guards'));
    await box.click();
    assert.equal((await sent).status(), 200);
  }
}

function countPosts(page) {
  const posts = [];
  page.on('request', (r) => r.method() === 'POST' && r.url().endsWith('/buy') && posts.push(r));
  return posts;
}

const order = (page) => page.getByRole('button', { name: 'Order one' });
const heading = (page) => page.getByRole('heading', { level: 1 });

/* As fast as people do it. The page may be gone before the second click. */
async function clickTwice(page) {
  const box = await order(page).boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  for (const clickCount of [1, 2]) {
    await page.mouse.down({ clickCount });
    await page.mouse.up({ clickCount });
    await page.waitForTimeout(120);
  }
}

/* What the form of a new page would send. */
async function newForm(shop) {
  const page = await (await fetch(shop.url, { headers: { Accept: 'text/html' } })).text();
  return { token: /name="token" value="(\w+)"/.exec(page)[1], key: /name="key" value="(\w+)"/.exec(page)[1] };
}

async function send(shop, form, headers = {}) {
  const answer = await fetch(shop.url + 'buy', { method: 'POST', body: new URLSearchParams(form), redirect: 'manual', headers });
  return { status: answer.status, text: await answer.text(), headers: answer.headers };
}

/* ---- F1: the dead button ---------------------------------------------------------------------------------------- */

test('F1: a double click: one POST leaves the page', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  const posts = countPosts(page);
  await leaveOn(page, 'button', 'slow'); // the button alone
  await clickTwice(page);
  await heading(page).filter({ hasText: 'Order 1' }).waitFor();
  assert.equal(posts.length, 1);
  await waitLog(shop, ['POST /buy 200 sold']);
  assert.equal((await stock(shop)).sold, 1);
});

test('F1 off: two POSTs leave the page, and the duplicate is in the log', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  const posts = countPosts(page);
  await leaveOn(page, 'slow');
  await clickTwice(page);
  await heading(page).filter({ hasText: 'Order' }).waitFor();
  assert.equal(posts.length, 2);
  await waitLog(shop, ['POST /buy 200 sold', 'POST /buy 200 sold again']);
  await page.locator('#log .again').waitFor();
  assert.match(await page.locator('#stock .alarm').innerText(), /Duplicates\s+1/);
  assert.equal((await stock(shop)).sold, 2);
});

test('F1 off: the token, or the key, stops the second POST', async (t) => {
  for (const [guard, expected] of [['token', 'POST /buy 409 refused'], ['once', 'POST /buy 303 replayed']]) {
    const shop = await openShop(t);
    const page = await open(t, shop.url);
    await leaveOn(page, 'redirect', 'slow', guard);
    await clickTwice(page);
    await waitLog(shop, ['POST /buy 303 sold', expected]);
    if (guard === 'token')
      await page.getByRole('link', { name: 'Show order 1' }).click();
    await heading(page).filter({ hasText: 'Order 1' }).waitFor();
    assert.equal((await stock(shop)).sold, 1, guard);
  }
});

/* ---- F2: the redirect ------------------------------------------------------------------------------------------- */

test('F2: reload, back and forward make no second order', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  const posts = countPosts(page);
  await leaveOn(page, 'redirect'); // the redirect alone
  await order(page).click();
  await page.waitForURL(/orders\/1$/);
  for (const move of ['reload', 'goBack', 'goForward', 'reload', 'goBack', 'reload', 'goForward'])
    await page[move]();
  assert.equal(await heading(page).innerText(), 'Order 1');
  assert.equal(posts.length, 1);
  await waitLog(shop, ['POST /buy 303 sold']);
  assert.equal((await stock(shop)).sold, 1);
  const seen = await log(shop, true);
  assert.ok(seen.filter((line) => line === 'GET /orders/1 200 shown').length >= 3, String(seen));
});

test('F2 off: a reload sends the form again, and the duplicate is in the log', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  await leaveOn(page);
  await order(page).click();
  await heading(page).filter({ hasText: 'Order 1' }).waitFor();
  assert.ok(page.url().endsWith('/buy'), page.url());
  await page.reload();
  await heading(page).filter({ hasText: 'Order 2' }).waitFor();
  assert.match(await page.locator('main').innerText(), /This is a duplicate\. Order 1 came from the same form/);
  await waitLog(shop, ['POST /buy 200 sold', 'POST /buy 200 sold again']);
  await page.locator('#log .again').waitFor();
});

test('F2 off: the token, or the key, stops the reload', async (t) => {
  for (const [guard, expected, words] of [['token', 'POST /buy 409 refused', 'You have already ordered'],
                                          ['once', 'POST /buy 200 replayed', 'Order 1']]) {
    const shop = await openShop(t);
    const page = await open(t, shop.url);
    await leaveOn(page, guard);
    await order(page).click();
    await heading(page).filter({ hasText: 'Order 1' }).waitFor();
    await page.reload();
    await heading(page).filter({ hasText: words }).waitFor();
    await waitLog(shop, ['POST /buy 200 sold', expected]);
    assert.equal((await stock(shop)).sold, 1, guard);
  }
});

test('after Back the page has a new form, and its button works', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  const token = () => page.locator('form[action="/buy"] input[name="token"]').getAttribute('value');
  const first = await token();
  await leaveOn(page, 'button', 'redirect', 'token', 'once');
  await order(page).click();
  await page.waitForURL(/orders\/1$/);
  await page.goBack();
  await page.waitForFunction((old) => document.querySelector('input[name="token"]').value !== old, first);
  await order(page).click();
  await page.waitForURL(/orders\/2$/);
  await waitLog(shop, ['POST /buy 303 sold', 'POST /buy 303 sold']);
});

/* ---- F3: the token ---------------------------------------------------------------------------------------------- */

async function twoTabs(t, ...guards) {
  const shop = await openShop(t);
  const context = await profile(t);
  const one = await open(t, shop.url, {}, context);
  await leaveOn(one, ...guards);
  const opened = context.waitForEvent('page');
  await one.getByRole('link', { name: 'Open this form in a second tab' }).click();
  const two = await opened;
  await two.waitForLoadState();
  await order(one).click();
  await one.waitForURL(/orders\/1$/);
  await order(two).click();
  return { shop, one, two };
}

test('F3: two tabs with one token: one order, and a page that explains the other', async (t) => {
  const { shop, two } = await twoTabs(t, 'button', 'redirect', 'token');
  await heading(two).filter({ hasText: 'You have already ordered' }).waitFor();
  const words = await two.locator('main').innerText();
  assert.match(words, /token was used for order 1\. Nothing was ordered again/);
  assert.match(words, /sent before: from another tab/);
  await two.getByRole('link', { name: 'Show order 1' }).click();
  await two.waitForURL(/orders\/1$/);
  await waitLog(shop, ['POST /buy 303 sold', 'POST /buy 409 refused']);
  assert.equal((await stock(shop)).sold, 1);
});

test('F3 off: the second tab orders again, and the duplicate is in the log', async (t) => {
  const { shop, two } = await twoTabs(t, 'button', 'redirect');
  await two.waitForURL(/orders\/2$/);
  await waitLog(shop, ['POST /buy 303 sold', 'POST /buy 303 sold again']);
  await two.locator('#log .again').waitFor();
});

test('F3 off: the key replays: the second tab gets the order of the first', async (t) => {
  const { shop, two } = await twoTabs(t, 'button', 'redirect', 'once');
  await two.waitForURL(/orders\/1\?replayed=1$/);
  assert.match(await two.locator('main').innerText(), /You have sent this form before/);
  await waitLog(shop, ['POST /buy 303 sold', 'POST /buy 303 replayed']);
});

/* ---- Without the page -------------------------------------------------------------------------------------------- */

test('curl cannot order twice', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  await page.getByText('Order without this page').click();
  const line = (await page.locator('pre').innerText()).replace(/\\\n/g, ' ').trim();
  const [program, ...args] = line.split(/\s+/);
  assert.equal(program, 'curl');
  const first = (await run('curl', ['-s', ...args])).stdout;
  const second = (await run('curl', ['-s', ...args])).stdout;
  assert.match(first, /^HTTP\/1\.1 303 [^]*Location: \/orders\/1\r/);
  assert.match(second, /^HTTP\/1\.1 409 [^]*The one-time token was used for order 1\. Nothing was ordered again\.\n$/);
  for (const [form, status] of [[{}, 400], [{ token: 'x' }, 400], [{ key: 'k' }, 403], [{ token: 'guess', key: 'k' }, 409],
                                [{ key: 'no spaces' }, 400], [{ key: 'k', colour: 'pink' }, 400]])
    assert.equal((await send(shop, form)).status, status, JSON.stringify(form));
  assert.equal((await stock(shop)).sold, 1);
});

test('the key alone: curl gets the first order again, as it was', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  await leaveOn(page, 'redirect', 'once');
  const form = await newForm(shop);
  const answers = [await send(shop, form), await send(shop, form), await send(shop, {}, { 'Idempotency-Key': `"${form.key}"` })];
  assert.deepEqual(answers.map((a) => a.status), [303, 303, 303]);
  assert.deepEqual(answers.map((a) => a.headers.get('idempotent-replayed')), [null, 'true', 'true']);
  assert.match(answers[1].headers.get('location'), /^\/orders\/1/);
  assert.equal((await send(shop, { ...form, colour: 'red' })).status, 422);
  await waitLog(shop, ['POST /buy 303 sold', 'POST /buy 303 replayed', 'POST /buy 303 replayed', 'POST /buy 422 refused']);
  await leaveOn(page, 'redirect');
  assert.equal((await send(shop, form)).status, 303);
  assert.deepEqual((await log(shop)).slice(-1), ['POST /buy 303 sold again']);
});

test('64 clients send one form at the same moment: one order', async (t) => {
  const shop = await openShop(t, 100);
  const page = await open(t, shop.url);
  for (const [round, guards] of [['token'], ['once'], ['token', 'once']].entries()) {
    await leaveOn(page, 'redirect', ...guards);
    const form = await newForm(shop);
    const answers = await Promise.all(Array.from({ length: 64 }, () => send(shop, form)));
    const placed = answers.filter((a) => a.status === 303 && !a.headers.get('idempotent-replayed'));
    assert.equal(placed.length, 1, guards);
    assert.equal((await stock(shop)).sold, round + 1, guards);
  }
  await leaveOn(page, 'redirect');
  const form = await newForm(shop);
  const answers = await Promise.all(Array.from({ length: 16 }, () => send(shop, form)));
  assert.equal(answers.filter((a) => a.status === 303).length, 16); // so the guards did it
  assert.equal((await stock(shop)).sold, 3 + 16);
});

/* ---- The page ----------------------------------------------------------------------------------------------------- */

test('stock, log and switches are live on every open page', async (t) => {
  const shop = await openShop(t, 3);
  const page = await open(t, shop.url);
  const other = await open(t, shop.url);
  await leaveOn(other, 'redirect', 'token', 'once');
  await page.locator('input[name="button"]:not(:checked)').waitFor();
  const left = page.locator('#stock .left b');
  assert.equal(await left.innerText(), '3');
  await order(other).click();
  await left.filter({ hasText: '2' }).waitFor();
  await page.locator('#log .sold').waitFor();
  assert.match(await page.getByRole('status').innerText(), /Order 1\.|A GET orders nothing\./); // what a screen reader says
  for (let i = 0; i < 3; i++)
    await fetch(shop.url + 'order', { method: 'POST' }); // load generators
  await left.filter({ hasText: '0' }).waitFor();
  await page.locator('#log li', { hasText: 'POST /order \u00d7 2' }).waitFor();
  await order(page).click();
  await heading(page).filter({ hasText: 'Sold out' }).waitFor();
  await page.getByRole('button', { name: 'Refill the stock' }).click();
  await left.filter({ hasText: '3' }).waitFor();
  assert.equal(await heading(page).innerText(), 'Sold out'); // it was not left for that
});

test('a page whose shop is gone says so, and goes on when it is back', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  await page.route('**/live', (route) => route.fulfill({ status: 503, body: 'gone' }));
  await page.locator('body.lost').waitFor();
  assert.equal(await page.getByRole('status').innerText(), 'The shop does not answer.');
  await page.unroute('**/live');
  await page.locator('body:not(.lost)').waitFor();
});

test('all of it by keyboard', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  await page.getByRole('radio', { name: 'Blue' }).focus();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.waitForURL(/orders\/1$/);
  assert.match(await page.locator('main').innerText(), /One red mug/);
  const box = page.getByRole('switch', { name: NAMES.once });
  await box.focus();
  const sent = page.waitForResponse((r) => r.url().endsWith('/guards'));
  await page.keyboard.press('Space');
  await sent;
  await page.reload();
  assert.equal(await page.getByRole('switch', { name: NAMES.once }).isChecked(), false);
});

test('without JavaScript the redirect, the token and the key still work', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url, { javaScriptEnabled: false });
  assert.match(await page.locator('main').innerText(), /JavaScript is off/);
  const form = await page.locator('a[target]').getAttribute('href');
  await order(page).click();
  await page.waitForURL(/orders\/1$/);
  await page.reload();
  assert.match(await page.locator('#log').innerText(), /sold\s+Order 1\./);
  await page.goto(new URL(form, shop.url).href);
  await order(page).click();
  assert.equal(await heading(page).innerText(), 'You have already ordered');
  await page.getByRole('link', { name: /new form/ }).click();
  await page.getByRole('switch', { name: NAMES.token }).uncheck();
  await page.getByRole('button', { name: 'Apply' }).click();
  await page.goto(new URL(form, shop.url).href);
  await order(page).click();
  await page.waitForURL(/orders\/1\?replayed=1$/);
  await waitLog(shop, ['POST /buy 303 sold', 'POST /buy 409 refused', 'POST /buy 303 replayed']);
});

test('it fits a phone, in both colour schemes', async (t) => {
  const shop = await openShop(t);
  await send(shop, await newForm(shop));
  for (const colorScheme of ['light', 'dark']) {
    const page = await open(t, shop.url, { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, colorScheme });
    await page.getByText('Order without this page').tap();
    const [wide, seen, lightness] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth,
      Number(/\d+/.exec(getComputedStyle(document.body).backgroundColor)[0])]);
    assert.ok(wide <= seen, `${wide} wide on ${seen}`);
    const [card, live] = [await page.locator('.card').boundingBox(), await page.locator('.live').boundingBox()];
    const pre = await page.locator('pre').boundingBox();
    assert.ok(pre.x + pre.width < card.x + card.width, 'a long line scrolls by itself');
    assert.ok(live.y >= card.y + card.height, 'one below the other');
    assert.equal(lightness > 128, colorScheme === 'light');
    await page.getByRole('switch', { name: NAMES.slow }).tap();
    assert.ok((await order(page).boundingBox()).height >= 44);
  }
});

test('its policy holds: no script but its own, no foreign page may post or frame it', async (t) => {
  const shop = await openShop(t);
  const answer = await fetch(shop.url);
  const policy = answer.headers.get('content-security-policy');
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe|\*/);
  assert.match(policy, /frame-ancestors 'none'/);
  const form = await newForm(shop);
  for (const origin of ['http://example.com', 'null', shop.url.replace('http', 'https').slice(0, -1) + '0'])
    assert.equal((await send(shop, form, { Origin: origin })).status, 403, origin);
  assert.equal((await send(shop, form, { Origin: shop.url.slice(0, -1) })).status, 303);
  const page = await open(t, shop.url + '?token=%3Cb%3E&key=%22%3E%3Cscript%3E'); // no words: a new form
  assert.match(await page.locator('form[action="/buy"] input[name="key"]').getAttribute('value'), /^\w{32}$/);
  const ran = await page.evaluate(() => {
    const script = document.createElement('script');
    script.textContent = 'globalThis.ran = true';
    document.head.append(script);
    return globalThis.ran === true;
  }).catch((error) => error);
  assert.equal(ran, false);
  assert.equal(page.faults.length, 1); // which the browser has reported
  page.faults.length = 0;
});
