/** Very many items in the web app: bounds are asserted, and durations are printed for people to read. */
import t from 'tap';
import type { Page } from 'puppeteer-core';
import { Device } from '../src/sdk/device.js';
import { nodePlatform } from '../src/sdk/node-platform.js';
import { join } from '../src/sdk/pairing.js';
import { CHROMIUM, startBrowser } from './support/browser.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(900_000);

const ITEMS = Number(process.env['WEB_ITEMS'] ?? 20_000);
const AT_ONCE = 400;
/** Elements of the page, however long the list is. */
const ELEMENTS_MAX = 2_000;
const HEAP_MAX = 150 * 1024 * 1024;

const skip = CHROMIUM === undefined && 'this machine has no Chromium';

/** Pairs a device of this process, which fills the bin. */
async function fill(app: App, serverUrl: string): Promise<void> {
  await app.call('offer');
  const offer = await app.shows('offer', ({ step }) => step === 'words');
  const platform = await nodePlatform();
  const words = offer.step === 'words' ? offer.words : '';
  const joining = join({ platform, serverUrl, name: 'Filler', glyph: 'laptop', words, onDigits: () => undefined });
  await app.shows('offer', ({ step }) => step === 'compare');
  await app.admit();
  const problems: Error[] = [];
  const device = await Device.open({ platform, identity: await joining, onProblem: (error) => problems.push(error) });
  await device.connect();
  const item = (at: number) => ({
    ...{ binId: 'inbox', type: 'link' as const },
    payload: { url: `https://example.org/${at}`, title: `Page ${at} about gardens and trains`, site: 'example.org' },
  });
  for (let from = 0; from < ITEMS; from += AT_ONCE)
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, ITEMS - from) }, (_, at) => device.put(item(from + at))));
  device.close();
  await app.shows('list', ({ total }) => total === ITEMS, 600_000);
}

/** Records every task of the main thread that takes more than 50 ms. */
const watchTasks = (page: Page) =>
  page.evaluateOnNewDocument(() => {
    const tasks: number[] = [];
    Object.assign(globalThis, { tasks });
    new PerformanceObserver((list) => tasks.push(...list.getEntries().map(({ duration }) => duration))).observe({
      entryTypes: ['longtask'],
    });
  });

const tasksOf = (page: Page): Promise<number[]> =>
  page.evaluate(() => (globalThis as unknown as { tasks: number[] }).tasks.splice(0));

const rows = (page: Page): Promise<unknown> => page.waitForSelector('.row');

t.test(
  `WEB-81: ${ITEMS} items are listed, scrolled and searched with a bounded page and memory`,
  { skip },
  async (t) => {
    const server = await runServer(t);
    const url = `http://localhost:${server.port}`;
    const browser = await startBrowser(t, CHROMIUM ?? '');
    const first = await App.open(browser, `${url}/`);
    await first.claim();
    await fill(first, url);
    await first.page.close();
    const page = await browser.newPage();
    await watchTasks(page);
    await page.goto(`${url}/`);
    await rows(page);
    t.comment(`first list after ${Math.round(await page.evaluate(() => performance.now()))} ms`);
    t.comment(`tasks over 50 ms until then: ${(await tasksOf(page)).join(' ')}`);
    await page.evaluate(async () => {
      const list = [...document.querySelectorAll('*')].find(({ scrollHeight }) => scrollHeight > 100_000);
      for (let step = 1; step <= 50 && list !== undefined; step++) {
        list.scrollTop = (list.scrollHeight * step) / 50;
        await new Promise((resolve) => requestAnimationFrame(resolve));
      }
    });
    await rows(page);
    t.comment(`tasks over 50 ms while it was scrolled: ${(await tasksOf(page)).join(' ')}`);
    await page.keyboard.press('/');
    await page.keyboard.type(`trains ${ITEMS - 1}`);
    const wanted = `Page ${ITEMS - 1} `;
    await page.waitForFunction(
      (title) =>
        document.querySelectorAll('.row').length === 1 && document.querySelector('.row')?.textContent.includes(title),
      {},
      wanted,
    );
    t.comment(`tasks over 50 ms while it was searched: ${(await tasksOf(page)).join(' ')}`);
    t.ok((await page.$$('*')).length < ELEMENTS_MAX, 'the page holds only what is visible');
    const session = await page.createCDPSession();
    const heaps = [await session.send('Runtime.getHeapUsage')];
    for (const worker of page.workers()) heaps.push(await worker.client.send('Runtime.getHeapUsage'));
    const used = heaps.reduce((sum, { usedSize }) => sum + usedSize, 0);
    t.comment(`memory of page and engine: ${Math.round(used / 1024 / 1024)} MB`);
    t.ok(used < HEAP_MAX, 'page and engine stay below 150 MB');
  },
);
