// A person in Chromium: opens an address, logs in and agrees, until the redirect has ended.
//
//     node browser.mjs REPORT ADDRESS
//
// Appends the pages that it saw to the file REPORT.

import { appendFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [file, address] = process.argv.slice(2);
const require = createRequire(join(process.env.COVE_TEST_JUDGES, 'package.json'));
const { chromium } = require('playwright-core');

// The sandbox of Chromium wants another user than root.
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
const page = await browser.newPage();
const report = async () => {
  const [text, scripts] = [await page.innerText('body'), await page.locator('script').count()];
  appendFileSync(file, `${JSON.stringify({ url: page.url(), text, scripts })}\n`);
};
await page.goto(address, { waitUntil: 'domcontentloaded', timeout: 120_000 });
while (!new URL(page.url()).pathname.startsWith('/callback')) {
  await report();
  if (await page.locator('input[name=login]').count()) {
    await page.fill('input[name=login]', 'ada');
    await page.fill('input[name=password]', 'lovelace');
  }
  await Promise.all([
    page.waitForNavigation({ waitUntil: 'domcontentloaded', timeout: 120_000 }),
    page.click('button[type=submit]'),
  ]);
}
await report();
await browser.close();
