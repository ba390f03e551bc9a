/** The screens on which a browser becomes a device and admits another one, on a real server, as a person uses them. */
import { randomBytes } from 'node:crypto';
import type { Page } from 'puppeteer-core';
import t from 'tap';
import { ulid } from '../src/sdk/ulid.js';
import { pagesText } from '../src/web/ui/strings-pages.js';
import * as text from '../src/web/ui/strings.js';
import { CHROMIUM, freshContext, upgradeDatabases } from './support/browser.js';
import { soon } from './support/events.js';
import type { WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const { begin } = text;
const { pair, settings } = pagesText;

/** Waits until the page shows these words. */
const says = (page: Page, words: string): Promise<unknown> =>
  page.waitForFunction((wanted) => document.body.innerText.includes(wanted), {}, words);

/** Presses the button of this name as soon as it is there: of several the last one, which is the dialog's. */
const press = (page: Page, name: string): Promise<unknown> =>
  page.waitForFunction(
    (wanted) => {
      const buttons = [...document.querySelectorAll<HTMLElement>('button:not(:disabled)')];
      const button = buttons.findLast((one) => one.innerText.trim() === wanted);
      button?.click();
      return button !== undefined;
    },
    {},
    name,
  );

const all = (page: Page, selector: string): Promise<readonly string[]> =>
  page.$$eval(selector, (found) => found.map((one) => one.textContent));

/** What is compared: the digits and the picture's description. */
const compared = async (page: Page): Promise<readonly (string | null)[]> => {
  await page.waitForSelector('.compare');
  return page.$$eval('.digits .sr, .picture', (parts) => parts.map((part) => part.ariaLabel ?? part.textContent));
};

/** Types the words that are asked for; `change` alters the first one. */
async function answer(page: Page, words: readonly string[], change = (word: string) => word): Promise<void> {
  const places = (await all(page, 'label')).map((label) => Number(/\d+/.exec(label)?.[0]) - 1);
  const fields = await page.$$('input');
  for (const [at, place] of places.entries()) {
    const word = words[place] ?? '';
    await fields[at]?.click({ count: 3 });
    await fields[at]?.type(at === 0 ? change(word) : word);
  }
  await press(page, begin.ask.go);
}

/** A server, and a browser that shows the phrase of its claim; nothing is registered yet. */
async function scene(t: WithTeardown) {
  const server = await runServer(t);
  const url = `http://localhost:${server.port}/`;
  const first = await App.open(await freshContext(t), url);
  await press(first.page, begin.claim.go);
  await says(first.page, begin.phrase.title);
  const words = await all(first.page, '.words .word');
  const devices = async () => server.sql('SELECT name, revoked_at IS NULL AS active FROM devices ORDER BY paired_at');
  return { server, url, first, words, devices };
}

/** A browser that has claimed a server of its own, without the screens. */
async function claimedApp(t: WithTeardown): Promise<App> {
  const server = await runServer(t);
  const app = await App.open(await freshContext(t), `http://localhost:${server.port}/`);
  await app.claim();
  return app;
}

t.test('WEB-33: two of the twelve words are asked for before anything is registered', { skip }, async (t) => {
  const { first, words, devices } = await scene(t);
  const { page } = first;
  t.equal(words.length, 12);
  await press(page, begin.phrase.written);
  await says(page, begin.ask.title);
  await answer(page, words, (word) => `${word}x`);
  t.equal((await all(page, '.field .error')).length, 1, 'the wrong word is reported');
  await (await page.$('input'))?.click({ count: 3 });
  await page.keyboard.press('Backspace');
  await says(page, text.fields.missing);
  t.same(await devices(), [], 'nothing is registered');
  await answer(page, words);
  await first.ready();
  t.match(await devices(), [{ name: 'Chrome on Linux', active: true }]);
  t.same(first.faults, []);
});

t.test(
  'WEB-75: unsaved input is there when the item is opened again, and is discarded only on request',
  { skip },
  async (t) => {
    const app = await claimedApp(t);
    const { page } = app;
    const id = ulid(Date.now(), randomBytes);
    await app.call('put', { id, binId: 'inbox', type: 'text', payload: { text: 'before' } });
    const goes = (hash: string): Promise<void> => page.evaluate((to) => location.assign(to), hash);
    const typed = (): Promise<unknown> =>
      page.waitForFunction(
        () => document.querySelector<HTMLTextAreaElement>('form.item textarea')?.value === 'before, and after',
      );
    await goes(`#/item/${id}`);
    await (await page.waitForSelector(`button[aria-label="${text.list.edit}"]`))?.click();
    await (await page.waitForSelector('form.item textarea'))?.focus();
    await page.keyboard.press('End');
    await page.keyboard.type(', and after');
    await goes('#/devices');
    await page.waitForFunction(() => document.querySelector('form.item') === null);
    await goes(`#/item/${id}`);
    await typed();
    await page.keyboard.press('Escape');
    await says(page, text.item.discardTitle);
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.querySelector('dialog') === null);
    await typed();
    const left = new Promise<string>((resolve) => {
      page.once('dialog', (dialog) => {
        resolve(dialog.type());
        void dialog.dismiss();
      });
    });
    await page.evaluate(() => location.reload());
    t.equal(await soon(left, 'a question of the browser'), 'beforeunload', 'the browser asks before the page is left');
    await typed();
    await page.keyboard.press('Escape');
    await press(page, text.kit.discard);
    await page.waitForFunction(() => document.querySelector('form.item') === null);
    await app.shows('list', ({ items }) => items.some(({ title }) => title === 'before'));
    await app.reload();
    t.same(app.faults, []);
  },
);

