/** The web app from its first page to its last, as people use it, with other clients and whatever they may write. */
import type { Browser, Page } from 'puppeteer-core';
import t, { type Test } from 'tap';
import { sealBinMeta } from '../src/crypto/bin-meta.js';
import type { JsonObject } from '../src/crypto/payload.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { Device } from '../src/sdk/device.js';
import type { Identity } from '../src/sdk/identity.js';
import { nodePlatform } from '../src/sdk/node-platform.js';
import { join } from '../src/sdk/pairing.js';
import { fieldsOf } from '../src/sdk/payloads/shapes.js';
import { pagesText } from '../src/web/ui/strings-pages.js';
import * as text from '../src/web/ui/strings.js';
import { itemText } from '../src/web/ui/strings-item.js';
import { BINARY, spawnCli, type Json } from './support/cli.js';
import { CHROMIUM, startBrowser } from './support/browser.js';
import { Keyboard } from './support/keyboard.js';
import { temporaryFolder, testDatabase, type WithTeardown } from './support/postgres.js';
import { runServer, runSql } from './support/server.js';
import { TcpProxy } from './support/tcp-proxy.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const { begin, list } = text;
const { pair, devices, settings } = pagesText;

const SECRET = 'correct-horse-9-battery';

/** A server and a browser, nothing claimed. */
async function fresh(t: WithTeardown): Promise<{ readonly url: string; readonly browser: Browser }> {
  const server = await runServer(t);
  return { url: `http://localhost:${server.port}/`, browser: await startBrowser(t, CHROMIUM ?? '') };
}

const words = (page: Page, within: string): Promise<readonly string[]> =>
  page.$$eval(`${within} .word`, (found) => found.map((one) => one.textContent));

/** Claims by the screens. */
async function claims(app: App, keys: Keyboard): Promise<void> {
  await keys.says(begin.claim.title);
  await keys.choose(begin.claim.go);
  await keys.says(begin.phrase.title);
  const phrase = await words(app.page, '.words');
  await keys.choose(begin.phrase.written);
  await keys.says(begin.ask.title);
  const labels = await app.page.$$eval('label', (found) => found.map((one) => one.innerText.trim()));
  for (const label of labels) {
    await keys.to(label);
    await keys.type(phrase[Number(/\d+/.exec(label)?.[0]) - 1] ?? '');
  }
  await keys.press('Enter');
  await app.ready();
  await keys.says(list.noneTitle);
}

/** Puts a password and a link, finds the password and copies it. */
async function putsAndFinds(t: Test, app: App, keys: Keyboard): Promise<void> {
  await keys.press('n');
  await keys.on('.composer-text');
  for (const line of ['For: Library', 'User: ada', `Password: ${SECRET}`]) {
    await keys.type(line);
    await keys.press('Enter');
  }
  await keys.says(list.kind.password);
  await keys.chord('Control', 'Enter');
  await keys.type('https://www.postgresql.org/docs/');
  await keys.chord('Control', 'Enter');
  const { items } = await app.shows('list', ({ total, items }) => total === 2 && items.every((one) => !one.pending));
  t.same(items.map(({ type }) => type).sort(), ['link', 'password']);
  await keys.press('Escape', '/');
  await keys.on('input[type=search]');
  await keys.type('ada');
  await keys.press('Enter');
  const id = items.find(({ type }) => type === 'password')?.id ?? '';
  await keys.on(`.row-open[data-id="${id}"]`);
  await keys.press('Enter');
  await keys.says(itemText.bin);
  await keys.press('c');
  await keys.says(list.clearNow);
  t.notOk((await app.page.content()).includes(SECRET), 'the secret is not in the page');
  await keys.press('n');
  // oxlint-disable-next-line typescript/no-deprecated -- a browser that is driven pastes only so
  await app.page.keyboard.press('KeyV', { commands: ['Paste'] });
  await app.page.waitForFunction(
    (secret) => document.querySelector<HTMLTextAreaElement>('.composer-text')?.value === secret,
    {},
    SECRET,
  );
  await keys.chord('Control', 'a');
  await keys.press('Backspace', 'Escape');
}

