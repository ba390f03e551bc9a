/** The client library in a real browser, against a real server. */
import { builtinModules } from 'node:module';
import { isDeepStrictEqual } from 'node:util';
import type { Page as BrowserPage } from 'puppeteer-core';
import t from 'tap';
import type * as BrowserModule from '../src/sdk/browser-platform.js';
import { bundled, CHROMIUM, freshContext, servePage, upgradeDatabases } from './support/browser.js';
import type { Page } from './support/browser-page.js';
import { until } from './support/events.js';
import { runServer } from './support/server.js';

t.setTimeout(180_000);

const PAGE = new URL('./support/browser-page.js', import.meta.url);

t.test('STORE-20: the entry for browsers imports nothing of Node and nothing of the server', async (t) => {
  const { metafile } = await bundled(new URL('../src/sdk/browser.js', import.meta.url));
  // `(disabled):x`: an empty module in place of one that a library imports in Node only.
  const inputs = Object.keys(metafile.inputs).filter((path) => !path.startsWith('(disabled):'));
  const outside = inputs.filter((path) => !/(^|\/)(build\/src\/(sdk|crypto|protocol)|node_modules)\//.test(path));
  t.same(outside, [], 'sdk, crypto, protocol and libraries only');
  const libraries = new Set(inputs.flatMap((path) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []));
  for (const name of ['pg', 'uWebSockets.js', 'typia', 'classic-level', 'sodium-native', 'ws', 'pino']) {
    t.notOk(libraries.has(name), `no ${name}`);
  }
  t.ok(libraries.has('libsodium-wrappers-sumo'), 'the libraries were found');
  const imports = Object.values(metafile.inputs).flatMap((input) => input.imports);
  const builtIns = imports.filter(({ path }) => path.startsWith('node:') || builtinModules.includes(path));
  t.same(
    builtIns.filter(({ external }) => external === true),
    [],
  );
});

async function fresh(page: BrowserPage, origin: string): Promise<void> {
  await page.goto(origin);
  await page.waitForFunction('globalThis.page !== undefined');
}

/** Calls one of the page's functions. */
const call =
  (page: BrowserPage) =>
  async <K extends Exclude<keyof Page, 'problems'>>(name: K, ...args: Parameters<Page[K]>): Promise<unknown> =>
    page.evaluate(
      (called, given) =>
        (globalThis as unknown as { page: Record<string, (...all: unknown[]) => unknown> }).page[called]?.(...given),
      name,
      args,
    );

t.test('a device in a browser', { skip: CHROMIUM === undefined && 'this machine has no Chromium' }, async (t) => {
  const { code } = await bundled(PAGE);
  const origin = await servePage(t, code);
  const server = await runServer(t, { env: { CORS_ORIGINS: origin } });
  const browser = await freshContext(t);
  const page = await browser.newPage();
  const told: string[] = [];
  page.on('pageerror', (error) => told.push(String(error)));
  const device = call(page);
  await fresh(page, origin);
  const claimed = (await device('claim', `http://127.0.0.1:${server.port}`)) as { identity: never; words: number };
  t.equal(claimed.words, 12);
  const { identity } = claimed;

  await t.test('STORE-21: a device claims, writes and lists under a strict content security policy', async (t) => {
    t.match(await device('open', identity), { repair: null, held: { itemCount: 0 }, cursor: { since: 0 } });
    t.equal(await device('connect'), undefined);
    t.match(await device('put', 'one'), { version: 1 });
    t.match(await device('put', 'two'), { version: 2 });
    t.same(await device('list'), [
      { text: 'two', pending: false },
      { text: 'one', pending: false },
    ]);
    const [row] = await server.sql('SELECT count(*)::int AS items FROM items');
    t.same(row, { items: 2 });
  });

  await t.test('STORE-21: a second page of the same device gets `locked`', async (t) => {
    const other = await browser.newPage();
    await fresh(other, origin);
    t.match(await call(other)('open', identity), { code: 'locked' });
    await other.close();
  });

  await t.test('STORE-21: a reload without a server shows what was read and what was not sent', async (t) => {
    await page.setOfflineMode(true);
    t.match(await device('put', 'three'), { code: 'queued' });
    t.equal(await device('close'), undefined);
    await page.setOfflineMode(false);
    await fresh(page, origin);
    await page.setOfflineMode(true);
    t.match(await device('open', identity), { repair: null });
    t.same(await device('list'), [
      { text: 'three', pending: true },
      { text: 'two', pending: false },
      { text: 'one', pending: false },
    ]);
    await page.setOfflineMode(false);
    t.equal(await device('connect'), undefined);
    t.match(await device('put', 'four'), { version: 4 });
    // The next start reads what the stream has delivered, which may be later than the reply.
    await until('all four', async () => isDeepStrictEqual(await device('held'), { itemCount: 4, versionSum: 10 }));
    t.equal(await device('close'), undefined);
  });

  await t.test('STORE-21 STORE-10: a damaged database is rebuilt from the server', async (t) => {
    await fresh(page, origin);
    t.match(await device('open', identity), { repair: null, held: { itemCount: 4, versionSum: 10 } });
    t.equal(await device('close'), undefined);
    t.ok(await page.evaluate(damage), 'an entry was changed');
    t.match(await device('open', identity), { repair: { carried: 0, lost: 0 }, held: { itemCount: 0 } });
    t.equal(await device('connect'), undefined);
    t.same(await device('held'), { itemCount: 4, versionSum: 10 });
    t.equal(((await device('list')) as unknown[]).length, 4);
    t.equal(await device('close'), undefined);
    t.match(await device('open', identity), { repair: null, held: { itemCount: 4 } });
  });

  await t.test('STORE-23: a device opens, connects, writes and lists in a dedicated worker', async (t) => {
    await fresh(page, origin);
    const inWorker = (name: string, ...args: unknown[]): Promise<unknown> => page.evaluate(callWorker, name, args);
    t.match(await inWorker('open', identity), { repair: null, held: { itemCount: 4, versionSum: 10 } });
    t.equal(await inWorker('connect'), undefined);
    t.match(await inWorker('put', 'five'), { version: 5 });
    t.equal(((await inWorker('list')) as unknown[]).length, 5);
    t.equal(await inWorker('close'), undefined);
  });
  await t.test('STORE-21: a page of a newer version gets the databases, and this one reports it', async (t) => {
    await fresh(page, origin);
    t.match(await device('open', identity), { repair: null });
    const newer = await browser.newPage();
    await fresh(newer, origin);
    const outcomes = await newer.evaluate(upgradeDatabases);
    t.ok(outcomes.length > 0 && outcomes.every((outcome) => outcome === 'upgraded'), outcomes.join());
    t.match(
      await device('put', 'six'),
      { code: 'closed' },
      'what this page would write is refused, not lost in silence',
    );
    t.equal(await device('close'), undefined);
    t.match(await device('open', identity), { code: 'newer_format' });
    await newer.close();
  });
  t.same(told, [], 'nothing was thrown in the page');
});

/** Runs in the page: flips a bit of the first entry. */
async function damage(): Promise<boolean> {
  const done = <T>(request: IDBRequest<T>): Promise<T> =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(new Error('IndexedDB failed'));
    });
  for (const { name = '' } of await indexedDB.databases()) {
    if (!name.endsWith('.1')) continue;
    const db = await done(indexedDB.open(name));
    const [store = ''] = db.objectStoreNames;
    const records = db.transaction([store], 'readwrite').objectStore(store);
    const key = (await done(records.getAllKeys())).find((one) => typeof one === 'string' && one.startsWith('e'));
    if (key === undefined) return false;
    const value = (await done(records.get(key))) as Uint8Array;
    value[40] = (value[40] ?? 0) ^ 1;
    await done(records.put(value, key));
    db.close();
    return true;
  }
  return false;
}

