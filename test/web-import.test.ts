/** What other programs exported, imported in a real browser through the screens: read in a worker, shown, written. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Page } from 'puppeteer-core';
import t from 'tap';
import { masterKeyOfSeed, phraseSeed } from '../src/crypto/master-key.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Secrets } from '../src/import/entries.js';
import { readForeignFile } from '../src/import/formats.js';
import { incomingOf } from '../src/import/records.js';
import { systemClock } from '../src/protocol/clock.js';
import { PROJECT_ROOT } from '../src/root.js';
import * as text from '../src/web/ui/strings.js';
import { pagesText } from '../src/web/ui/strings-pages.js';
import { CHROMIUM, freshContext } from './support/browser.js';
import { soon, until } from './support/events.js';
import { bitwardenJson, chromeCsv, lockedBitwarden } from './support/foreign-exports.js';
import type { WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const { foreign: words, archive } = pagesText.settings;
const PASSWORD = 'correct horse';
const NOTHING = { renamed: 0, newer: 0, blobs: 0, waiting: 0, refused: 0, stopped: false } as const;

/** Waits until the page shows these words. */
const says = (page: Page, wanted: string | RegExp): Promise<void> =>
  until(`the page to say ${String(wanted)}`, async () => {
    const shown = await page.evaluate(() => document.body.innerText);
    return typeof wanted === 'string' ? shown.includes(wanted) : wanted.test(shown);
  });

const press = (page: Page, name: string): Promise<unknown> =>
  page.waitForFunction(
    (wanted) => {
      const buttons = [...document.querySelectorAll<HTMLElement>('button:not(:disabled, [aria-disabled])')];
      const button = buttons.findLast((one) => one.innerText.trim() === wanted);
      button?.click();
      return button !== undefined;
    },
    {},
    name,
  );

/** A tab with the settings of a vault of its own. */
async function settings(t: WithTeardown) {
  const server = await runServer(t);
  const app = await App.open(await freshContext(t), `http://localhost:${server.port}/`);
  const phrase = (await app.claim()).join(' ');
  await app.page.evaluate(() => location.assign('#/settings'));
  return { app, page: app.page, phrase, server };
}

/** Chooses a file in the open dialog. `size`: it is extended with zeros to that. */
async function choose(page: Page, name: string, content: string | Uint8Array, size = 0): Promise<void> {
  await page.waitForSelector('#foreign-file');
  const base64 = Buffer.from(content).toString('base64');
  await page.$eval(
    '#foreign-file',
    (field, called, given, whole) => {
      const bytes = Uint8Array.from(atob(given), (letter) => letter.charCodeAt(0));
      const rest = new Uint8Array(Math.max(0, whole - bytes.length));
      const data = new DataTransfer();
      data.items.add(new File([bytes, rest], called, { lastModified: 1_700_000_000_000 }));
      (field as HTMLInputElement).files = data.files;
      field.dispatchEvent(new Event('change', { bubbles: true }));
    },
    ...([name, base64, size] as const),
  );
}

/** Opens the dialog, and has it read a file. */
async function offered(page: Page, name: string, content: string | Uint8Array, size?: number): Promise<void> {
  await press(page, words.open);
  await choose(page, name, content, size);
  await press(page, words.read);
}

async function closed(page: Page): Promise<void> {
  await press(page, text.kit.close);
  await page.waitForFunction(() => document.querySelector('dialog') === null);
}

const UNLOCKED: Secrets = {
  unlock: (_, open) => open(PASSWORD),
  keyFile: () => Promise.resolve(undefined),
};

/** The ids that the command line gives the items of a file in the vault of these words. */
async function idsOf(bytes: Uint8Array, phrase: string): Promise<string[]> {
  const read = (length: number): Promise<Uint8Array> => Promise.resolve(bytes.subarray(0, length));
  const found = await readForeignFile({ size: bytes.length, read }, UNLOCKED);
  if (found === undefined) throw new Error('not known');
  const masterKey = await masterKeyOfSeed(nodeSodium, await phraseSeed(nodeSodium, phrase));
  const incoming = incomingOf({ ...found, time: 0 }, { sodium: nodeSodium, clock: systemClock }, masterKey);
  return [...incoming.ids()].sort();
}