/** Edits the open item, leaves it, deletes it and undoes the deletion. */
async function edits(t: Test, app: App, keys: Keyboard): Promise<void> {
  await keys.press('e');
  await keys.on('form input');
  await keys.to('User');
  await keys.press('End');
  await keys.type(' lovelace');
  await keys.chord('Control', 'Enter');
  await keys.says('ada lovelace');
  await keys.press('Escape');
  await keys.on('.list-box, .row-open');
  await keys.press('/');
  await keys.on('input[type=search]');
  await keys.press('Escape', 'End');
  await keys.on('.row-open');
  await keys.press('Delete');
  await app.shows('list', ({ items }) => items.some(({ removeAt }) => removeAt !== null));
  await keys.on('.row.removed button');
  await keys.press('Enter');
  await app.shows('list', ({ total, items }) => total === 2 && items.every(({ removeAt }) => removeAt === null));
  await keys.on('.row-open');
  t.equal((await app.value('list'))?.total, 2);
}

/** Admits another browser, both by keyboard, and renames it. */
async function pairs(t: Test, { app, keys, other }: { app: App; keys: Keyboard; other: App }): Promise<void> {
  const there = new Keyboard(other.page);
  await app.page.bringToFront();
  await keys.choose(text.frame.devices);
  await keys.says(devices.own);
  await keys.choose(devices.pair);
  await keys.says(pair.secret);
  const six = (await words(app.page, 'dialog')).join(' ');
  await other.page.bringToFront();
  await there.says(begin.join.title);
  await there.to(begin.join.words);
  await there.type(six);
  await there.press('Enter');
  await there.says(begin.compare.title);
  await app.page.bringToFront();
  await keys.says(pair.compareTitle);
  await keys.choose(pair.match);
  await keys.says(pair.joinedTitle);
  await keys.choose(pair.done);
  await other.shows('list', ({ total }) => total === 2);
  await other.page.bringToFront();
  await there.stays('joining');
  await app.page.bringToFront();
  const name = (await app.shows('devices', (all) => all.length === 2)).find(({ own }) => !own)?.name ?? '';
  await keys.choose(devices.menu(name));
  await keys.on('[role=menuitem]');
  await keys.choose(devices.rename);
  await keys.on('dialog input');
  await keys.chord('Control', 'a');
  await keys.type('The other one');
  await keys.press('Enter');
  await keys.says('The other one');
  t.same(
    (await app.shows('devices', (all) => all.some((one) => one.name === 'The other one'))).map(({ own }) => own).sort(),
    [false, true],
  );
}

/** Sets a passphrase, locks and unlocks. */
async function locks(app: App, keys: Keyboard): Promise<void> {
  await keys.choose(text.frame.settings);
  await keys.says(settings.device.server);
  await keys.to(settings.lock.kind);
  await keys.press('ArrowDown');
  await keys.on('dialog input');
  await keys.type('a long passphrase');
  await keys.to(settings.lock.repeat);
  await keys.type('a long passphrase');
  await keys.press('Enter');
  await keys.says(settings.lock.is.passphrase);
  await keys.on('select');
  await keys.choose(text.frame.lock);
  await app.shows('phase', ({ phase }) => phase === 'locked');
  await keys.says(text.lock.title);
  await keys.on('input');
  await keys.type('a long passphrase');
  await keys.press('Enter');
  await keys.says(settings.device.server);
  // Back to the page before, and from there to the list.
  await keys.press('Escape');
  await keys.says(devices.own);
  await keys.press('Escape');
  await keys.on('.list-box, .row-open');
  await app.ready();
}

t.test('WEB-70: every task works by keyboard alone, and the focus is never lost', { skip }, async (t) => {
  const { url, browser } = await fresh(t);
  const context = await browser.createBrowserContext();
  await context.setPermission(url, { permission: { name: 'clipboard-write' }, state: 'granted' });
  const app = await App.open(context, url);
  await app.page.setViewport({ width: 1280, height: 800 });
  await app.page.bringToFront();
  const keys = new Keyboard(app.page);
  await claims(app, keys);
  await putsAndFinds(t, app, keys);
  await edits(t, app, keys);
  const other = await App.open(await browser.createBrowserContext(), url);
  await pairs(t, { app, keys, other });
  await locks(app, keys);
  t.same([...app.faults, ...other.faults], []);
});

const titles = (app: App, wanted: string): Promise<unknown> =>
  app.shows('list', ({ items }) => items.some(({ title, pending }) => title === wanted && !pending));

const note = (words: string, id: string) => ({ id, binId: 'inbox', type: 'text', payload: { text: words } }) as const;
const newId = (last: string): string => `01J00000000000000000000${last.padStart(3, '0')}`;

/** Documents that a program has printed. */
const documents = (printed: string): Json[] =>
  printed
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Json);

