/* What browser tests share: Debian's Chromium without a window, pages of their own, servers that are ended with their test.
 *
 *   const { test, assert, start, open } = require('./browser');
 *
 *   test('the page has a heading', async (t) => {
 *     const shop = await start(t, ['lab', 'shop', ...]);    // the command, until it has named its address
 *     const page = await open(t, shop.url);                 // a page of Playwright, with a profile of its own
 *     assert.equal(await page.locator('h1').count(), 1);
 *   });
 *
 * run.py starts the programs. An error in a script of the page, a violation of its content security policy and a request to
 * another host fail the test. */
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { after, test } = require('node:test');
const { chromium } = require('playwright-core');

const START_MS = 60000; // a busy machine
const ARGS = ['--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
              '--disable-component-update', '--disable-sync'];

let browser;

/* When the test ends, in reverse order: pages before their server. */
const endings = new WeakMap();

function atEnd(t, what) {
  if (!endings.has(t)) {
    const list = [];
    endings.set(t, list);
    t.after(async () => {
      let fault;
      for (const end of list.reverse())
        await Promise.resolve().then(end).catch((error) => (fault ??= error));
      if (fault)
        throw fault;
    });
  }
  endings.get(t).push(what);
}

/* Playwright gives each browser a fresh --user-data-dir, and adds --headless and --no-sandbox. */
async function theBrowser() {
  browser ??= chromium.launch({ executablePath: process.env.DIBS_CHROMIUM, headless: true, chromiumSandbox: false,
                                args: ARGS, timeout: START_MS });
  return browser;
}

after(async () => {
  if (browser)
    await (await browser).close();
});

/* When the run is ended, nothing that it has started stays. Playwright does the same for the browser. */
const children = new Set();
process.once('SIGTERM', () => process.exit(1));
process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));

function scratch(t) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'test-'));
  atEnd(t, () => fs.rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/* Runs `dibs ARGS` until the end of the test; resolves when its messages name an address. */
function start(t, args, options = {}) {
  const child = spawn(process.env.DIBS, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
  children.add(child);
  child.on('close', () => children.delete(child));
  const server = { child, said: '', ended: null };
  server.ended = new Promise((resolve) => child.on('close', (code, signal) => resolve(signal ?? code)));
  server.stop = async (signal = 'SIGTERM') => {
    child.kill(signal);
    return server.ended;
  };
  atEnd(t, () => server.stop());
  child.stdout.on('data', () => {});
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error('it named no address: ' + server.said)), START_MS);
    child.on('error', reject);
    child.stderr.on('data', (data) => {
      server.said += data;
      server.url = /(https?:\/\/[^\s;]+)[\s;]/.exec(server.said)?.[1]; // whole: a line may come in pieces
      if (server.url) {
        clearTimeout(late);
        resolve(server);
      }
    });
    server.ended.then((end) => {
      clearTimeout(late);
      reject(new Error(`it ended with ${end}: ${server.said}`));
    });
  });
}

/* Nothing on the page may fail unseen, and nothing is loaded from elsewhere. A test that expects a fault takes it out of
 * page.faults. */
function watch(t, page, host) {
  const faults = (page.faults = []);
  page.on('pageerror', (error) => faults.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error' && !/status of [45]\d\d/.test(message.text())) // a refusal is an answer
      faults.push(message.text());
  });
  page.on('request', (request) => {
    if (/^(https?|wss?):/.test(request.url()) && new URL(request.url()).host !== host)
      faults.push('a request to ' + request.url());
  });
  atEnd(t, () => assert.deepEqual(faults, []));
}

/* A profile of its own: cookies and storage are shared only by its pages. Options are those of Playwright's newContext. */
async function profile(t, options = {}) {
  const context = await (await theBrowser()).newContext(options);
  atEnd(t, () => context.close());
  return context;
}

/* A page of a new profile, or of the given one. */
async function open(t, url, options = {}, context = undefined) {
  const page = await (context ?? (await profile(t, options))).newPage();
  watch(t, page, new URL(url).host);
  await page.goto(url);
  return page;
}

module.exports = { assert, open, profile, scratch, start, test };
