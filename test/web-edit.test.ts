/** Editing in the web app while another device changes the item: nothing that was typed or written is lost. */
import { randomBytes } from 'node:crypto';
import type { Page } from 'puppeteer-core';
import t, { type Test } from 'tap';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { Device } from '../src/sdk/device.js';
import { nodePlatform } from '../src/sdk/node-platform.js';
import { join } from '../src/sdk/pairing.js';
import { ulid } from '../src/sdk/ulid.js';
import * as strings from '../src/web/ui/strings.js';
import { itemText } from '../src/web/ui/strings-item.js';
import { CHROMIUM, freshContext } from './support/browser.js';
import { until } from './support/events.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const newId = (): string => ulid(Date.now(), randomBytes);

/** A browser, and another device of the same vault. */
async function scene(t: Test) {
  const server = await runServer(t);
  const serverUrl = `http://localhost:${server.port}/`;
  const app = await App.open(await freshContext(t), serverUrl);
  await app.claim();
  await app.call('offer');
  const offer = await app.shows('offer', ({ step }) => step === 'words');
  const platform = await nodePlatform();
  const words = offer.step === 'words' ? offer.words : '';
  const joining = join({ platform, serverUrl, name: 'Other', glyph: 'laptop', words, onDigits: () => undefined });
  await app.admit();
  const onProblem = (error: Error): void => t.comment(error.message);
  const other = await Device.open({ platform, identity: await joining, onProblem });
  t.teardown(() => other.close());
  await other.connect();
  return { app, page: app.page, other };
}

/** Opens an item and its form, as soon as this browser has it. */
async function edit({ page }: App, id: string): Promise<void> {
  await page.evaluate((to) => location.assign(`#/item/${to}`), id);
  await (await page.waitForSelector(`button[aria-label="${strings.list.edit}"]`))?.click();
  await page.waitForSelector('form.item');
}

/** Types at the end of the field with this label. */
async function typeInto(page: Page, label: string, typed: string): Promise<void> {
  const field = await page.waitForSelector(`form.item ::-p-aria([name="${label}"])`);
  await field?.focus();
  await page.keyboard.press('End');
  await page.keyboard.type(typed);
}

t.test(
  'WEB-29: an item that grows on another device while it is edited keeps what the form does not show or was not edited in',
  { skip },
  async (t) => {
    const { app, page, other } = await scene(t);
    const id = newId();
    const put = (service: string, note: string) =>
      other.put({
        ...{ id, binId: 'inbox', type: 'password', asIs: true },
        payload: { service, user: 'ada', secret: `secret of ${note.length}`, note },
      });
    for (const [before, after] of [
      [`${'first '.repeat(20_000)}end`, `${'second '.repeat(20_000)}end`],
      ['short', `${'third '.repeat(20_000)}end`],
    ] as const) {
      await put('Library', before);
      await app.shows('list', ({ items }) => items.some(({ title }) => title === 'Library'));
      await edit(app, id);
      await put('Elsewhere', after);
      await app.shows('list', ({ items }) => items.some(({ title }) => title === 'Elsewhere'));
      await app.call('hidden');
      await typeInto(page, strings.fields.labels['user'] ?? '', ' lovelace');
      await page.click('form.item button[type=submit]');
      await page.waitForFunction(() => document.querySelector('form.item') === null);
      await until('saved', async () => (await other.get(id))?.payload?.['user'] === 'ada lovelace');
      const { note, ...shown } = (await other.payload(id)) ?? {};
      t.same(shown, { service: 'Elsewhere', user: 'ada lovelace', secret: `secret of ${after.length}` });
      t.ok(note === after, `${String(note).length} characters of ${after.length}`);
    }
    t.same(app.faults, []);
  },
);

