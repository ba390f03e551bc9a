/** Attacks on the web app: foreign pages, faulty tabs, hostile items and addresses, races of the lock. */
import { randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import t, { type Test } from 'tap';
import { ulid } from '../src/sdk/ulid.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { Engine } from '../src/web/engine/engine.js';
import { rowOf } from '../src/web/engine/rows.js';
import { CHROMIUM, freshContext } from './support/browser.js';
import { until } from './support/events.js';
import { openFor } from './support/loopback-server.js';
import { runServer } from './support/server.js';
import { App } from './support/web.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';
const item = (type: 'text' | 'contact', payload: Readonly<Record<string, unknown>>) =>
  ({ id: ulid(Date.now(), randomBytes), binId: 'inbox', type, payload }) as const;

/** A server, and a tab with its app. */
async function scene(t: Test) {
  const server = await runServer(t, {});
  const url = `http://127.0.0.1:${server.port}/`;
  const browser = await freshContext(t);
  const app = await App.open(browser, url);
  return { server, url, browser, app };
}

t.test('WEB-61: an invalid message from a tab ends no engine, and no other tab sees it', { skip }, async (t) => {
  const { app, browser, url } = await scene(t);
  await app.claim();
  const second = await App.open(browser, url);
  await second.ready();
  await second.call('lockSet', { kind: 'passphrase', passphrase: 'correct horse' });
  await second.call('lock');
  await second.shows('phase', ({ phase }) => phase === 'locked');
  const answers = await second.page.evaluate(async () => {
    const client = crypto.randomUUID();
    const own = new BroadcastChannel(`service-web:${client}`);
    const announcements = new BroadcastChannel('service-web');
    const answers: unknown[] = [];
    await new Promise<void>((welcome) => {
      own.onmessage = ({ data }: MessageEvent<{ kind: string; id: number }>) => {
        if (data.kind === 'welcome') welcome();
        else answers.push([data.id, data.kind]);
      };
      navigator.locks
        .request(`service-web:${client}`, () => {
          for (const garbage of [null, 1, 'x', {}, { kind: 'here' }, { kind: 'here', client: { toString: 1 } }])
            announcements.postMessage(garbage);
          announcements.postMessage({ kind: 'here', client });
          return new Promise(() => undefined);
        })
        .catch(() => undefined);
    });
    const wrong = [
      { kind: 'watch', id: 1, topic: 'item', params: null },
      { kind: 'watch', id: 2, topic: 'list', params: null },
      { kind: 'watch', id: 3, topic: 'list', params: { offset: 'x', limit: {} } },
      { kind: 'watch', id: 4, topic: 'nothing', params: null },
      { kind: 'call', id: 5, name: 'nothing', params: null },
      { kind: 'call', id: 6, name: 'move', params: null },
      { kind: 'read', id: 7, stream: 'content', params: null },
      { kind: 'watch', id: 8, topic: 'constructor', params: null },
    ];
    const ends = wrong.map(({ id }) => ({ kind: 'end', id }));
    for (const garbage of [null, undefined, 7, 'text', [], {}, { kind: 'watch' }, ...wrong, ...ends])
      own.postMessage(garbage);
    while (answers.length < wrong.length) await new Promise((resolve) => setTimeout(resolve, 20));
    return answers as [number, string][];
  });
  t.same(
    answers.sort(([a], [b]) => a - b),
    [1, 2, 3, 4, 5, 6, 7, 8].map((id) => [id, 'failed']),
    'each message is refused',
  );
  await app.call('unlock', { passphrase: 'correct horse' });
  for (const tab of [app, second]) await tab.shows('phase', ({ phase }) => phase === 'open');
  t.match(await app.call('put', item('text', { text: 'still here' })), { id: /^\w{26}$/ });
  t.same([...app.faults, ...second.faults], []);
});

t.test("WEB-62: what another site's form shares is put only when a person confirms it", { skip }, async (t) => {
  const { app, browser, url } = await scene(t);
  await app.claim();
  await app.page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
  const evil = createServer((request, response) => {
    response.setHeader('content-type', 'text/html');
    // A site that hides its origin sends the same as the system itself.
    if (request.url !== '/open') response.setHeader('referrer-policy', 'no-referrer');
    response.end(`<form method=post enctype=multipart/form-data action="${url}web/share">
      <input name=text value="pay to this account"></form><script>document.forms[0].submit()</script>`);
  });
  const from = `http://localhost:${await openFor(t, evil)}`;
  const other = await browser.newPage();
  await other.goto(`${from}/open`);
  await other.waitForFunction(() => document.querySelector('.toasts')?.textContent?.includes('website') === true);
  t.equal(await other.evaluate(() => location.hash), '#/', 'the refusal is shown once, not at each reload');
  for (const page of ['once', 'twice']) {
    await other.goto(`${from}/${page}`);
    await other.waitForFunction(() => location.hash === '#/shared');
  }
  const waiting = await app.shows('shared', ({ next }) => next.length === 2);
  t.match(waiting.next[0], { title: 'pay to this account', files: [] });
  t.equal((await app.value('list'))?.total, 0, 'nothing was put');
  const [first = '', second = ''] = waiting.next.map(({ id }) => id);
  await app.call('lockSet', { kind: 'passphrase', passphrase: 'correct horse' });
  await app.call('lock');
  t.same(
    (await app.shows('shared', ({ next }) => next.length === 0)).count,
    2,
    'while locked only their number is shown',
  );
  t.match(await app.call('sharedTake', { ids: [first], how: 'put' }), { failed: 'closed' });
  await app.call('unlock', { passphrase: 'correct horse' });
  await app.call('sharedTake', { ids: [second], how: 'drop' });
  await app.call('sharedTake', { ids: [first], how: 'put' });
  await app.shows('shared', ({ count }) => count === 0);
  await app.shows('list', ({ items }) => items.map(({ id }) => id).join() === first);
});

t.test('WEB-63: an unlocking that was under way does not open what was locked after it', { skip }, async (t) => {
  const { app } = await scene(t);
  await app.claim();
  await app.call('lockSet', { kind: 'passphrase', passphrase: 'correct horse' });
  await app.call('lock');
  await app.page.evaluate(async () => {
    const { link } = (globalThis as unknown as { probe: { link: { call(...all: unknown[]): Promise<unknown> } } })
      .probe;
    const opener = { passphrase: 'correct horse' };
    await Promise.allSettled([link.call('unlock', opener), link.call('unlock', opener), link.call('lock')]);
  });
  await app.shows('phase', ({ phase }) => phase === 'locked', 5_000);
  // This answer comes after everything that was still under way.
  t.match(await app.call('unlock', { passphrase: 'battery staple' }), { failed: 'bad_identity' });
  t.match(await app.value('phase'), { phase: 'locked' });
  t.match(await app.call('copyText', 'x'), { failed: 'closed' });
});

t.test(
  'WEB-84: of two attempts that both make a device the first stays, and the other is revoked',
  { skip },
  async (t) => {
    const { app, url, server } = await scene(t);
    const phrase = (await app.claim()).join(' ');
    const other = await App.open(await freshContext(t), url);
    await other.shows('phase', ({ phase }) => phase === 'empty');
    await other.call('recover', { name: 'First', phrase });
    await other.ready();
    const first = (await other.value('info'))?.deviceId;
    // As in a second tab, whose screen did not know it yet.
    await other.call('recover', { name: 'Second', phrase });
    const devices = 'SELECT name FROM devices WHERE revoked_at IS NOT NULL';
    await until('it is revoked', async () => (await server.sql(devices))[0]?.['name'] === 'Second');
    await other.reload();
    await other.ready();
    t.equal((await other.value('info'))?.deviceId, first, 'the next start opens the same device');
    await other.shows('enrolment', ({ step }) => step === 'idle');
  },
);

t.test('WEB-58: nothing that was being added stays in a browser that is forgotten', { skip }, async (t) => {
  const { app } = await scene(t);
  await app.claim();
  const left = await app.page.evaluate(async () => {
    const { link } = (globalThis as unknown as { probe: { link: { call(...all: unknown[]): Promise<unknown> } } })
      .probe;
    const files = Array.from({ length: 200 }, (_, n) => new File(['of this vault'], `${n}.txt`));
    await Promise.allSettled([link.call('upload', { binId: 'inbox', files }), link.call('forget', null)]);
    const opening = indexedDB.open('service-web');
    await new Promise((resolve) => (opening.onsuccess = resolve));
    const keys = opening.result.transaction('records').objectStore('records').getAllKeys();
    await new Promise((resolve) => (keys.onsuccess = resolve));
    opening.result.close();
    return keys.result;
  });
  t.same(left, []);
});

t.test('WEB-64: no text of an item breaks the page, and no field makes a row long', { skip }, async (t) => {
  const { app } = await scene(t);
  await app.claim();
  const half = item('contact', { name: 'Half' });
  // Made in the page: in transit to it half a character would be replaced by another one.
  await app.page.evaluate((given) => {
    const [high, low] = [String.fromCharCode(0xd800), String.fromCharCode(0xdc00)];
    const payload = { name: `Half ${high}`, email: `${low}@example.org`, phone: high };
    const { link } = (globalThis as unknown as { probe: { link: { call(...all: unknown[]): Promise<unknown> } } })
      .probe;
    return link.call('put', { ...given, payload });
  }, half);
  await app.page.evaluate((id) => void (location.hash = `#/item/${id}`), half.id);
  await app.page.waitForSelector('a[href^="mailto:"]', { timeout: 10_000 });
  t.same(app.faults, []);
  const long = 'x'.repeat(100_000);
  const view = { id: half.id, binId: 'inbox', ts: 1, pending: false, senderDevice: '', version: 1, blob: null };
  const rows = [
    rowOf({ ...view, type: 'file', payload: { name: long, mime: long } } as never, null),
    rowOf({ ...view, type: 'link', payload: { url: `https://example.org/${long}`, title: long } } as never, null),
  ];
  for (const row of rows) t.ok(JSON.stringify(row).length < 10_000, row.type);
});

t.test('WEB-65: a link opened in the app’s tab is removed from the address and starts nothing', { skip }, async (t) => {
  const { app, url } = await scene(t);
  await app.shows('phase', ({ phase }) => phase === 'empty');
  await app.page.evaluate(() => void (location.hash = '#claim=token-of-somebody'));
  await app.page.waitForFunction(() => location.hash === '');
  await app.page.waitForFunction(() =>
    [...document.querySelectorAll('input')].some(({ value }) => value === 'token-of-somebody'),
  );
  t.match(await app.value('enrolment'), { step: 'idle' }, 'no enrolment began');
  t.ok(await app.page.evaluate(() => document.body.innerText.includes(location.host)), 'the screen names the server');
  await app.claim();
  await app.page.evaluate(() => void (location.hash = '#pair=one-two-three-four-five-six'));
  await app.page.waitForFunction(() => location.hash === '');
  t.equal(app.page.url(), url);
});

t.test('WEB-66: what the service worker refuses is plain text that cannot run', { skip }, async (t) => {
  const { app } = await scene(t);
  await app.page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
  await app.page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  const headers = await app.page.evaluate(async () => {
    const answers = await Promise.all(
      ['%3Cscript%3E', '01M82XKTMM8ZRB262RR1ZKK7GF?type=text/html'].map((id) => fetch(`/web/content/${id}`)),
    );
    return answers.map(({ headers }) => Object.fromEntries(headers));
  });
  for (const one of headers)
    t.match(one, {
      'content-type': 'text/plain; charset=utf-8',
      'content-security-policy': "default-src 'none'; sandbox; frame-ancestors 'self'",
      'x-content-type-options': 'nosniff',
    });
});

/** An open device with a lock, whose timers the test runs. */
async function lockable() {
  const time = { now: 0, timers: [] as (() => void)[] };
  const setTimer = (_ms: number, fn: () => void) => {
    time.timers.push(fn);
    return { cancel: () => undefined };
  };
  const clock = { now: () => time.now, setTimer };
  const kept = new Map<string, unknown>([['lock', { kind: 'passphrase' }]]);
  const records = {
    get: (key: string) => Promise.resolve(kept.get(key)),
    put: (key: string, value: unknown) => Promise.resolve(void kept.set(key, value)),
  };
  const engine = new Engine({ clock, sodium: nodeSodium } as never, records as never, 'https://sync.example.org');
  let closed = 0;
  const session = { close: () => Promise.resolve((closed += 1)), relock: () => undefined };
  engine.session.set(session as never);
  // An open vault, which alone takes another time.
  const open = { raw: new Uint8Array(32), current: kept.get('lock') };
  Object.assign((engine as unknown as { vault: object }).vault, open);
  await engine.setLockAfter(10);
  return { engine, time, closed: () => closed };
}

t.test('WEB-67: a user who returns after the lock’s timeout finds the app locked, also after a sleep', async (t) => {
  // Asleep: time passes, and no timer runs.
  const { engine, time, closed } = await lockable();
  time.now += 9 * 60_000;
  await engine.touched();
  time.now += 9 * 60_000;
  await engine.touched();
  t.equal(closed(), 0, 'use within the timeout keeps it open');
  time.now += 10 * 60_000;
  await engine.touched();
  t.match(engine.phase.value, { phase: 'locked', kind: 'passphrase' });
  t.equal(closed(), 1);
});

t.test('CLIENT-70: the app locks in time where the clock is set back', async (t) => {
  const { engine, time, closed } = await lockable();
  for (const ms of [5_000, -3_600_000, 10 * 60_000]) {
    t.equal(closed(), 0);
    time.now += ms;
    for (const fn of time.timers.splice(0)) fn();
  }
  await until('the lock', () => closed() === 1);
  t.match(engine.phase.value, { phase: 'locked', kind: 'passphrase' });
});