t.test(
  'WEB-76 WEB-87: going back closes a dialog; the inbox stays; a bin has one emoji; focus skips the close button',
  { skip },
  async (t) => {
    const app = await claimedApp(t);
    const { page } = app;
    await page.setViewport({ width: 1_280, height: 800 }); // with its side bar
    await app.call('binCreate', { name: 'Work', emoji: '' });
    await app.shows('bins', (bins) => bins.length === 2);
    const edit = async (bin: string): Promise<void> => {
      await page.waitForSelector(`button[aria-label="${text.frame.binMenu(bin)}"]`);
      await page.$eval(`button[aria-label="${text.frame.binMenu(bin)}"]`, (button) => button.click());
      await says(page, text.bins.edit);
    };
    const closed = (): Promise<unknown> => page.waitForFunction(() => document.querySelector('dialog') === null);
    await page.evaluate(() => location.assign('#/bin/inbox'));
    await edit(text.list.defaultBin);
    t.notOk((await all(page, 'dialog button')).includes(text.bins.remove), 'the inbox has no button that removes it');
    await page.goBack();
    await closed();
    await edit('Work');
    t.ok((await all(page, 'dialog button')).includes(text.bins.remove));
    const focused = (selector: string): Promise<boolean> =>
      page.evaluate((of) => document.activeElement === document.querySelector(of), selector);
    t.ok(await focused('dialog input'), 'the focus is on the first field');
    const [, emoji] = await page.$$('dialog input');
    await emoji?.type('no emoji');
    await press(page, text.kit.save);
    await says(page, text.bins.noEmoji);
    await emoji?.click({ count: 3 });
    await emoji?.type('🧰');
    await press(page, text.kit.save);
    await closed();
    await app.shows('bins', (bins) => bins.some(({ emoji: shown }) => shown === '🧰'));
    await page.evaluate(() => location.assign('#/settings'));
    await press(page, settings.archive.import);
    await says(page, settings.archive.importLead);
    t.ok(await focused('#archive-file'), 'so it is where the field is one for a file');
    const width = (): Promise<number> => page.$eval('dialog', (dialog) => dialog.getBoundingClientRect().width);
    const here = await width();
    await page.keyboard.press('Escape');
    await closed();
    await page.evaluate(() => location.assign('#/devices'));
    await (await page.waitForSelector(`button[aria-label="${pagesText.devices.menu('Browser')}"]`))?.click();
    await press(page, pagesText.devices.rename);
    await page.waitForSelector('dialog');
    t.equal(await width(), here, 'a dialog is as wide on every page');
    t.same(app.faults, []);
  },
);