const kept = async (app: App, count: number): Promise<string[]> => {
  const { items } = await app.shows('list', ({ total }) => total === count);
  return items.map(({ id }) => id).sort();
};

t.test(
  'WEB-102: a Bitwarden export is shown by kinds and bins, imported as by the command line, and once',
  { skip },
  async (t) => {
    const { app, page, phrase } = await settings(t);
    const json = JSON.stringify(bitwardenJson);
    await offered(page, 'bitwarden.json', json);
    await says(page, words.holds('Bitwarden JSON', 8, 13, 2));
    for (const line of [
      ...['Passwords: 3', 'Texts: 5', 'Files: 3', 'Contacts: 1', 'Links: 1'],
      ...[words.withOriginal(3), words.left(1, 'in the trash'), words.mark(1, 'favourite')],
    ])
      await says(page, line);
    t.notMatch(await page.evaluate(() => document.body.innerText), /fake|4000000000000002/, 'no secret is shown');
    t.equal((await app.value('list'))?.total, 0, 'nothing is written yet');
    await press(page, words.importAll(13));
    const [line = ''] = archive.imported({ ...NOTHING, written: 13, same: 0, bins: 1 });
    await says(page, line);
    const ids = await kept(app, 13);
    t.same(ids, await idsOf(Buffer.from(json), phrase), 'the command line gives the same ids');
    t.ok((await app.shows('bins', (bins) => bins.length === 2)).some(({ name }) => name === 'Work/Code'));
    await closed(page);

    await offered(page, 'bitwarden.json', json);
    await says(page, words.here(13));
    await press(page, words.importAll(13));
    const [again = ''] = archive.imported({ ...NOTHING, written: 0, same: 13, bins: 0 });
    await says(page, again);
    t.same(await kept(app, 13), ids);
    t.same(app.faults, []);
  },
);

t.test('WEB-102: a CSV, and exports under a password: a wrong one is typed again', { skip }, async (t) => {
  const { app, page, phrase } = await settings(t);
  await offered(page, 'passwords.csv', chromeCsv);
  await says(page, words.holds('Chrome CSV', 3, 4, 1));
  await press(page, words.importAll(4));
  const ids = await kept(app, 4);
  t.same(ids, await idsOf(Buffer.from(chromeCsv), phrase));
  await closed(page);

  const kdbx = new Uint8Array(await readFile(join(PROJECT_ROOT, 'test/fixtures/keepass/argon2d-4.kdbx')));
  await offered(page, 'vault.kdbx', kdbx);
  await page.waitForSelector('input[type=password]');
  t.not(await page.$('#key-file'), null, 'a database may have a key file too');
  await page.type('input[type=password]', 'wrong');
  await press(page, words.read);
  await says(page, words.wrong);
  await page.$eval('input[type=password]', (field) => field.select());
  await page.type('input[type=password]', PASSWORD);
  await press(page, words.read);
  await says(page, words.holds('KeePass database', 4, 6, 3));
  await says(page, words.left(1, 'in the recycle bin'));
  await press(page, words.importAll(6));
  t.same(await kept(app, 10), [...ids, ...(await idsOf(kdbx, phrase))].sort());
  const plan = await app.shows('list', ({ items }) =>
    items.some(({ title, pending }) => title === 'plan.txt' && !pending),
  );
  const attached = plan.items.find(({ title }) => title === 'plan.txt');
  t.equal(await app.call('contentSize', attached?.id ?? ''), 'hello attachment\n'.length);
  await closed(page);

  for (const kdf of ['pbkdf2', 'argon2id'] as const) {
    await offered(page, 'locked.json', JSON.stringify(await lockedBitwarden(bitwardenJson, PASSWORD, kdf)));
    await page.waitForSelector('input[type=password]');
    t.equal(await page.$('#key-file'), null);
    await page.type('input[type=password]', PASSWORD);
    await press(page, words.read);
    await says(page, words.holds('Bitwarden JSON', 8, 13, 2));
    await closed(page);
  }
  t.equal((await app.value('list'))?.total, 10, 'what was only read is not written');
  t.same(app.faults, []);
});

