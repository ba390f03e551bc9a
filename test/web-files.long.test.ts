/** Large files through the web app: what the browser holds of them, and tabs that die while one is sent. Linux only. */
import { createReadStream } from 'node:fs';
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { launch, type Browser } from 'puppeteer-core';
import t, { type Test } from 'tap';
import { CHROMIUM } from './support/browser.js';
import { memoryOf } from './support/browser-memory.js';
import { CuttingProxy } from './support/cutting-proxy.js';
import { until } from './support/events.js';
import { hashOf, randomFile } from './support/large-files.js';
import { temporaryFolder } from './support/postgres.js';
import { spawnServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const MIB = 1024 * 1024;
const PART = 5 * MIB;
const LATE_MS = 300_000;
/** Of all processes of the browser together, with garbage that is not collected yet. */
const HELD_MAX = 64 * MIB;
const skip = (CHROMIUM === undefined || process.platform !== 'linux') && 'this needs Chromium on Linux';

/** A claimed server behind a proxy, and a tab whose network is not watched: the tools would keep what it sends. */
async function scene(t: Test) {
  const server = await spawnServer(t, { env: { LOG_LEVEL: 'info' } });
  const proxy = await CuttingProxy.before(t, server.port);
  const url = `${proxy.url}/`;
  const folder = await temporaryFolder(t);
  const args = ['--no-sandbox', '--disable-dev-shm-usage'];
  const userDataDir = await temporaryFolder(t);
  const browser = await launch({ executablePath: CHROMIUM ?? '', userDataDir, args, networkEnabled: false });
  t.teardown(() => browser.close());
  const app = await App.open(browser, url);
  await app.claim();
  await app.page.evaluate(() => navigator.serviceWorker.ready);
  // From the first reload on the service worker controls the page.
  await app.reload();
  await app.ready();
  const downloads = join(folder, 'downloads');
  await mkdir(downloads);
  const tools = await browser.target().createCDPSession();
  await tools.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: downloads });
  return { proxy, url, folder, browser, app, downloads };
}

/** Picks a file, as a person does. */
async function pick({ page }: App, path: string): Promise<void> {
  const input = 'input[type=file]:not([capture])';
  if ((await page.$(input)) === null) await page.keyboard.press('n');
  const found = await page.waitForSelector(input);
  await found?.uploadFile(path);
}

/** Waits for the item of a file, which must exist once. */
async function itemOf(t: Test, app: App, name: string): Promise<string> {
  const isThere = ({ title, pending }: { readonly title: string; readonly pending: boolean }): boolean =>
    title === name && !pending;
  const { items } = await app.shows('list', ({ items }) => items.some(isThere), LATE_MS);
  t.equal(items.filter(({ title }) => title === name).length, 1, 'the item exists once');
  return items.find(({ title }) => title === name)?.id ?? '';
}

/** Saves a file to the disk; returns its path. */
async function save(app: App, id: string, to: { readonly folder: string; readonly name: string }): Promise<string> {
  await app.page.evaluate((src) => {
    document.body.append(Object.assign(document.createElement('iframe'), { hidden: true, src }));
  }, `/web/content/${id}?download=${to.name}`);
  await until('the download', async () => (await readdir(to.folder)).includes(to.name), LATE_MS);
  return join(to.folder, to.name);
}

/** How many bodies of requests lie in the origin's private file system. */
const bodiesOf = ({ page }: App): Promise<number> =>
  page.evaluate(async () => {
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle('service-bodies');
    let count = 0;
    for await (const _ of (folder as unknown as { keys(): AsyncIterable<string> }).keys()) count++;
    return count;
  });

/** The most bytes that the browser held during the work beyond its idle memory. */
async function heldWhile(browser: Browser, work: () => Promise<unknown>): Promise<number> {
  const pid = browser.process()?.pid ?? 0;
  const idle = await memoryOf(pid);
  let peak = idle;
  let over = false;
  const ended = work().finally(() => (over = true));
  while (!over) {
    peak = Math.max(peak, await memoryOf(pid));
    await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 50))]);
  }
  await ended;
  return peak - idle;
}

t.test('WEB-94: the browser holds a bounded part of a file of 256 MiB that it sends and saves', { skip }, async (t) => {
  const { folder, browser, app, downloads } = await scene(t);
  const first = join(folder, 'first.bin');
  await randomFile(first, 12 * MIB);
  await pick(app, first);
  // A small file first: the memory that sending and saving need once is not counted.
  await save(app, await itemOf(t, app, 'first.bin'), { folder: downloads, name: 'first.bin' });
  const path = join(folder, 'large.bin');
  await randomFile(path, 256 * MIB);
  let id = '';
  const up = await heldWhile(browser, async () => {
    await pick(app, path);
    id = await itemOf(t, app, 'large.bin');
  });
  t.ok(up < HELD_MAX, `up: ${Math.round(up / MIB)} MiB`);
  let copy = '';
  const down = await heldWhile(browser, async () => {
    copy = await save(app, id, { folder: downloads, name: 'large.bin' });
  });
  t.ok(down < HELD_MAX, `down: ${Math.round(down / MIB)} MiB`);
  t.equal(await hashOf(createReadStream(copy)), await hashOf(createReadStream(path)));
});

t.test('WEB-92 CBLOB-41: an upload whose tab dies within a part continues in another tab', { skip }, async (t) => {
  const { folder, proxy, url, browser, app, downloads } = await scene(t);
  const size = 40 * MIB;
  const path = join(folder, 'film.bin');
  await randomFile(path, size);
  let died: () => void = () => undefined;
  const dead = new Promise<void>((resolve) => (died = resolve));
  const next = await App.open(browser, url);
  await next.ready();
  await app.page.bringToFront();
  proxy.count([3.5 * PART], () => died());
  await pick(app, path);
  await dead;
  // The tab's process ends, without the events that closing a tab has.
  await app.page.goto('chrome://crash').catch(() => undefined);
  await next.page.bringToFront();
  const id = await itemOf(t, next, 'film.bin');
  await next.shows('uploads', (uploads) => uploads.length === 0);
  t.ok(proxy.up < 1.05 * size + PART, `${(proxy.up / size).toFixed(4)} of its bytes were sent`);
  t.equal(await bodiesOf(next), 0, 'nothing is left of the part that the dead tab was sending');
  const copy = await save(next, id, { folder: downloads, name: 'film.bin' });
  t.equal(await hashOf(createReadStream(copy)), await hashOf(createReadStream(path)));
});
