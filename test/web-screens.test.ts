/** The screens on which a browser becomes a device and lets another one in, on a real server, as a person uses them. */
import type { Page } from 'puppeteer-core';
import t from 'tap';
import { pagesText } from '../src/web/ui/strings-pages.js';
import { text } from '../src/web/ui/strings.js';
import { CHROMIUM, freshContext } from './support/browser.js';
import type { WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(300_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const { begin } = text;
const { pair, settings } = pagesText;

/** Waits until the page says it. */
const says = (page: Page, words: string): Promise<unknown> =>
  page.waitForFunction((wanted) => document.body.innerText.includes(wanted), {}, words);

/** Presses the button of this name as soon as it is there: the last one, which a dialog has. */
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

/** Types the words that are asked back; `change`: of the first one. */
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

/** A claimed server and the browser that claimed it by the screens. */
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

t.test('WEB-33: two of the twelve words are asked back before anything is registered', { skip }, async (t) => {
  const { first, words, devices } = await scene(t);
  const { page } = first;
  t.equal(words.length, 12);
  await press(page, begin.phrase.written);
  await says(page, begin.ask.title);
  await answer(page, words, (word) => `${word}x`);
  t.equal((await all(page, '.field .error')).length, 1, 'the wrong one is named');
  t.same(await devices(), [], 'and nothing is registered');
  await answer(page, words);
  await first.ready();
  t.match(await devices(), [{ name: 'Chrome on Linux', active: true }]);
  t.same(first.faults, []);
});

t.test('WEB-31 WEB-32: a link lets a browser in, once both screens were found to be the same', { skip }, async (t) => {
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
  t.equal(await second.page.evaluate(() => JSON.stringify(history.state)), 'null', 'nor beside it');
  await press(second.page, begin.join.go);
  t.same(await compared(first.page), await compared(second.page));
  await press(first.page, pair.differ);
  await says(second.page, begin.failed);
  t.equal((await devices()).length, 1, 'they differ: nobody is let in');

  await press(first.page, pair.again);
  const words2 = await offered();
  const field = await second.page.waitForSelector('textarea');
  await field?.click({ count: 3 });
  await field?.type(`${url}#pair=${words2}`);
  await second.page.keyboard.press('Enter');
  t.same(await compared(first.page), await compared(second.page));
  await press(first.page, pair.match);
  await says(first.page, pair.joinedTitle);
  await second.ready();
  t.equal((await devices()).length, 2);

  await second.page.evaluate(() => location.assign('#/settings'));
  await press(second.page, settings.leave.title);
  await says(second.page, settings.leave.dialog);
  await press(second.page, settings.leave.go);
  await says(second.page, begin.join.title);
  t.match(await devices(), [{ active: true }, { active: false }], 'signed out: revoked');
  const left = await second.page.evaluate(async () => (await indexedDB.databases()).map(({ name }) => name));
  t.notOk(
    left.some((name) => name?.startsWith('service-device-')),
    'and nothing of it is left',
  );
  t.same([...first.faults, ...second.faults], []);
});