t.test('WEB-102: a file that is chosen while another one is read is not taken for that one', { skip }, async (t) => {
  const { app, page } = await settings(t);
  await press(page, words.open);
  await choose(page, 'chrome.csv', chromeCsv);
  await page.evaluate((wanted) => {
    const buttons = [...document.querySelectorAll<HTMLElement>('dialog button')];
    buttons.find((one) => one.innerText.trim() === wanted)?.click();
    const field = document.querySelector<HTMLInputElement>('#foreign-file');
    const data = new DataTransfer();
    data.items.add(new File(['milk, bread'], 'milk.txt'));
    if (field === null) return;
    field.files = data.files;
    field.dispatchEvent(new Event('change', { bubbles: true }));
  }, words.read);
  await press(page, words.read);
  await says(page, /not an export of a program that is known here/);
  t.same(app.faults, []);
});

t.test('WEB-103: a damaged, hostile or oversized file is refused with place and reason', { skip }, async (t) => {
  const { app, page } = await settings(t);
  const MIB = 1024 * 1024;
  const cases: readonly (readonly [name: string, content: string | Uint8Array, size: number, why: RegExp])[] = [
    ['cut.csv', chromeCsv.replace(',the note', ',"the note'), 0, /\(line 3\): a quotation mark is not closed/],
    ['columns.csv', `${chromeCsv}a,b,fake\n`, 0, /\(line 5\): the row has more or fewer columns/],
    ['large.vcf', 'BEGIN:VCARD\r\n', 65 * MIB, /it has more than 64 MiB/],
    ['commas.csv', `name,url,username,password${','.repeat(300_000)}\n`, 0, /more than 200000 columns/],
    ['deep.json', `{"encrypted": false, "items": ${'['.repeat(40)}${']'.repeat(40)}}`, 0, /more than 32 levels/],
    ['export.zip', 'PK\u0003\u0004', 0, /it is a zip archive.*Unpack it/],
    ['old.kdb', Buffer.from('03d9a29a65fb4bb500000000', 'hex'), 0, /KeePass 1/],
    ['cut.kdbx', Buffer.from('03d9a29a67fb4bb501000400', 'hex'), 0, /damaged|not a KeePass database/],
    ['milk.txt', 'milk, bread', 0, /not an export of a program that is known here/],
  ];
  await press(page, words.open);
  for (const [name, content, size, why] of cases) {
    await choose(page, name, content, size);
    await press(page, words.read);
    await says(page, why);
    t.notMatch(await page.evaluate(() => document.body.innerText), /fake/, `${name}: its content is not repeated`);
  }
  await choose(page, 'good.csv', chromeCsv);
  await press(page, words.read);
  await says(page, words.holds('Chrome CSV', 3, 4, 1));
  t.equal((await app.value('list'))?.total, 0);
  t.same(app.faults, []);
});

t.test(
  'WEB-103: a file whose key takes long stops nothing, and its reader ends with the dialog',
  { skip },
  async (t) => {
    const { app } = await settings(t);
    const locked = (await lockedBitwarden({}, PASSWORD, 'argon2id')) as object;
    // About ten seconds of a processor.
    const costly = JSON.stringify({ ...locked, kdfIterations: 10, kdfMemory: 512 });
    const reading = app.page.evaluate(
      async (json, password) => {
        const { link } = (
          globalThis as unknown as { probe: { link: { call: (...all: unknown[]) => Promise<unknown> } } }
        ).probe;
        try {
          return await link.call('foreignRead', {
            id: 'one',
            file: new File([json], 'a.json'),
            password,
            keyFile: null,
          });
        } catch (error) {
          return (error as { problem: { code: string } }).problem.code;
        }
      },
      costly,
      PASSWORD,
    );
    const id = '01ARZ3NDEKTSV4RRFFQ69G5FAV';
    t.match(await app.call('put', { id, binId: 'inbox', type: 'text', payload: { text: 'meanwhile' } }), { id });
    t.same(await app.call('foreignImport', 'one'), { failed: 'gone' }, 'nothing is read yet');
    await app.call('foreignDrop', 'another');
    await app.call('foreignDrop', 'one');
    t.equal(await reading, 'gone');
    t.same(await app.call('foreignImport', 'one'), { failed: 'gone' });
    t.same(app.faults, []);
  },
);

