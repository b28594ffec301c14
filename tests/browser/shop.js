/* The page of `dibs lab shop`. */
'use strict';

const path = require('node:path');
const { assert, open, scratch, start, test } = require('./browser');

function openShop(t, stock = 5) {
  const store = 'sqlite://' + path.join(scratch(t), 'shop.db');
  return start(t, ['lab', 'shop', '--strategy', 'dibs-sqlite', '--url', store, '--port', '0', '--threads', '8',
                   '--stock', String(stock)]);
}

test('the page shows the stock and has a button', async (t) => {
  const shop = await openShop(t);
  const page = await open(t, shop.url);
  assert.match(await page.locator('body').innerText(), /5 of 5 left/);
  await page.getByRole('button', { name: 'Order one' }).click();
  assert.match(await page.locator('body').innerText(), /sold/);
  await page.goBack();
  await page.reload();
  assert.match(await page.locator('body').innerText(), /4 of 5 left/);
});