t.test('WEB-71: a browser admits a terminal, and each shows what the other puts', { skip }, async (t) => {
  const { url, browser } = await fresh(t);
  const app = await App.open(browser, url);
  await app.claim();
  const home = await temporaryFolder(t);
  await app.call('offer');
  const offer = await app.shows('offer', ({ step }) => step === 'words');
  const link = offer.step === 'words' ? offer.link : '';
  const joining = spawnCli(t, ['join', link, '--name', 'Terminal', '--json'], { home });
  const [, digits = ''] = await joining.seen(/"digits":"(\d{6})"/);
  const asked = await app.shows('offer', ({ step }) => step === 'compare');
  t.match(asked, { name: 'Terminal', digits }, 'the same digits on both sides');
  await app.admit();
  t.equal((await joining.ended).code, 0, (await joining.ended).stderr);
  await app.call('put', note('from the browser', newId('1')));
  await titles(app, 'from the browser');
  t.match((await spawnCli(t, ['list'], { home }).ended).stdout, /from the browser/);
  const sent = await spawnCli(t, ['put', 'from the terminal'], { home }).ended;
  t.equal(sent.code, 0, sent.stderr);
  await titles(app, 'from the terminal');
});

t.test('WEB-71: a terminal admits a browser, and each shows what the other puts', { skip }, async (t) => {
  const { url, browser } = await fresh(t);
  const home = await temporaryFolder(t);
  const claimed = await spawnCli(t, ['claim', url, '--json', '--show-phrase', '--name', 'Desk'], { home }).ended;
  t.equal(claimed.code, 0, claimed.stderr);
  t.equal((await spawnCli(t, ['put', 'from the terminal'], { home }).ended).code, 0);
  // The program reads its input to the end, which comes after one line here.
  const argv = [process.execPath, BINARY, 'pair', '--json', '--yes', '--digits', '-'];
  const pairing = spawnCli(t, ['-c', 'head -n 1 | "$0" "$@"', ...argv], { home, through: ['sh'] });
  const [printed] = await pairing.seen(/\{.*"offer".*\}/);
  const app = await App.open(browser, String(documents(printed)[0]?.['text']));
  const keys = new Keyboard(app.page);
  await keys.says(begin.join.title);
  await keys.to(begin.join.words);
  await keys.press('Enter');
  const step = await app.shows('enrolment', ({ step }) => step === 'compare');
  const digits = step.step === 'compare' ? step.digits : '';
  pairing.write(`${digits}\n`);
  const { code, stdout, stderr } = await pairing.ended;
  t.equal(code, 0, stderr);
  t.match(documents(stdout), [{ event: 'offer' }, { event: 'request', digits }, { event: 'joined' }]);
  await titles(app, 'from the terminal');
  await app.call('put', note('from the browser', newId('1')));
  await titles(app, 'from the browser');
  t.match((await spawnCli(t, ['list'], { home }).ended).stdout, /from the browser/);
});

const HIT = 'globalThis.hit = 1';
const deep = (levels: number): JsonObject => (levels === 0 ? {} : { a: [deep(levels - 1)] });
/** Values that another client may write into a field. */
const HOSTILE: readonly unknown[] = [
  `<img src=x onerror="${HIT}"><script>${HIT}</script><svg onload="${HIT}">`,
  `javascript:${HIT}`,
  `https://example.org/"onmouseover="${HIT}`,
  'photo\u202egnp.exe\u2066\u0000\u001b[2J',
  'W'.repeat(10_000),
  -7e300,
  null,
  [['<b>', HIT]],
  deep(30),
];
const NAME = `<img src=x onerror="${HIT}">`;
const BINS = 1_000;

/** Another client in the browser's vault, with a name that is markup. */
async function hostileClient(t: Test, app: App, url: string): Promise<{ device: Device; identity: Identity }> {
  const platform = await nodePlatform();
  await app.call('offer');
  const offer = await app.shows('offer', ({ step }) => step === 'words');
  const asking = { platform, serverUrl: url, name: NAME, glyph: 'phone', onDigits: () => undefined } as const;
  const joining = join({ ...asking, words: offer.step === 'words' ? offer.words : '' });
  await app.shows('offer', ({ step }) => step === 'compare');
  await app.admit();
  const identity = await joining;
  const onProblem = (error: Error): void => t.comment(error.message);
  const device = await Device.open({ platform, identity, onIdentity: () => undefined, onProblem });
  t.teardown(() => device.close());
  await device.connect();
  return { device, identity };
}