t.test('WEB-103: what was read is gone with the tab that read it, and after its import', { skip }, async (t) => {
  const { app, server } = await settings(t);
  const tab = await App.open(app.page.browserContext(), `http://localhost:${server.port}/`);
  await tab.ready();
  const read = ({ page }: App): Promise<unknown> =>
    page.evaluate((csv) => {
      const { link } = (globalThis as unknown as { probe: { link: { call: (...all: unknown[]) => Promise<unknown> } } })
        .probe;
      return link.call('foreignRead', { id: 'one', file: new File([csv], 'a.csv'), password: null, keyFile: null });
    }, chromeCsv);
  t.match(await read(tab), { step: 'read', items: 4 });
  // The link of the probe, which the engine drops when this lock is free.
  const locks = (): Promise<number> =>
    app.page.evaluate(async () => {
      const { held = [], pending = [] } = await navigator.locks.query();
      return [...held, ...pending].filter(({ name }) => name?.startsWith('service-web:')).length;
    });
  const before = await locks();
  await tab.page.close();
  // Held by each page and its probe, and awaited by the engine.
  await until('the engine to drop the links of the tab', async () => (await locks()) === before / 2);
  t.same(await app.call('foreignImport', 'one'), { failed: 'gone' });
  t.equal((await app.value('list'))?.total, 0);

  t.match(await read(app), { step: 'read', items: 4 });
  t.match(await app.call('foreignImport', 'one'), { written: 4 });
  t.same(await app.call('foreignImport', 'one'), { failed: 'gone' });
  t.same(app.faults, []);
});

t.test('WEB-104: the browser asks before the tab of an import is left, or that of the engine', { skip }, async (t) => {
  const { app, server } = await settings(t);
  const tab = await App.open(app.page.browserContext(), `http://localhost:${server.port}/`);
  await tab.ready();
  await tab.page.evaluate(() => location.assign('#/settings'));
  const ROWS = 5_000;
  const rows = Array.from({ length: ROWS }, (_, row) => `n${row},https://n${row}.example,u,fake${row},`);
  await offered(tab.page, 'many.csv', ['name,url,username,password,note', ...rows].join('\n'));
  await press(tab.page, words.importAll(ROWS));
  await app.shows('importing', (importing) => (importing?.done ?? 0) > 10);
  for (const { page } of [app, tab]) {
    const left = new Promise<string>((resolve) => {
      page.once('dialog', (dialog) => {
        resolve(dialog.type());
        void dialog.dismiss();
      });
    });
    await page.bringToFront();
    // The browser asks nobody who has not touched the page.
    await page.keyboard.press('Shift');
    await page.evaluate(() => location.reload());
    t.equal(await soon(left, 'a question of the browser'), 'beforeunload');
  }
  t.not(await app.value('importing'), null, 'it goes on');
  await tab.call('importStop');
  await says(tab.page, words.deleteFile);
  for (const one of [tab, app]) {
    await one.shows('importing', (importing) => importing === null);
    await one.reload();
  }
  t.same(app.faults, []);
});

t.test(
  'WEB-104: an import goes on when its dialog is closed, and the settings have its result',
  { skip },
  async (t) => {
    const { app, page } = await settings(t);
    const ROWS = 1_500;
    const rows = Array.from({ length: ROWS }, (_, row) => `n${row},https://n${row}.example,u,fake${row},`);
    await offered(page, 'many.csv', ['name,url,username,password,note', ...rows].join('\n'));
    await press(page, words.importAll(ROWS));
    await app.shows('importing', (importing) => (importing?.done ?? 0) > 10);
    await closed(page);
    t.not(await app.value('importing'), null, 'it goes on');
    await app.call('importStop');
    const [line = ''] = archive.imported({ ...NOTHING, stopped: true, written: 0, same: 0, bins: 0 });
    await says(page, line);
    t.match(await page.$eval('.notice.good', (notice) => notice.textContent), words.ended);
    const total = (await app.value('list'))?.total ?? 0;
    t.ok(total > 0 && total < ROWS, `${total} items`);
    t.same(app.faults, []);
  },
);