t.test('WEB-87: on a phone the message about a copied secret leaves the composer free', { skip }, async (t) => {
  const app = await claimedApp(t);
  const { page } = app;
  await page.setViewport({ width: 390, height: 844 });
  const id = ulid(Date.now(), randomBytes);
  await app.call('put', { id, binId: 'inbox', type: 'password', payload: { service: 'Bank', secret: 'hunter2' } });
  await page.bringToFront();
  // The row is drawn again once the item is stored: a click that begins before and ends after that is none.
  await app.shows('list', ({ items }) => items.some(({ pending }) => !pending));
  // A locator clicks once the row stands still: as the list fills, it may move away under a click.
  await page.locator(`button[aria-label^="${text.list.copySecret}"]`).click();
  await page.waitForSelector('.toast');
  const edge = (selector: string, side: 'top' | 'bottom'): Promise<number> =>
    page.$eval(selector, (element, of) => element.getBoundingClientRect()[of], side);
  const free = async (): Promise<boolean> => (await edge('.toast', 'bottom')) <= (await edge('.composer', 'top'));
  t.ok(await free());
  await page.type('.composer textarea', 'two\nlines');
  await page.waitForSelector('.composer.filled');
  t.ok(await free(), 'also while something is typed');
  t.same(app.faults, []);
});

t.test(
  'WEB-30 WEB-31 WEB-32 WEB-34 WEB-86 WEB-87: a link admits a browser once a person confirms that both screens are the same',
  { skip },
  async (t) => {
    const { first, words, url, devices } = await scene(t);
    await press(first.page, begin.phrase.written);
    await says(first.page, begin.ask.title);
    await answer(first.page, words);
    await first.ready();
    await first.goto(`${url}#/devices`);
    await press(first.page, pagesText.devices.pair);

    const offered = async (): Promise<string> => {
      await says(first.page, pair.secret);
      return (await all(first.page, 'dialog .word')).join('-');
    };
    const second = await App.open(await freshContext(t), `${url}#pair=${await offered()}`);
    await says(second.page, begin.join.title);
    t.equal(second.page.url(), url, 'the words are not in the address');
    t.equal(await second.page.evaluate(() => JSON.stringify(history.state)), 'null', 'nor in the history');
    await press(second.page, begin.join.go);
    t.same(await compared(first.page), await compared(second.page));
    t.ok(
      await first.page.evaluate(() => document.activeElement?.matches('.compare')),
      'the focus is on what is to be compared',
    );
    await press(first.page, pair.differ);
    await says(second.page, begin.failed);
    t.equal((await devices()).length, 1, 'where the screens differ no browser is admitted');

    await press(first.page, pair.again);
    const words2 = await offered();
    const field = await second.page.waitForSelector('textarea');
    const send = async (link: string): Promise<void> => {
      await field?.click({ count: 3 });
      await field?.type(link);
      await second.page.keyboard.press('Enter');
    };
    await field?.click({ count: 3 });
    await field?.type(words2.replace('-', 'x '));
    await second.page.keyboard.press('Tab');
    const [misspelt = ''] = words2.split('-');
    await says(second.page, begin.join.misspelt([`${misspelt}x`]));
    await send(`https://other.example/#pair=${words2}`);
    await says(second.page, begin.join.elsewhere('https://other.example'));
    // Had the words been sent, no other attempt could use them.
    await send(`${url}#pair=${words2}`);
    t.same(await compared(first.page), await compared(second.page));
    await press(first.page, pair.match);
    await says(first.page, pair.joinedTitle);
    await press(first.page, pair.done);
    await second.ready();
    await first.shows('devices', (all) => all.some(({ name, own }) => !own && name === 'Chrome on Linux 2'));
    t.match(
      await devices(),
      [{ name: 'Chrome on Linux' }, { name: 'Chrome on Linux 2' }],
      'each has a name of its own',
    );
    // It joined before it connected, and the other devices are not notified when it connects.
    await first.goto(`${url}#/settings`);
    await first.goto(`${url}#/devices`);
    await first.shows('devices', (all) => all.filter(({ online }) => online).length === 2);

    await second.page.evaluate(() => location.assign('#/settings'));
    await press(second.page, settings.leave.title);
    await says(second.page, settings.leave.dialog);
    await press(second.page, settings.leave.title);
    await says(second.page, begin.join.title);
    t.match(await devices(), [{ active: true }, { active: false }], 'signing out revokes the device');
    const left = await second.page.evaluate(async () => (await indexedDB.databases()).map(({ name }) => name));
    t.notOk(
      left.some((name) => name?.startsWith('service-device-')),
      'nothing of the device is left',
    );
    t.same([...first.faults, ...second.faults], []);
  },
);

