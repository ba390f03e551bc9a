/** The web app's screens, one after the other, as a person comes to them: for what looks at each of them. */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Browser, Page } from 'puppeteer-core';
import type { PutParams } from '../../src/web/link/messages.js';
import { PROJECT_ROOT } from '../../src/root.js';
import { ulid } from '../../src/sdk/ulid.js';
import { pagesText } from '../../src/web/ui/strings-pages.js';
import { bitwardenJson } from './foreign-exports.js';
import { App } from './web.js';

/** Called with each screen when it stands still. */
type Look = (name: string, page: Page) => Promise<void>;

const item = (type: PutParams['type'], payload: PutParams['payload']): PutParams => ({
  id: ulid(Date.now(), randomBytes),
  ...{ type, payload, binId: 'inbox' },
});

/** What a person keeps, and what breaks a careless page. */
const ITEMS: readonly PutParams[] = [
  item('text', {
    text: 'Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft'.repeat(5),
  }),
  item('contact', { name: 'Ada Lovelace', role: 'Analyst', email: 'ada@example.org', phone: '+44 20 7946 0000' }),
  item('location', { name: 'The lighthouse', addr: 'Quay 1, Harbour', lat: 54.1, lng: 7.9 }),
  item('code', { lang: 'sql', label: 'Users per day', text: 'SELECT date(at), count(*)\nFROM visits\nGROUP BY 1;' }),
  item('text', { text: 'Milk, bread, apples\nand the good coffee' }),
  item('link', { url: 'https://www.postgresql.org/docs/', title: 'PostgreSQL: Documentation', site: 'postgresql.org' }),
  item('password', { service: 'Library', user: 'ada', secret: 'correct horse battery staple' }),
];

/** Waits until nothing moves any more: a colour in between is nobody's choice. */
export async function still(page: Page): Promise<void> {
  await page.evaluate(() =>
    Promise.all(
      document
        .getAnimations()
        // What turns for ever has no end.
        .filter((one) => one.effect?.getComputedTiming().endTime !== Infinity)
        .map((one) => one.finished),
    ),
  );
}

/** Waits until nothing is loaded any more either. */
async function settle(page: Page): Promise<void> {
  // A page in the background stands still.
  await page.bringToFront();
  await page.waitForNetworkIdle({ idleTime: 300, timeout: 10_000 }).catch(() => undefined);
  await still(page);
}

/** Looks at the import of another program's export, before and after the file was read, and closes it. */
async function importDialog(page: Page, look: (name: string) => Promise<void>): Promise<void> {
  const press = (selector: string): Promise<void> =>
    page.$$eval(selector, (found) => (found.at(-1) as HTMLElement | undefined)?.click());
  await page.evaluate((label) => {
    [...document.querySelectorAll('button')].find(({ innerText }) => innerText.trim() === label)?.click();
  }, pagesText.settings.foreign.open);
  await page.waitForSelector('#foreign-file');
  for (const [name, content] of [
    ['vault.kdbx', readFileSync(join(PROJECT_ROOT, 'test/fixtures/keepass/argon2d-4.kdbx'))],
    ['bitwarden.json', Buffer.from(JSON.stringify(bitwardenJson))],
  ] as const) {
    await page.$eval(
      '#foreign-file',
      (field, called, base64) => {
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], called));
        (field as HTMLInputElement).files = data.files;
        field.dispatchEvent(new Event('change', { bubbles: true }));
      },
      ...([name, content.toString('base64')] as const),
    );
    await press('dialog button[type=submit]');
    await page.waitForSelector(name === 'vault.kdbx' ? '#key-file' : 'dialog details');
    await look(`import of ${name}`);
  }
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => document.querySelector('dialog') === null);
}

/** Visits every screen of a fresh server. `insecure`: the server's address as a page without a secure context sees it. */
export async function visitScreens(
  browser: Browser,
  { url, insecure }: { readonly url: string; readonly insecure: string },
  each: Look,
): Promise<void> {
  const app = await App.open(browser, url);
  const { page } = app;
  const look = async (name: string, from: Page = page): Promise<void> => {
    await settle(from);
    await each(name, from);
  };
  const at = async (hash: string, name: string): Promise<void> => {
    await page.evaluate((to) => void (location.hash = to), hash);
    await look(name);
  };
  await app.shows('phase', (phase) => phase.phase === 'empty' && phase.claimed === false);
  await look('claim');
  // As somebody with a mouse: the focus then shows where keys are used only.
  await page.mouse.click(1, 1);
  await app.call('claim', { name: 'Laptop', claimToken: null });
  await app.shows('enrolment', ({ step }) => step === 'phrase');
  await look('words');
  await app.call('enrolRetry');
  await app.ready();
  await look('empty');
  for (const one of ITEMS) await app.call('put', one);
  for (const [name, emoji] of [
    ['Home', ''],
    ['Work', ''],
    ['A bin whose name is longer than its place', ''],
  ] as const)
    await app.call('binCreate', { name, emoji });
  await app.shows('list', ({ total }) => total === ITEMS.length);
  await at('#/', 'list');
  const [password = '', code = ''] = ['password', 'code'].map(
    (type) => ITEMS.find((one) => one.type === type)?.id ?? '',
  );
  await at(`#/item/${password}`, 'item');
  await at(`#/item/${code}`, 'code');
  await at('#/devices', 'devices');
  await at('#/settings', 'settings');
  await importDialog(page, look);
  await at('#/trust', 'trust');
  const other = await App.open(await browser.createBrowserContext(), url);
  await other.shows('phase', (phase) => phase.phase === 'empty' && phase.claimed === true);
  await look('join', other.page);
  await app.call('offer');
  const offer = await app.shows('offer', ({ step }) => step === 'words');
  await other.call('join', { name: 'Phone', words: offer.step === 'words' ? offer.words : '' });
  await other.shows('enrolment', ({ step }) => step === 'compare');
  await look('compare', other.page);
  await app.admit();
  await other.ready();
  const own = (await other.value('info'))?.deviceId ?? '';
  await app.call('deviceRevoke', own);
  await other.shows('phase', ({ phase }) => phase === 'revoked');
  await look('revoked', other.page);
  await app.call('lockSet', { kind: 'passphrase', passphrase: 'correct horse' });
  await app.call('lock');
  await app.shows('phase', ({ phase }) => phase === 'locked');
  await look('lock');
  const bare = await browser.newPage();
  await bare.goto(insecure);
  await look('unable', bare);
}
