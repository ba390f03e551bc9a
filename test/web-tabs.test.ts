/** The web app on a real server, in a real browser: one device for all tabs, whatever happens to tabs and server. */
import { randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { ulid } from '../src/sdk/ulid.js';
import type { ItemRow } from '../src/web/link/messages.js';
import { pagesText } from '../src/web/ui/strings-pages.js';
import * as strings from '../src/web/ui/strings.js';
import { CHROMIUM, freshContext } from './support/browser.js';
import { until } from './support/events.js';
import { runServer } from './support/server.js';
import { TcpProxy } from './support/tcp-proxy.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const text = (words: string) =>
  ({ id: ulid(Date.now(), randomBytes), binId: 'inbox', type: 'text', payload: { text: words } }) as const;
const titles = (items: readonly ItemRow[]): string[] => items.map(({ title }) => title);

/** A claimed server behind a proxy, and a tab that claimed it. */
async function scene(t: Test) {
  const server = await runServer(t);
  const proxy = await TcpProxy.before(t, `http://127.0.0.1:${server.port}`);
  const url = proxy.through(`http://127.0.0.1:${server.port}/`);
  const browser = await freshContext(t);
  const app = await App.open(browser, url);
  await app.claim();
  const versions = async () => (await server.sql('SELECT count(*)::int AS n FROM items'))[0]?.['n'];
  return { server, proxy, url, browser, app, versions };
}

t.test('WEB-55: all tabs are one device, and continue when the leading tab is closed', { skip }, async (t) => {
  const { app, browser, url, server } = await scene(t);
  const second = await App.open(browser, url);
  const third = await App.open(browser, url);
  await Promise.all([second.ready(), third.ready()]);
  const [row] = await server.sql('SELECT count(*)::int AS n FROM devices');
  t.equal(row?.['n'], 1, 'one device');
  await second.call('put', text('from the second tab'));
  for (const tab of [app, third]) await tab.shows('list', ({ items }) => titles(items).includes('from the second tab'));
  await app.page.close();
  await second.call('put', text('after the first was closed'));
  for (const tab of [second, third])
    await tab.shows('list', ({ items }) => items.some(({ title, pending }) => title.startsWith('after') && !pending));
  await third.ready();
  t.equal((await server.sql('SELECT count(*)::int AS n FROM devices'))[0]?.['n'], 1);
  t.same([...second.faults, ...third.faults], []);
});

t.test('WEB-55 WEB-75: unsaved input of a tab outlives the tab that leads', { skip }, async (t) => {
  const { app, browser, url } = await scene(t);
  const item = text('before');
  await app.call('put', item);
  const second = await App.open(browser, `${url}#/item/${item.id}`);
  await (await second.page.waitForSelector(`button[aria-label="${strings.list.edit}"]`))?.click();
  await (await second.page.waitForSelector('form.item textarea'))?.focus();
  await second.page.keyboard.press('End');
  await second.page.keyboard.type(', and after');
  const phases = await second.page.evaluateHandle(() => {
    const { link } = (globalThis as unknown as { probe: { link: { watch(...all: unknown[]): void } } }).probe;
    const seen: string[] = [];
    link.watch('phase', null, ({ phase }: { phase: string }) => seen.push(phase));
    return seen;
  });
  await app.page.close();
  await until('another engine', async () => (await phases.jsonValue()).slice(1).includes('open'));
  await second.page.waitForFunction(
    () => document.querySelector<HTMLTextAreaElement>('form.item textarea')?.value === 'before, and after',
  );
  t.same(second.faults, []);
});

t.test('WEB-55: as many tabs as are promised each show a list and an item', { skip }, async (t) => {
  const { app, browser, url } = await scene(t);
  const shown = text('in every tab');
  await app.call('put', shown);
  // The links of tabs: so many pages would take the machine's memory.
  const answered = await app.page.evaluate(async (id) => {
    interface Client {
      watch(topic: string, params: unknown, onValue: (value: { items: unknown[] } | null) => void): void;
    }
    const { link } = (globalThis as unknown as { probe: { link: Client & { constructor: new () => Client } } }).probe;
    const all = Array.from({ length: 190 }, async () => {
      const tab = new link.constructor();
      await new Promise<void>((resolve) =>
        tab.watch('list', { offset: 0, limit: 50 }, (value) => value?.items.length === 1 && resolve()),
      );
      await new Promise<void>((resolve) => tab.watch('item', { id }, (value) => value !== null && resolve()));
    });
    return (await Promise.all(all)).length;
  }, shown.id);
  t.equal(answered, 190);
  const last = await App.open(browser, `${url}#/item/${shown.id}`);
  await last.shows('list', ({ items }) => titles(items).includes('in every tab'));
  t.same(await last.value('notices'), []);
});

t.test('WEB-55: the next tab waits for the store of one that takes long to end', { skip }, async (t) => {
  const { app, browser, url } = await scene(t);
  const second = await App.open(browser, url);
  await second.ready();
  // In the place of a worker that still runs: gets the store's lock next, and holds it longer than a few attempts.
  const waits = await second.page.evaluate(async () => {
    const { held = [] } = await navigator.locks.query();
    const name = held.map((lock) => lock.name ?? '').find((lock) => lock.startsWith('service-device-'));
    if (name === undefined) return false;
    void navigator.locks.request(name, () => new Promise((resolve) => setTimeout(resolve, 7_000)));
    return true;
  });
  t.equal(waits, true);
  await app.page.close();
  await second.call('put', text('afterwards'));
  await second.shows('list', ({ items }) => items.some(({ title, pending }) => title === 'afterwards' && !pending));
  t.same(second.faults, []);
});

t.test(
  'WEB-95: a silent connection is noticed soon after the network changed or the page is shown again',
  { skip },
  async (t) => {
    const { app, proxy } = await scene(t);
    const ways = [
      () => app.page.setOfflineMode(true),
      () => app.page.evaluate(() => void document.dispatchEvent(new Event('visibilitychange', { bubbles: true }))),
    ];
    for (const happens of ways) {
      proxy.swallow(true);
      await happens();
      // By its own heartbeat the device would notice after 90 s.
      await app.shows('info', (info) => info?.connection.state === 'waiting', 45_000);
      proxy.swallow(false);
      await app.page.setOfflineMode(false);
      await app.call('reconnect');
      await app.ready();
    }
    t.same(app.faults, []);
  },
);

t.test('WEB-56: a tab that dies in the middle of an upload loses nothing', { skip }, async (t) => {
  const { app, browser, url, proxy, versions } = await scene(t);
  const second = await App.open(browser, url);
  await second.ready();
  proxy.swallow(true);
  await second.page.evaluate(() => {
    const { link } = (globalThis as unknown as { probe: { link: { call(...all: unknown[]): Promise<unknown> } } })
      .probe;
    return link.call('upload', { binId: 'inbox', files: [new File([new Uint8Array(700_000)], 'film.bin')] });
  });
  await second.shows('uploads', (uploads) => uploads[0]?.state === 'sending');
  // The tab's process ends, without the events that closing a tab has.
  await app.page.goto('chrome://crash').catch(() => undefined);
  proxy.swallow(false);
  await second.shows('list', ({ items }) => items.some(({ title, pending }) => title === 'film.bin' && !pending));
  await second.shows('uploads', (uploads) => uploads.length === 0);
  t.equal(await versions(), 1, 'the file exists once');
});

t.test(
  'WEB-57: without a server the app opens, shows its items, accepts changes, and sends them once',
  { skip },
  async (t) => {
    const { app, proxy, versions } = await scene(t);
    await app.call('put', text('before'));
    await app.call('binCreate', { name: 'Home', emoji: '' });
    await app.shows('list', ({ items }) => items.some(({ pending }) => !pending));
    await app.page.evaluate(() => navigator.serviceWorker.ready);
    const ways: readonly (readonly [string, (away: boolean) => void])[] = [
      ['refuses', (away) => (proxy.refuse(away), proxy.cut())],
      ['swallows', (away) => proxy.swallow(away)],
    ];
    let written = 1;
    for (const [how, away] of ways) {
      away(true);
      await app.reload();
      await app.shows('list', ({ items }) => titles(items).includes('before'));
      t.ok(
        (await app.value('bins'))?.some(({ name }) => name === 'Home'),
        `${how}: bins have their names`,
      );
      t.match(await app.call('put', text(how)), { id: /^\w{26}$/ }, `${how}: a change is accepted`);
      const info = await app.shows('info', (info) => info?.waiting.count === 1);
      t.type(info?.waiting.since, 'number', 'the app reports since when it waits');
      await app.reload();
      await app.shows('list', ({ items }) => items.some(({ title, pending }) => title === how && pending));
      away(false);
      await app.call('reconnect');
      await app.shows('list', ({ items }) => items.some(({ title, pending }) => title === how && !pending));
      t.equal(await versions(), ++written, `${how}: the change is sent once`);
    }
    t.same(app.faults, []);
  },
);

t.test('WEB-58: a browser that is revoked while it is open says so, and shows what it has', { skip }, async (t) => {
  const { app, url, server } = await scene(t);
  const item = text('kept');
  await app.call('put', item);
  const other = await App.open(await freshContext(t), url);
  await app.call('offer');
  const offer = await app.shows('offer', ({ step }) => step === 'words');
  await other.shows('phase', ({ phase }) => phase === 'empty');
  await other.call('join', { name: 'Other', words: offer.step === 'words' ? offer.words : '' });
  const digits = await other.shows('enrolment', ({ step }) => step === 'compare');
  t.match(await app.shows('offer', ({ step }) => step === 'compare'), { name: 'Other', digits: /^\d{6}$/ });
  t.equal((await app.value('offer'))?.step === 'compare' && digits.step === 'compare', true);
  t.same(
    [await app.value('offer'), digits].map((step) => step !== undefined && 'digits' in step && step.digits),
    Array(2).fill(digits.step === 'compare' ? digits.digits : ''),
    'both show the same digits',
  );
  await app.admit();
  await other.shows('list', ({ items }) => titles(items).includes('kept'));
  const devices = await app.shows('devices', (devices) => devices.some(({ name }) => name === 'Other'));
  const offered = async (): Promise<string[]> => {
    await other.page.waitForSelector('.item .facts');
    const side = await other.page.$$eval('.side .nav-link, .side button', (found) =>
      found.map((one) => one.ariaLabel ?? one.textContent),
    );
    const parts = ['.composer', `button[aria-label="${strings.list.edit}"]`];
    const shown = await Promise.all(parts.map((part) => other.page.$(part)));
    return [
      ...side.filter((name) => /devices|settings|new bin/i.test(name)),
      ...parts.filter((_, at) => shown[at] !== null),
    ];
  };
  await other.page.evaluate((to) => location.assign(to), `#/item/${item.id}`);
  t.equal((await offered()).length, 5, 'before, all five are offered');
  await app.call('deviceRevoke', devices.find(({ name }) => name === 'Other')?.id ?? '');
  await other.shows('phase', ({ phase }) => phase === 'revoked');
  t.ok(titles((await other.value('list'))?.items ?? []).includes('kept'));
  await other.reload();
  await other.shows('phase', ({ phase }) => phase === 'revoked');
  await other.shows('list', ({ items }) => titles(items).includes('kept'));
  await other.page.waitForSelector('.revoked');
  t.same(await offered(), [], 'afterwards none of the five is offered');
  await (await other.page.waitForSelector('.revoked .button.danger'))?.click();
  const asked = await other.page.waitForSelector('dialog .dialog-body');
  t.equal(await asked?.evaluate((body) => body.textContent), strings.lock.forgetLead, 'and not to revoke it');
  await other.call('forget');
  await other.shows('phase', ({ phase }) => phase === 'empty');
  const left = await other.page.evaluate(async () => (await indexedDB.databases()).map(({ name }) => name));
  t.notOk(
    left.some((name) => name?.startsWith('service-device-')),
    'nothing of the device is left',
  );
  await app.call('signOut').then((answer) => t.match(answer, { failed: 'last_device' }));
  t.equal((await server.sql('SELECT count(*)::int AS n FROM devices'))[0]?.['n'], 2);
});

t.test('WEB-59: while locked no tab holds a device or shows items; unlocking one unlocks all', { skip }, async (t) => {
  const { app, browser, url } = await scene(t);
  await app.call('put', text('under lock'));
  await app.call('lockSet', { kind: 'passphrase', passphrase: 'correct horse' });
  const second = await App.open(browser, url);
  await second.ready();
  await second.call('lock');
  for (const tab of [app, second]) {
    await tab.shows('phase', ({ phase }) => phase === 'locked');
    await tab.shows('list', ({ total }) => total === 0);
  }
  t.match(await app.call('put', text('while locked')), { failed: 'closed' });
  t.match(await app.call('unlock', { passphrase: 'battery staple' }), { failed: 'bad_identity' });
  await app.call('unlock', { passphrase: 'correct horse' });
  for (const tab of [app, second]) await tab.shows('list', ({ items }) => titles(items).includes('under lock'));
  await app.page.close();
  await until('it is locked again', async () => {
    const phase = await second.value('phase');
    return phase?.phase === 'locked';
  });
});

t.test(
  'WEB-76: a save that ends late closes no other dialog, and a key pressed twice opens one',
  { skip },
  async (t) => {
    const { app, proxy } = await scene(t);
    const { page } = app;
    const dialogs = (): Promise<number> => page.$$eval('dialog[open]', ({ length }) => length);
    const drawn = (): Promise<unknown> =>
      page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    await app.call('put', text('short'));
    const { items } = await app.shows('list', ({ items }) => items.some(({ pending }) => !pending));
    await page.evaluate((id) => location.assign(`#/item/${id}`), items[0]?.id);
    await page.waitForSelector('.item-body');
    await page.evaluate(() => {
      for (let times = 0; times < 2; times++) dispatchEvent(new KeyboardEvent('keydown', { key: 'm' }));
    });
    await page.waitForSelector('dialog[open]');
    await app.call('hidden'); // answered after what the keys asked for
    await drawn();
    t.equal(await dialogs(), 1);
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.querySelector('dialog') === null);
    await page.keyboard.press('e');
    const field = await page.waitForSelector('form.item textarea');
    // Too long for the outbox: it is uploaded first, and the save ends after that.
    await field?.evaluate((area) => {
      area.value = 'long '.repeat(40_000);
      area.dispatchEvent(new Event('input', { bubbles: true }));
    });
    proxy.swallow(true);
    await page.click('form.item button[type=submit]');
    await page.waitForSelector('form.item button[type=submit][aria-disabled=true]');
    await page.evaluate(() => location.assign('#/settings'));
    await page.waitForFunction(
      (label) => {
        const found = [...document.querySelectorAll('button')].find((one) => one.innerText.trim() === label);
        found?.click();
        return found !== undefined;
      },
      {},
      pagesText.settings.archive.import,
    );
    await page.waitForSelector('dialog[open]');
    proxy.swallow(false);
    await app.shows('list', ({ items }) => items.some(({ title, pending }) => title.startsWith('long') && !pending));
    await drawn();
    t.equal(await dialogs(), 1, 'what was opened meanwhile is still there');
    t.same(app.faults, []);
  },
);