/** Runs in the page: calls one of its functions in a worker. */
function callWorker(name: string, args: unknown[]): Promise<unknown> {
  const kept = globalThis as unknown as { worker?: Worker };
  const worker = (kept.worker ??= new Worker('/page.js', { type: 'module' }));
  return new Promise((resolve, reject) => {
    worker.onerror = ({ message }) => reject(new Error(message));
    worker.onmessage = ({ data }: MessageEvent<{ value: unknown }>) => resolve(data.value);
    worker.postMessage({ name, args });
  });
}

t.test(
  'WEB-94: a large body is sent where no file can be made for it, and its file is closed where it cannot be filled',
  async (t) => {
    const sent: unknown[] = [];
    const calls: string[] = [];
    const full = {
      getDirectoryHandle: () => Promise.resolve(full),
      getFileHandle: () => Promise.resolve({ createSyncAccessHandle: () => Promise.resolve(access) }),
      removeEntry: () => Promise.resolve(calls.push('remove')),
    };
    const access = {
      write: () => {
        throw new Error('the disk is full');
      },
      close: () => calls.push('close'),
    };
    const put = (_: string, { body }: RequestInit) => Promise.resolve(sent.push(body) && new Response());
    const body = new Uint8Array(2 * 1024 * 1024);
    const getRandomValues = crypto.getRandomValues.bind(crypto);
    for (const [storage, randomUUID] of [
      [undefined, undefined],
      [{ getDirectory: () => Promise.resolve(full) }, () => 'name'],
    ]) {
      t.intercept(globalThis, 'navigator', { value: { storage }, configurable: true });
      t.intercept(globalThis, 'crypto', { value: { getRandomValues, randomUUID }, configurable: true });
      t.intercept(globalThis, 'fetch', { value: put, configurable: true });
      const fresh = `../src/sdk/browser-platform.js?${storage === undefined ? 'none' : 'full'}`;
      const { browserPlatform } = (await import(fresh)) as typeof BrowserModule;
      await (await browserPlatform()).fetch('https://store.example/part', { body });
    }
    t.same(sent, [body, body]);
    t.same(calls, ['remove', 'close', 'remove']);
  },
);