t.test(
  'WEB-60 WEB-76: of a long list the rows scroll alone; a dialog stays where the window becomes narrow',
  { skip },
  async (t) => {
    const app = await claimedApp(t);
    const { page } = app;
    await page.setViewport({ width: 1_280, height: 400 });
    for (let count = 0; count < 12; count++) {
      const id = ulid(Date.now(), randomBytes);
      await app.call('put', { id, type: 'text', payload: { text: `${count}` }, binId: 'inbox' });
    }
    await app.shows('list', ({ total }) => total === 12);
    await page.waitForFunction(() => (document.querySelector('.list-box')?.scrollHeight ?? 0) > 2 * innerHeight);
    const heights = await page.evaluate(() => [document.documentElement.scrollHeight, innerHeight]);
    t.equal(heights[0], heights[1], 'the page is as high as its window');
    await page.click(`.side button[aria-label="${text.bins.create}"]`);
    await page.setViewport({ width: 390, height: 844 });
    await page.keyboard.type('Work');
    await press(page, text.bins.make);
    await app.shows('bins', (bins) => bins.length === 2);
    t.same(app.faults, []);
  },
);

t.test(
  'WEB-37 WEB-86: at `localhost` no code leads a phone astray; a device that has joined is shown as online',
  { skip },
  async (t) => {
    const first = await claimedApp(t);
    const url = first.page.url();
    await first.call('passwordSet', { password: 'of the account', current: null });
    await first.page.evaluate(() => location.assign('#/devices'));
    await press(first.page, pagesText.devices.pair);
    await says(first.page, pair.elsewhere);
    t.equal(await first.page.$('dialog .qr'), null);
    const second = await App.open(await freshContext(t), url);
    await second.shows('phase', ({ phase }) => phase === 'empty');
    await second.call('join', { name: 'Second', words: (await all(first.page, 'dialog .word')).join(' ') });
    await says(second.page, begin.password.lead);
    // Without a click: the account's password is all that this step asks for.
    await second.page.keyboard.type('of the account');
    await second.page.keyboard.press('Enter');
    await press(first.page, pair.match);
    await second.ready();
    await press(first.page, pair.done);
    await first.shows('devices', (all) => all.filter(({ online }) => online).length === 2);
  },
);

