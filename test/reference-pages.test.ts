/** Pages of the reference in a real browser: the search, on a server and from a disk, and a page on a phone. */
import t from 'tap';
import type { Page } from 'puppeteer-core';
import { CHROMIUM, freshContext } from './support/browser.js';
import { faultsOnPhone, openSaved } from './support/pages.js';
import { runServer } from './support/server.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';

/** Searches by keyboard alone, and follows the first hit. */
async function searched(page: Page, words: string): Promise<string> {
  await page.keyboard.press('/');
  await page.keyboard.type(words);
  await page.waitForSelector('.search.open .found a mark');
  await page.keyboard.press('ArrowDown');
  await Promise.all([page.waitForNavigation(), page.keyboard.press('Enter')]);
  return new URL(page.url()).pathname.replace(/^.*\/(?=[^/]*$)/, '') + new URL(page.url()).hash;
}

t.test('REF-21 REF-22: search by keyboard on a server and from a disk; a page fits a phone', { skip }, async (t) => {
  const server = await runServer(t);
  const browser = await freshContext(t);
  const problems: string[] = [];
  const page = await browser.newPage();
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
  await page.setViewport({ width: 1280, height: 800 });
  const asked: string[] = [];
  await page.goto(`http://127.0.0.1:${server.port}/docs/errors`);
  page.on('request', (request) => asked.push(request.url()));
  t.equal(
    await page.$eval('.contents', (details) => (details as HTMLDetailsElement).open),
    true,
    'on a wide screen the contents are open',
  );
  t.match(await searched(page, 'storage_unavailable'), /^error(s|-storage_unavailable)#storage_unavailable$/);
  t.same(
    asked.filter((url) => url.includes('?') || url.includes('storage_unavailable=')),
    [],
    'the query is not sent to the server',
  );
  await page.keyboard.press('/');
  await page.keyboard.type('nothing has these words qqq');
  await page.waitForFunction(() => document.querySelector('.found [role=status]')?.textContent === 'Nothing found');
  await page.keyboard.press('Escape');
  t.equal(await page.$('.search.open'), null);
  t.same(problems, [], 'the policy blocks nothing that the page needs');
  const saved = await openSaved(browser, 'http');
  t.equal(
    await saved.$eval('.contents', (details) => (details as HTMLDetailsElement).open),
    false,
    'on a phone the contents are closed',
  );
  t.same(await faultsOnPhone(saved), []);
  t.match(await searched(saved, 'check-storage reason'), /^[a-z-]+\.html#/);
  await saved.setJavaScriptEnabled(false);
  await saved.reload();
  await Promise.all([saved.waitForNavigation(), saved.click('.az-link')]);
  t.match(saved.url(), /index-a-z\.html$/);
  await saved.click('.menu');
  t.ok(
    await saved.$eval('#pages', (pages) => pages.matches(':popover-open')),
    'the list of pages opens without a script',
  );
});