t.test(
  'WEB-29: what is typed into an item that another device makes one of another kind is saved as it is shown',
  { skip },
  async (t) => {
    const { app, page, other } = await scene(t);
    const id = newId();
    await other.put({ id, binId: 'inbox', type: 'text', payload: { text: 'make' } });
    await app.shows('list', ({ items }) => items.some(({ title }) => title === 'make'));
    await edit(app, id);
    await typeInto(page, strings.fields.labels['text'] ?? '', ' all');
    await other.put({ id, binId: 'inbox', type: 'link', payload: { url: 'https://example.org/', title: 'A page' } });
    await app.shows('list', ({ items }) => items.some(({ title }) => title === 'A page'));
    t.equal(await page.$eval('form.item textarea', ({ value }) => value), 'make all');
    await page.click('form.item button[type=submit]');
    await page.waitForFunction(() => document.querySelector('form.item') === null);
    await until('saved', async () => (await other.get(id))?.type === 'text');
    t.match(await other.get(id), { payload: { text: 'make all', url: 'https://example.org/', title: 'A page' } });
    t.same(app.faults, []);
  },
);

t.test(
  'WEB-75: what was typed into an item that another device deletes is still there, and can become a new item',
  { skip },
  async (t) => {
    const { app, page, other } = await scene(t);
    const { id } = await other.put({
      binId: 'inbox',
      type: 'contact',
      payload: { name: 'Ada', role: '', email: '', phone: '1' },
    });
    await app.shows('list', ({ items }) => items.some(({ title }) => title === 'Ada'));
    await edit(app, id);
    await typeInto(page, strings.fields.labels['name'] ?? '', ' Lovelace');
    await other.delete(id);
    await page.waitForFunction((words) => document.body.innerText.includes(words), {}, itemText.typedLeft);
    // It is there when the item is opened again, too.
    await page.evaluate(() => location.assign('#/settings'));
    await page.waitForFunction(() => document.querySelector('form.item') === null);
    await page.evaluate((to) => location.assign(`#/item/${to}`), id);
    await page.waitForSelector('form.item');
    await page.click('form.item button[type=submit]');
    await app.shows('list', ({ items }) => items.some(({ title, pending }) => title === 'Ada Lovelace' && !pending));
    await page.waitForFunction((old) => !location.hash.includes(old), {}, id);
    await page.waitForFunction(() => document.querySelector('.item-body')?.textContent.includes('Ada Lovelace'));
    t.same(app.faults, []);

    const photo = await other.put({
      ...{ binId: 'inbox', type: 'file', payload: { name: 'photo', size: 3, mime: 'image/png' } },
      content: bytesSource(new Uint8Array(3)),
    });
    await app.shows('list', ({ items }) => items.some(({ title }) => title === 'photo'));
    await edit(app, photo.id);
    await typeInto(page, strings.fields.labels['name'] ?? '', ' of the cat');
    await other.delete(photo.id);
    await page.waitForFunction((words) => document.body.innerText.includes(words), {}, itemText.typedName);
    t.equal(await page.$eval('form.item input', ({ value }) => value), 'photo of the cat');
    t.equal(await page.$('form.item button[type=submit]'), null, 'its content is gone');
  },
);

/** A browser that has claimed a server, with a password and a note. */
async function claimed(t: Test) {
  const server = await runServer(t);
  const app = await App.open(await freshContext(t), `http://localhost:${server.port}/`);
  await app.claim();
  const [secret, note] = [newId(), newId()];
  await app.call('put', { id: secret, binId: 'inbox', type: 'password', payload: { service: 'Bank', secret: 'x' } });
  await app.call('put', { id: note, binId: 'inbox', type: 'text', payload: { text: 'a note' } });
  await app.shows('list', ({ items }) => items.length === 2 && items.every(({ pending }) => !pending));
  return { app, page: app.page, secret, note };
}

t.test('WEB-70: a letter that is typed just as the search begins is not lost', { skip }, async (t) => {
  const { app, page } = await claimed(t);
  await page.waitForSelector('.search input');
  await page.evaluate(
    () =>
      new Promise<void>((resolve) => {
        const type = (value: string): void => {
          const field = document.querySelector<HTMLInputElement>('.search input');
          if (field === null) return;
          field.value = value;
          field.dispatchEvent(new Event('input', { bubbles: true }));
        };
        const { setTimeout: timeout } = globalThis;
        const typing = (work: () => void, ms: number) =>
          timeout(() => {
            work();
            if (ms !== 80) return;
            Object.assign(globalThis, { setTimeout: timeout });
            type('note');
            resolve();
          }, ms);
        Object.assign(globalThis, { setTimeout: typing });
        type('not');
      }),
  );
  await new Promise((resolve) => setTimeout(resolve, 300));
  t.equal(await page.$eval('input[type=search]', (field) => field.value), 'note');
  await page.evaluate(() => document.querySelector<HTMLElement>('.search .button')?.click());
  await page.waitForFunction(() => document.querySelector<HTMLInputElement>('.search input')?.value === '');
  t.same(app.faults, []);
});