t.test(
  'WEB-88: a file dropped on a page is uploaded before the list was shown; a cancelled picker leaves its dialog open',
  { skip },
  async (t) => {
    const app = await claimedApp(t);
    const { page } = app;
    await page.evaluate(() => location.assign('#/settings'));
    await app.reload();
    await says(page, settings.archive.import);
    await page.evaluate(() => {
      const data = new DataTransfer();
      data.items.add(new File(['dropped'], 'dropped.bin'));
      document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
    });
    await app.shows('list', ({ items }) => items.some(({ title }) => title === 'dropped.bin'));
    await press(page, settings.archive.import);
    await page.waitForSelector('#archive-file');
    await page.$eval('#archive-file', (field) => field.dispatchEvent(new Event('cancel', { bubbles: true })));
    // Two frames, in which it would have been taken away.
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    t.not(await page.$('#archive-file'), null);
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.querySelector('dialog') === null);
    t.same(app.faults, []);
  },
);

t.test('WEB-53: a file that waits for the server says so, and that signing out loses it', { skip }, async (t) => {
  const server = await runServer(t);
  const app = await App.open(await freshContext(t), `http://localhost:${server.port}/`);
  await app.claim();
  const { page } = app;
  await server.stop();
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.items.add(new File(['dropped'], 'dropped.bin'));
    document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
  });
  await says(page, text.uploads.later);
  await page.evaluate(() => location.assign('#/settings'));
  await press(page, settings.leave.title);
  await says(page, settings.leave.uploads(1));
  const isBarred = (): Promise<boolean> =>
    page.$eval('dialog .danger', (button) => (button as HTMLButtonElement).disabled);
  t.ok(await isBarred());
  await page.click('dialog input[type=checkbox]');
  t.notOk(await isBarred());
  t.same(app.faults, []);
});

t.test('WEB-87: a copy that the browser refuses says what can be done', { skip }, async (t) => {
  const app = await claimedApp(t);
  const { page } = app;
  const id = ulid(Date.now(), randomBytes);
  await app.call('put', { id, binId: 'inbox', type: 'text', payload: { text: 'a note' } });
  await page.evaluate(() => {
    const refuse = (): Promise<never> =>
      Promise.reject(new DOMException('Write permission denied.', 'NotAllowedError'));
    Object.assign(Clipboard.prototype, { write: refuse, writeText: refuse });
  });
  await page.evaluate((to) => location.assign(`#/item/${to}`), id);
  await page.waitForSelector('.item-body');
  await page.evaluate(() => dispatchEvent(new KeyboardEvent('keydown', { key: 'c' })));
  await says(page, text.kit.notCopied);
  t.same(app.faults, []);
});

t.test(
  'WEB-82: what a full server refused can be tried again, and is discarded only on request',
  { skip },
  async (t) => {
    const server = await runServer(t, { env: { STORAGE_CAP_BYTES: '3000' } });
    const app = await App.open(await freshContext(t), `http://localhost:${server.port}/`);
    await app.claim();
    const { page } = app;
    const id = ulid(Date.now(), randomBytes);
    await app.call('put', { id, binId: 'inbox', type: 'text', payload: { text: 'a long note '.repeat(300) } });
    await app.shows('notices', (notices) => notices.some(({ canResend }) => canResend));
    await says(page, text.problem({ name: '', code: 'storage_cap_exceeded', message: '' }));
    t.same(await all(page, '.notice .actions button'), [text.kit.tryAgain], 'there is nothing to overwrite');
    const dismiss = (): Promise<unknown> => page.click(`.notice button[aria-label="${text.kit.dismiss}"]`);
    await dismiss();
    await says(page, text.item.discardTitle);
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.querySelector('dialog') === null);
    t.equal((await app.value('notices'))?.length, 1);
    await dismiss();
    await press(page, text.kit.discard);
    await app.shows('notices', (notices) => notices.length === 0);

    const changed = ulid(Date.now(), randomBytes);
    for (const words of ['short', 'a longer note '.repeat(300)])
      await app.call('put', { id: changed, binId: 'inbox', type: 'text', payload: { text: words } });
    await app.shows('notices', (notices) => notices.some(({ canResend }) => canResend));
    const { overwrite, asCopy } = text.notices;
    await page.waitForSelector('.notice .actions button');
    t.same(
      await all(page, '.notice .actions button'),
      [overwrite, asCopy],
      'a change may replace that of another device',
    );
    t.same(app.faults, []);
  },
);

