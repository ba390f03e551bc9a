/** The pages about devices, and double clicks, in a real browser on a real server. */
import type { Page } from 'puppeteer-core';
import t from 'tap';
import { pagesText } from '../src/web/ui/strings-pages.js';
import * as text from '../src/web/ui/strings.js';
import { CHROMIUM, freshContext } from './support/browser.js';
import { until } from './support/events.js';
import type { WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const { devices, pair, settings } = pagesText;

const says = (page: Page, words: string): Promise<unknown> =>
  page.waitForFunction((wanted) => document.body.innerText.includes(wanted), {}, words);

/** Presses the last button of this name, which is the dialog's, as soon as it is there. */
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

const goes = (page: Page, hash: string): Promise<void> => page.evaluate((to) => location.assign(to), hash);

/** Files that are dropped on the page. */
const drop = (page: Page, ...names: readonly string[]): Promise<void> =>
  page.evaluate((all) => {
    const data = new DataTransfer();
    for (const name of all) data.items.add(new File([name], name));
    document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
  }, names);

/** Two frames and an answer of the engine: what a click has caused is done. */
async function settle(app: App): Promise<void> {
  await app.page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  await app.call('touched');
}

/** A server, and a browser that has claimed it. */
async function claimed(t: WithTeardown) {
  const server = await runServer(t);
  const url = `http://localhost:${server.port}/`;
  const app = await App.open(await freshContext(t), url);
  const phrase = (await app.claim()).join(' ');
  return { server, url, app, page: app.page, phrase };
}

/** Presses where the pointer is; `nth`: which click of several in quick succession. */
async function pressed(page: Page, nth: number): Promise<void> {
  // Not `click` with a count: these clicks have something between them.
  const options = { clickCount: nth };
  await page.mouse.down(options);
  await page.mouse.up(options);
}

t.test(
  'WEB-97: a double click on what is removed or opens does nothing to what comes in its place',
  { skip },
  async (t) => {
    const { app, page, server } = await claimed(t);
    await page.setViewport({ width: 1_280, height: 800 });
    await goes(page, '#/devices');
    const button = await page.waitForSelector(`::-p-xpath(//button[normalize-space()="${devices.pair}"])`);
    await button?.hover();
    await pressed(page, 1);
    await page.waitForSelector('dialog[open] .words');
    await pressed(page, 2);
    await settle(app);
    t.not(await page.$('dialog[open]'), null, 'the dialog stays, whose backdrop is under the pointer');
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.querySelector('dialog') === null);

    await goes(page, '#/');
    await server.stop();
    await drop(page, 'a.bin', 'b.bin', 'c.bin');
    await app.shows('uploads', (all) => all.length === 3 && all.every(({ state }) => state === 'failed'));
    const cancel = await page.waitForSelector(`button[aria-label="${text.uploads.cancel('a.bin')}"]`);
    await cancel?.hover();
    await pressed(page, 1);
    await page.waitForFunction(() => document.querySelectorAll('.upload').length === 2);
    await pressed(page, 2);
    await settle(app);
    t.match(await app.value('uploads'), [{ name: 'b.bin' }, { name: 'c.bin' }], 'the row that moved up stays');
    await pressed(page, 3);
    await app.shows('uploads', (all) => all.length === 1 && all[0]?.name === 'c.bin');
    await pressed(page, 1);
    await app.shows('uploads', (all) => all.length === 0);
    t.same(app.faults, []);
  },
);

/** Another browser that has typed the words which the page shows. */
async function joining(t: WithTeardown, page: Page, url: string): Promise<App> {
  await goes(page, '#/devices');
  await press(page, devices.pair);
  await page.waitForSelector('dialog .words');
  const words = await page.$$eval('dialog .word', (all) => all.map((word) => word.textContent).join(' '));
  const other = await App.open(await freshContext(t), url);
  await other.shows('phase', ({ phase }) => phase === 'empty');
  await other.call('join', { name: 'Other', words });
  await other.shows('enrolment', ({ step }) => step === 'compare');
  // A form that still shows the words, as in another tab, does not use them for another key.
  await other.call('join', { name: 'Other', words });
  return other;
}