/** As many bins as the server accepts, half of them with names that no client of ours writes. */
async function fillBins(url: string, { masterKey, token }: Identity): Promise<void> {
  const ids = Array.from({ length: BINS - 1 }, (_, at) => `b${at}`);
  const make = async (binId: string, at: number): Promise<void> => {
    const name = HOSTILE[at % (2 * HOSTILE.length)] ?? `Bin ${at}`;
    const shown = typeof name === 'string' ? name.slice(0, 1_000) : name;
    const meta = sealBinMeta(nodeSodium, { masterKey, binId }, { name: shown, emoji: shown });
    const response = await fetch(`${url}api/bins`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token.text}`, 'content-type': 'application/json' },
      body: JSON.stringify({ id: binId, meta: toBase64Url(meta) }),
    });
    if (!response.ok) throw new Error(await response.text());
  };
  for (let from = 0; from < ids.length; from += 20)
    await Promise.all(ids.slice(from, from + 20).map((id, at) => make(id, from + at)));
}

/** What is wider than the window, what ran, and what the policy refused. */
const harm = (page: Page): Promise<readonly string[]> =>
  page.evaluate(() => {
    const trapped = globalThis as unknown as { hit?: number; refused: readonly string[] };
    const wide = [...document.querySelectorAll('.row, .item, .item-head, .value, .nav, .notice, .page, h1')].filter(
      (one) => one.getBoundingClientRect().right > innerWidth + 1,
    );
    return [
      ...(trapped.hit === undefined ? [] : ['something ran']),
      ...trapped.refused,
      ...wide.map((one) => `wide: ${one.outerHTML.slice(0, 200)}`),
      ...(document.documentElement.scrollWidth > innerWidth ? ['the page is wider than its window'] : []),
    ];
  });

/** Shows an item's own view. */
const openItem = (page: Page, id: string): Promise<unknown> =>
  page.evaluate(async (wanted) => {
    const before = document.querySelector('.item .facts');
    location.hash = `#/item/${wanted}`;
    for (;;) {
      const now = document.querySelector('.item .facts');
      if (now !== null && now !== before) return;
      await new Promise((resolve) => requestAnimationFrame(resolve));
    }
  }, id);

t.test('WEB-72: what another client writes is shown as text: nothing runs or is too wide', { skip }, async (t) => {
  const { url, browser } = await fresh(t);
  const app = await App.open(browser, url);
  const { page } = app;
  await app.claim();
  const { device, identity } = await hostileClient(t, app, url);
  await page.goto('about:blank');
  const ids: string[] = [];
  for (const type of CONTENT_TYPES)
    for (const value of HOSTILE) {
      const payload = Object.fromEntries([...fieldsOf(type), '__proto__', NAME].map((field) => [field, value]));
      ids.push((await device.put({ binId: 'inbox', type, payload, asIs: true })).id);
    }
  await fillBins(url, identity);
  await page.setViewport({ width: 320, height: 740 });
  await page.evaluateOnNewDocument(() => {
    const refused: string[] = [];
    Object.assign(globalThis, { refused, alert: () => refused.push('an alert') });
    addEventListener('securitypolicyviolation', (event) =>
      refused.push(`${event.violatedDirective} ${event.blockedURI}`),
    );
  });
  await app.goto(url);
  await page.bringToFront();
  await app.shows('bins', (bins) => bins.length === BINS);
  await app.shows('list', ({ total }) => total === ids.length);
  await page.waitForSelector('.row');
  t.same(await harm(page), [], 'the list');
  await page.$eval('.list-box', (box) => box.scrollTo(0, 1e6));
  await page.waitForSelector(`.row-open[data-id="${ids[0]}"]`);
  t.same(await harm(page), [], 'the end of the list');
  for (const id of ids) {
    await openItem(page, id);
    const found = await harm(page);
    if (found.length > 0) t.fail(`item ${ids.indexOf(id)}: ${found.join('\n')}`);
  }
  const content = bytesSource(Buffer.from('if (admin) { /* \u202e } */'));
  const payload = { name: 'a.txt', mime: 'text/plain', size: content.size };
  const { id: fileId } = await device.put({ binId: 'inbox', type: 'file', payload, content });
  await openItem(page, fileId);
  await page.waitForSelector('pre.code code');
  t.equal(await page.$eval('pre.code code', (code) => code.textContent), 'if (admin) { /* \ufffd } */');
  await page.evaluate(() => void (location.hash = '#/devices'));
  await page.waitForFunction((name) => document.body.innerText.includes(name), {}, NAME);
  t.same(await harm(page), [], 'the devices');
  await page.evaluate(() => void (location.hash = '#/'));
  await page.locator(`.list-head [aria-label="${text.frame.menu}"]`).click();
  await page.waitForFunction((count) => document.querySelectorAll('.drawer .nav[data-bin]').length === count, {}, BINS);
  t.same(await harm(page), [], 'the side bar');
  t.same(app.faults, []);
});