t.test('WEB-89: what was typed and not put is gone once the browser is locked or signed out', { skip }, async (t) => {
  const server = await runServer(t);
  const app = await App.open(await freshContext(t), `http://localhost:${server.port}/`);
  const phrase = (await app.claim()).join(' ');
  const { page } = app;
  await page.setViewport({ width: 390, height: 844 }); // with its side bar in a dialog
  await app.call('lockSet', { kind: 'passphrase', passphrase: 'correct horse' });
  const click = (selector: string): Promise<void> => page.$eval(selector, (button) => (button as HTMLElement).click());
  const typing = async (): Promise<void> => {
    await page.waitForSelector('.composer textarea');
    await page.type('.composer textarea', 'hunter2 and more');
    await click(`.list-head [aria-label="${text.list.search}"]`);
    await page.waitForSelector('.search.shown');
    await page.type('.search input', 'hunter2');
    await click(`.list-head [aria-label="${text.frame.menu}"]`);
    await page.waitForSelector('dialog.drawer');
  };
  const nothingIsLeft = async (why: string): Promise<void> => {
    await page.waitForSelector('.composer textarea');
    const fields = ['.composer textarea', '.search input'];
    for (const field of fields) t.equal(await page.$eval(field, (one) => (one as HTMLInputElement).value), '', why);
    t.same([await page.$('dialog'), await page.$('.search.shown')], [null, null], 'neither side bar nor search');
  };
  await typing();
  await app.call('lock');
  await page.waitForFunction(() => document.querySelector('.composer') === null);
  await app.call('unlock', { passphrase: 'correct horse' });
  await nothingIsLeft('locked');

  await typing();
  await app.call('forget');
  await app.shows('phase', ({ phase }) => phase === 'empty');
  await page.waitForFunction(() => document.querySelector('.composer') === null);
  await app.call('recover', { name: 'Browser', phrase });
  await app.ready();
  await nothingIsLeft('signed out');
  t.same(app.faults, []);
});

t.test(
  'WEB-59 WEB-89: what a lock overtakes is not restored, and no message over the lock names what is in the vault',
  { skip },
  async (t) => {
    const app = await claimedApp(t);
    const { page } = app;
    await app.call('lockSet', { kind: 'passphrase', passphrase: 'correct horse' });
    await app.call('binCreate', { name: 'Divorce', emoji: '' });
    const id = ulid(Date.now(), randomBytes);
    await app.call('put', { id, binId: 'inbox', type: 'text', payload: { text: 'seen' } });
    // The put of the page arrives after the lock, as that of a slow tab does.
    await page.evaluate(() => {
      const send = (channel: BroadcastChannel, message: unknown): void => post.call(channel, message);
      const { postMessage: post } = BroadcastChannel.prototype;
      const held: (() => void)[] = [];
      BroadcastChannel.prototype.postMessage = function (message: { readonly name?: string } | null) {
        if (message?.name === 'put') held.push(() => send(this, message));
        else send(this, message);
      };
      Object.assign(globalThis, { release: () => held.forEach((each) => each()) });
    });
    await page.waitForSelector('.composer textarea');
    await page.type('.composer textarea', 'hunter2 and more');
    await press(page, text.put.put);
    await page.waitForFunction(() => document.querySelector<HTMLTextAreaElement>('.composer textarea')?.value === '');
    await page.evaluate((to) => location.assign(`#/item/${to}`), id);
    await page.waitForSelector('.item-body');
    await page.evaluate(() => dispatchEvent(new KeyboardEvent('keydown', { key: 'm' })));
    await page.waitForSelector('dialog[open]');
    await press(page, 'Divorce');
    await says(page, text.list.moved('Divorce'));
    await app.call('lock');
    await says(page, text.lock.title);
    t.notMatch(await page.evaluate(() => document.body.innerText), /Divorce/);
    await page.evaluate(() => (globalThis as unknown as { release: () => void }).release());
    await says(page, 'no device is open in this browser');
    await app.call('unlock', { passphrase: 'correct horse' });
    const field = await page.waitForSelector('.composer textarea');
    t.equal(await field?.evaluate((area) => area.value), '');
    const shown = await page.evaluate(() => document.querySelector('.toasts')?.textContent);
    t.notMatch(shown, /Divorce/, 'nor does it come back');
    t.same(app.faults, []);
  },
);