t.test(
  'WEB-87: a copied secret is cleared from the clipboard once, also after a copy that failed',
  { skip },
  async (t) => {
    const { app, page, secret, note } = await claimed(t);
    await page.evaluate(() => {
      const SECRET_MS = 45_000;
      const pending = new Set<unknown>();
      const { setTimeout: timeout, clearTimeout: clear } = globalThis;
      const write = (items: readonly ClipboardItem[]): Promise<unknown> =>
        Promise.all(items.map((item) => item.getType('text/plain')));
      Object.assign(Clipboard.prototype, { write, writeText: () => Promise.resolve() });
      Object.assign(globalThis, {
        pending,
        setTimeout: (work: () => void, ms: number) => {
          const timer = timeout(work, ms);
          if (ms === SECRET_MS) pending.add(timer);
          return timer;
        },
        clearTimeout: (timer: number) => {
          pending.delete(timer);
          clear(timer);
        },
      });
    });
    const timers = (): Promise<number> =>
      page.evaluate(() => (globalThis as unknown as { pending: Set<unknown> }).pending.size);
    const press = (times: number): Promise<void> =>
      page.evaluate((count) => {
        for (let at = 0; at < count; at++) dispatchEvent(new KeyboardEvent('keydown', { key: 'c' }));
      }, times);
    const says = (words: string): Promise<unknown> =>
      page.waitForFunction((wanted) => document.body.innerText.includes(wanted), {}, words);
    await page.evaluate((to) => location.assign(`#/item/${to}`), secret);
    await page.waitForSelector('.item-body .masked');
    await press(2);
    await says(strings.list.clearNow);
    await new Promise((resolve) => setTimeout(resolve, 200));
    t.equal(await timers(), 1);
    await page.evaluate((to) => location.assign(`#/item/${to}`), note);
    await page.waitForSelector('.item-body .prose');
    await page.evaluate(() => {
      const refuse = (): Promise<never> => Promise.reject(new DOMException('denied', 'NotAllowedError'));
      Object.assign(Clipboard.prototype, { write: refuse, writeText: refuse });
    });
    await press(1);
    await says(strings.kit.notCopied);
    t.equal(await timers(), 1, 'the secret is still there');
    await says(strings.list.clearNow);
    t.same(app.faults, []);
  },
);

t.test('WEB-76: a bin that is removed while it is shown gives way to the list of everything', { skip }, async (t) => {
  const { app, page } = await claimed(t);
  await page.setViewport({ width: 1_280, height: 800 });
  const made = await app.call('binCreate', { name: 'Work', emoji: '' });
  const id = 'id' in made ? made.id : '';
  await app.shows('bins', (bins) => bins.length === 2);
  const press = (name: string): Promise<unknown> =>
    page.waitForFunction(
      (wanted) => {
        const buttons = [...document.querySelectorAll<HTMLElement>('dialog button')];
        const button = buttons.findLast((one) => one.innerText.trim() === wanted);
        button?.click();
        return button !== undefined;
      },
      {},
      name,
    );
  await page.evaluate((bin) => location.assign(`#/bin/${bin}`), id);
  const pencil = await page.waitForSelector(`button[aria-label="${strings.frame.binMenu('Work')}"]`);
  await pencil?.evaluate((button) => button.click());
  await press(strings.bins.remove);
  await page.waitForFunction((words) => document.body.innerText.includes(words), {}, strings.bins.removeItems(0));
  await press(strings.bins.remove);
  await page.waitForFunction(() => document.querySelector('dialog') === null);
  t.equal(await page.$eval('h1', (heading) => heading.innerText), strings.frame.all);
  t.equal(await page.evaluate(() => location.hash), '');
  t.same(app.faults, []);
});