t.test('WEB-100: a browser that stops after the digits is not shown as waiting any more', { skip }, async (t) => {
  const { app, page, url } = await claimed(t);
  const other = await joining(t, page, url);
  await page.waitForSelector('dialog .compare');
  await other.shows('enrolment', ({ step }) => step === 'compare');
  await press(other.page, text.begin.startOver);
  await says(page, pair.withdrawn);
  await other.shows('enrolment', ({ step }) => step === 'idle');
  t.match(await app.value('devices'), { length: 1 });
  t.same([...app.faults, ...other.faults], []);
});

t.test('CLIENT-62: a revoked device that is listed as active is offered only to be revoked', { skip }, async (t) => {
  const { app, page, server, url } = await claimed(t);
  const other = await joining(t, page, url);
  await app.admit();
  await press(page, pair.done);
  const [own, joined] = await app.shows('devices', (all) => all.length === 2);
  if (own === undefined || joined === undefined) throw new Error('it has not joined');
  // While it runs, it stores its certificate again where that is missing.
  const logged = (what: string): Promise<void> =>
    until(`${what} by the other`, () =>
      server.logs.some(({ msg, deviceId }) => msg === what && deviceId === joined.id),
    );
  await logged('socket opened');
  await other.page.close();
  await logged('socket closed');
  await server.sql('UPDATE devices SET cert = NULL WHERE id = $1', [joined.id]);
  await app.call('deviceRename', { id: own.id, name: 'This' });
  await says(page, devices.isMine);
  await app.call('deviceRevoke', joined.id);
  await app.shows('devices', (all) => all[1]?.state === 'revoked');
  await server.sql('UPDATE devices SET revoked_at = NULL WHERE id = $1', [joined.id]);
  await app.call('deviceRename', { id: own.id, name: 'Mine' });
  await says(page, devices.wasRevokedTitle('Other'));
  t.notMatch(await page.evaluate(() => document.body.innerText), devices.isMine);
  t.same(app.faults, []);
});

t.test('WEB-98: without a connection no device is said to be not seen yet', { skip }, async (t) => {
  const { app, page, server } = await claimed(t);
  await server.sql('UPDATE devices SET last_seen_at = NULL');
  await goes(page, '#/devices');
  await app.shows('devices', (all) => all.length === 1 && all[0]?.lastSeenAt === null);
  await says(page, devices.online);
  await server.stop();
  await app.shows('info', (info) => info?.connection.state !== 'connected');
  await page.waitForFunction((online) => !document.body.innerText.includes(online), {}, devices.online);
  t.notMatch(await page.evaluate(() => document.body.innerText), devices.neverSeen);
  t.same(app.faults, []);
});

t.test('WEB-96: signing out counts a file that waits in the outbox once', { skip }, async (t) => {
  const { app, page, server } = await claimed(t);
  // The file is stored, and its item cannot be.
  for (const name of ['insert_changes', 'commit_changes'])
    await server.sql(`ALTER FUNCTION ${name} RENAME TO ${name}_gone`);
  await drop(page, 'a.bin');
  await app.shows('uploads', ([upload]) => upload?.queued === true);
  await goes(page, '#/settings');
  await press(page, settings.leave.title);
  await says(page, settings.leave.waiting(1));
  t.notMatch(await page.$eval('dialog', (dialog) => dialog.innerText), settings.leave.uploads(1));
  t.same(app.faults, []);
});

t.test(
  'WEB-99: a browser that recovers under a taken name says so, and is renamed to a free one',
  { skip },
  async (t) => {
    const { phrase, url } = await claimed(t);
    const app = await App.open(await freshContext(t), url);
    const { page } = app;
    await app.shows('phase', ({ phase }) => phase === 'empty');
    await app.call('recover', { name: 'Browser', phrase });
    await app.ready();
    await says(page, text.notices.same_name);
    await goes(page, '#/devices');
    await page.waitForSelector('.rows .badge.good');
    await page.$eval('.rows li:has(.badge.good) button[aria-haspopup]', (button) => (button as HTMLElement).click());
    await press(page, devices.rename);
    await page.waitForSelector('dialog input');
    t.equal(await page.$eval('dialog input', (field) => field.value), 'Browser 2');
    await press(page, text.kit.save);
    await app.shows('devices', (all) => all.some(({ own, name }) => own && name === 'Browser 2'));
    t.same(app.faults, []);
  },
);