t.test('WEB-73: items that a restored server lost are offered again, and written', { skip }, async (t) => {
  const database = await testDatabase(t);
  const first = await runServer(t, { database });
  const proxy = await TcpProxy.before(t, `http://127.0.0.1:${first.port}`);
  const browser = await startBrowser(t, CHROMIUM ?? '');
  const app = await App.open(browser, proxy.through(`http://127.0.0.1:${first.port}/`));
  await app.claim();
  await app.call('put', note('kept', newId('1')));
  await titles(app, 'kept');
  await first.stop();
  const admin = new URL(database.url);
  const name = admin.pathname.slice(1);
  admin.pathname = '/postgres';
  await runSql(admin.href, `CREATE DATABASE ${name}_older TEMPLATE ${name}`);
  t.teardown(() => runSql(admin.href, `DROP DATABASE IF EXISTS ${name}_older`));
  const second = await runServer(t, { database });
  proxy.retarget(second.port);
  await app.call('reconnect');
  await app.ready();
  for (const at of ['2', '3']) await app.call('put', note(`lost ${at}`, newId(at)));
  await titles(app, 'lost 2');
  await titles(app, 'lost 3');
  await second.stop();
  const older = { url: Object.assign(new URL(database.url), { pathname: `/${name}_older` }).href };
  const restored = await runServer(t, { database: older });
  proxy.retarget(restored.port);
  const count = async () =>
    (await restored.sql('SELECT count(*)::int AS n FROM items WHERE deleted_at IS NULL'))[0]?.['n'];
  await app.call('reconnect');
  const keys = new Keyboard(app.page);
  await app.shows('info', (info) => info?.orphaned === 2);
  await app.page.bringToFront();
  await app.page.waitForFunction((said) => document.body.innerText.includes(said), {}, text.notices.orphaned(2));
  t.equal(await count(), 1);
  await keys.choose(text.notices.republish);
  await app.shows('info', (info) => info?.orphaned === 0 && info.waiting.count === 0);
  t.equal(await count(), 3, 'the lost items are stored again');
  for (const title of ['kept', 'lost 2', 'lost 3']) await titles(app, title);
  t.same(app.faults, []);
});

/** Shares into the app, as the system does: a form is sent and the page is left. */
const share = (page: Page, fields: Readonly<Record<string, string>>): Promise<void> =>
  page.evaluate((given) => {
    const form = Object.assign(document.createElement('form'), {
      ...{ method: 'POST', action: '/web/share', enctype: 'multipart/form-data' },
    });
    for (const [name, value] of Object.entries(given))
      form.append(Object.assign(document.createElement('input'), { name, value }));
    document.body.append(form);
    form.submit();
  }, fields);

t.test(
  'WEB-74: what is shared while locked waits, is announced, and is put once when a person confirms it',
  { skip },
  async (t) => {
    const { url, browser } = await fresh(t);
    const app = await App.open(browser, url);
    await app.claim();
    await app.page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
    await app.page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    await app.call('lockSet', { kind: 'passphrase', passphrase: 'a long passphrase' });
    await app.call('lock');
    await app.shows('phase', ({ phase }) => phase === 'locked');
    const left = app.page.waitForNavigation();
    await share(app.page, { title: 'A page', text: 'read this', url: 'https://example.org/shared' });
    await left;
    await app.reload();
    await app.shows('phase', ({ phase }) => phase === 'locked');
    await app.shows('shared', ({ count }) => count === 1);
    await app.page.waitForFunction((said) => document.body.innerText.includes(said), {}, text.lock.shared(1));
    await app.call('unlock', { passphrase: 'a long passphrase' });
    const { next } = await app.shows('shared', (waiting) => waiting.next.length === 1);
    t.equal((await app.value('list'))?.total, 0, 'nothing is put before a person confirms it');
    await app.call('sharedTake', { ids: next.map(({ id }) => id), how: 'put' });
    const { items } = await app.shows('list', ({ items }) => items.some(({ pending }) => !pending));
    t.match(items, [{ type: 'link', binId: 'inbox', title: 'A page', href: 'https://example.org/shared' }]);
    t.equal(items.length, 1, 'the item is put once');
    await app.shows('shared', ({ count }) => count === 0);
    t.same(app.faults, []);
  },
);