t.test('WEB-87: the message of a move is gone once its item is deleted: one Undo is left', { skip }, async (t) => {
  const app = await claimedApp(t);
  const { page } = app;
  const id = ulid(Date.now(), randomBytes);
  await app.call('put', { id, binId: 'inbox', type: 'text', payload: { text: 'a note' } });
  await page.evaluate((to) => location.assign(`#/item/${to}`), id);
  await page.waitForSelector('.item-body');
  const key = (name: string): Promise<unknown> =>
    page.evaluate((pressed) => dispatchEvent(new KeyboardEvent('keydown', { key: pressed })), name);
  await key('m');
  // There is only the inbox: the dialog leads to another bin.
  await press(page, text.bins.create);
  await says(page, text.bins.emojiHint);
  await page.keyboard.type('Work');
  await press(page, text.bins.make);
  const { moved, undo } = text.list;
  await page.waitForSelector(`.toast button[aria-label="${undo}: ${moved('Work')}"]`);
  await key('Delete');
  // By itself it would go after eight seconds.
  await page.waitForFunction(() => document.querySelector('.toast') === null, { timeout: 4_000 });
  await press(page, undo);
  await page.waitForFunction(
    (label) => ![...document.querySelectorAll('button')].some((one) => one.innerText === label),
    {},
    undo,
  );
  await app.shows('bins', (all) => all.some(({ name, count }) => name === 'Work' && count === 1));
  t.same(app.faults, []);
});

t.test('WEB-31 WEB-60: a dialog without a field has the focus on what it says', { skip }, async (t) => {
  const app = await claimedApp(t);
  const { page } = app;
  await page.setViewport({ width: 1_280, height: 800 }); // with its side bar
  await page.evaluate(() => location.assign('#/trust'));
  await says(page, pagesText.trust.title);
  t.match(await all(page, 'h1, h2'), [pagesText.trust.title], 'the first heading of a page is its own');
  await page.evaluate(() => location.assign('#/devices'));
  await press(page, pagesText.devices.pair);
  await page.waitForSelector('dialog .words');
  t.equal(await page.evaluate(() => document.activeElement?.tagName), 'H2');
  t.same(app.faults, []);
});

t.test('STORE-21: a page whose databases a newer version has upgraded says so', { skip }, async (t) => {
  const app = await claimedApp(t);
  t.same(new Set(await app.page.evaluate(upgradeDatabases)), new Set(['upgraded']));
  t.same(await app.call('lockSet', { kind: 'none' }), { failed: 'closed' }, 'the one that runs has lost them');
  await app.reload();
  await app.shows('phase', (now) => now.phase === 'failed' && now.problem.code === 'newer_format');
  await says(app.page, text.unable.store['newer_format'] ?? '');
  t.same(app.faults, []);
});

t.test('WEB-35: a page without https says what it lacks and runs nothing else', { skip }, async (t) => {
  const { port } = await runServer(t);
  const page = await (await freshContext(t)).newPage();
  const faults: unknown[] = [];
  page.on('pageerror', (error) => faults.push(error));
  await page.goto(`http://sync.test:${port}/`);
  await page.waitForSelector('main h1');
  t.same(faults, []);
});
