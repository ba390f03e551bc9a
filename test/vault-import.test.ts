/** `import` as a command: what is restored, what is kept, and what an interruption leaves to the next run. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { exportVault } from '../src/cli/commands/export.js';
import { importVault, report } from '../src/cli/commands/import.js';
import type { Context } from '../src/cli/context.js';
import { renewedId } from '../src/sdk/archive/importer.js';
import { EXIT } from '../src/terminal/terminal.js';
import type { ItemView } from '../src/sdk/events.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { systemClock, type Clock } from '../src/protocol/clock.js';
import { isUlid } from '../src/protocol/ids.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { newId } from './support/client.js';
import { next, note, refusal, wiretap, writes } from './support/client-world.js';
import { TcpProxy } from './support/tcp-proxy.js';
import { fakeTerminal, type FakeTerminal } from './support/vault-context.js';
import { contextFor, filled, place, type Place } from './support/vault-place.js';

interface PlainItem {
  readonly id: string;
  readonly bin: string;
  readonly type: string;
  readonly ts: number;
  readonly payload: Record<string, unknown>;
  readonly blob?: boolean;
}

interface Plain {
  readonly bins: Record<string, unknown>[];
  readonly items: PlainItem[];
}

/** Writes what this vault exports, changed by the test, to a file. */
async function plainFile(at: Place, change: (document: Plain) => unknown): Promise<string> {
  const file = join(at.folder, 'plain.json');
  await exportVault(at.context(fakeTerminal()), { file, plain: true, force: true });
  await writeFile(file, JSON.stringify(change(JSON.parse(await readFile(file, 'utf8')) as Plain)));
  return file;
}

const many = (count: number): PlainItem[] =>
  Array.from({ length: count }, (_, at) => ({
    id: newId(),
    bin: 'inbox',
    type: 'text',
    ts: 1_700_000_000_000 + at,
    payload: { text: `number ${at}` },
  }));

const shown = (items: readonly ItemView[]): unknown[] =>
  items
    .map(({ id, binId, type, ts, payload }) => ({ id, binId, type, ts, payload }))
    .sort((one, other) => (one.id < other.id ? -1 : 1));

t.test('ARCHIVE-10: an empty vault gets bins, names, items, ids and times', async (t) => {
  const from = await filled(t);
  const file = join(from.folder, 'vault.archive');
  await from.client.device.bins.rename('inbox', { name: 'Everything' });
  await exportVault(from.context(fakeTerminal({ answers: [from.world.phrase] })), { file });
  const to = await place(t);
  await to.client.device.bins.create('other', { name: 'Has the slug' }, 'garden');
  const terminal = fakeTerminal({ answers: [from.world.phrase], json: true });
  t.equal(await importVault(to.context(terminal), { file, foreign: true }), EXIT.ok);
  t.match(terminal.documents, [{ written: 2, same: 0, newer: 0, waiting: 0, bins: 1, refused: [] }]);
  t.match(terminal.steps[0], /Verifying/);
  t.same(shown(await to.client.device.list()), shown(await from.client.device.list()));
  const bins = new Map((await to.client.device.bins.list()).map((bin) => [bin.id, bin] as const));
  t.match(bins.get('garden'), { slug: 'garden-2', label: { name: 'The garden', emoji: '🌱' } });
  t.match(bins.get('inbox'), { label: { name: 'Everything' } });

  const second = await to.world.open(to.client.identity());
  await second.device.pull();
  t.same(shown(await second.device.list()), shown(await from.client.device.list()), 'the server has the items');
});

t.test(
  'ARCHIVE-11: the same is skipped, the newer stays unless --overwrite, the deleted returns under one new id',
  async (t) => {
    const at = await filled(t);
    const { device } = at.client;
    const [first, second] = at.ids;
    const before = await device.get(first);
    const file = await plainFile(at, (document) => document);
    await device.put({ id: first, ...note('newer here') });
    await device.delete(second);
    const run = async (options: { readonly overwrite?: boolean } = {}): Promise<unknown> => {
      const terminal = fakeTerminal({ json: true });
      t.equal(await importVault(at.context(terminal), { file, ...options }), EXIT.ok);
      return terminal.documents[0];
    };
    t.match(await run(), { written: 1, renamed: 1, newer: 1, same: 0 });
    t.match((await device.get(first))?.payload, { text: 'newer here' });
    const renewed = renewedId(nodeSodium, second, 1);
    t.ok(isUlid(renewed) && renewed.startsWith(second.slice(0, 10)));
    t.match((await device.get(renewed))?.payload, { title: 'Beans' });
    t.match(await run(), { written: 0, renamed: 1, newer: 1, same: 1 }, 'the second time nothing is written');
    t.match(await run({ overwrite: true }), { written: 1, same: 1 });
    t.same((await device.get(first))?.payload, before?.payload);
    t.match(await run({ overwrite: true }), { written: 0, same: 2 });
    await device.delete(renewed);
    t.match(await run(), { written: 1, renamed: 1 });
    t.match((await device.get(renewedId(nodeSodium, second, 2)))?.payload, { title: 'Beans' });
    t.equal((await device.list()).length, 2);
  },
);

t.test('ARCHIVE-11: an item of the vault that is older than the export’s is replaced', async (t) => {
  const at = await filled(t);
  const [first] = at.ids;
  const file = await plainFile(at, (document) => ({
    ...document,
    items: document.items.map((item) =>
      item.id === first ? { ...item, ts: item.ts + 1, payload: { text: 'later' } } : item,
    ),
  }));
  const terminal = fakeTerminal({ json: true });
  t.equal(await importVault(at.context(terminal), { file }), EXIT.ok);
  t.match(terminal.documents, [{ written: 1, same: 1 }]);
  t.match((await at.client.device.get(first))?.payload, { text: 'later' });
});

t.test('ARCHIVE-13: an import is sent in batches, and files without content are left out', async (t) => {
  const at = await place(t);
  const blob = { ...many(1)[0], type: 'file', payload: { name: 'plan.pdf' }, blob: true };
  const file = await plainFile(at, (document) => ({ ...document, items: [...many(450), blob] }));
  const sent = at.client.tap.calls.length;
  const terminal = fakeTerminal();
  t.equal(await importVault(at.context(terminal), { file }), EXIT.ok);
  const posts = at.client.tap.calls.slice(sent).filter(({ path }) => path.startsWith('/items') && !path.includes('?'));
  t.ok(posts.length <= 12, `${posts.length} requests for 450 items`);
  t.equal(writes(at.client).length, 450);
  t.match(terminal.notes.join('\n'), /1 items are files whose content is not in this export/);
  t.match(terminal.steps, /Imported 400 of 451 items/);
  t.equal((await at.client.device.list()).length, 450);
});

t.test('ARCHIVE-12: an interrupted import resumes when it is run again', async (t) => {
  const at = await place(t);
  const file = await plainFile(at, (document) => ({ ...document, items: many(700) }));
  const stop = new AbortController();
  const terminal = fakeTerminal({ interrupted: stop.signal });
  terminal.onStep = (text) => {
    if (text.startsWith('Imported 300')) stop.abort();
  };
  t.match(await refusal(importVault(at.context(terminal), { file })), { exitCode: EXIT.interrupted });
  const there = (await at.client.device.list()).length;
  t.ok(there >= 300 && there < 700, `${there} items were imported`);
  t.match(terminal.notes.join('\n'), /Running it again continues/);
  const again = fakeTerminal({ json: true });
  t.equal(await importVault(at.context(again), { file }), EXIT.ok);
  t.match(again.documents, [{ written: 700 - there, same: there }]);
  t.equal((await at.client.device.list()).length, 700, 'no item exists twice');
});

t.test('ARCHIVE-13: items that the server refuses are counted by code, and the rest is imported', async (t) => {
  const at = await place(t);
  const items = many(3);
  const file = await plainFile(at, (document) => ({ ...document, items }));
  at.client.tap.twist = (call) => {
    if (call.path !== '/items' && call.path !== '/items/batch') return undefined;
    const spoil = (write: Record<string, unknown>) => (write['id'] === items[1]?.id ? { ...write, type: 'no' } : write);
    const body = call.body ?? {};
    return Array.isArray(body['items'])
      ? { items: (body['items'] as Record<string, unknown>[]).map(spoil) }
      : spoil(body);
  };
  const terminal = fakeTerminal({ json: true });
  t.equal(await importVault(at.context(terminal), { file }), EXIT.refused);
  t.match(terminal.documents, [{ written: 2, refused: [{ code: 'unknown_type', items: 1 }] }]);
  t.match(terminal.notes.join('\n'), /1 items were refused: unknown_type/);
});

t.test('ARCHIVE-13 CLI-14: a code that the server made up does not control the terminal', async (t) => {
  const at = await place(t);
  const file = await plainFile(at, (document) => ({ ...document, items: many(1) }));
  const context = at.context(fakeTerminal());
  const counts = {
    ...{ written: 0, renamed: 0, same: 0, newer: 0, blobs: 0, waiting: 0, bins: 0 },
    refused: new Map([['evil\u001b[2J', 1]]),
  };
  report(context, { file }, counts);
  const { notes } = context.terminal as FakeTerminal;
  t.match(notes.join('\n'), /refused: evil<U\+001B>/);
  t.notMatch(notes.join('\n'), /\u001b/);
});

/** Shortens the waits before retries; the time limits of requests stay. */
const hurried: Clock = {
  now: () => Date.now(),
  setTimer: (ms, fn) => systemClock.setTimer(ms < 10_000 ? ms / 50 : ms, fn),
};

t.test('ARCHIVE-13: without a server the items wait in the outbox, unless their bin is unknown', async (t) => {
  const at = await place(t);
  const file = await plainFile(at, (document) => ({ ...document, items: many(5) }));
  const elsewhere = join(at.folder, 'elsewhere.json');
  const document = JSON.parse(await readFile(file, 'utf8')) as Plain;
  await writeFile(elsewhere, JSON.stringify({ ...document, items: many(1).map((item) => ({ ...item, bin: 'new' })) }));
  const proxy = await TcpProxy.before(t, at.world.url);
  const store = new MemoryStore();
  const identity = { ...at.client.identity(), serverUrl: proxy.through(at.world.url).replace(/\/$/, '') };
  const client = await at.world.open(identity, { store, tap: wiretap(hurried) });
  await client.device.devices.list();
  proxy.refuse(true);
  proxy.cut();
  const context = (terminal: FakeTerminal): Promise<Context> =>
    contextFor({ client, store, folder: at.folder }, terminal);
  t.match(await refusal(importVault(await context(fakeTerminal()), { file: elsewhere })), {
    exitCode: EXIT.unavailable,
    message: /Nothing was written/,
  });
  const terminal = fakeTerminal({ json: true });
  t.equal(await importVault(await context(terminal), { file }), EXIT.unavailable);
  t.match(terminal.documents, [{ written: 0, waiting: 5 }]);
  t.equal((await store.pending()).length, 5, 'the items are in the outbox');
  const sent = next(client, 'sent');
  proxy.refuse(false);
  await sent;
  await client.device.pull();
  t.equal(await importVault(await context(fakeTerminal()), { file }), EXIT.ok);
  await at.client.device.pull();
  t.equal((await at.client.device.list()).length, 5);
});

t.test('ARCHIVE-13: a server that never stops rate-limiting is reported once, and the items wait', async (t) => {
  // The two minutes of a stall are shortened too; requests keep their fifteen seconds.
  const stall = 120_000;
  const tap = wiretap({ ...hurried, setTimer: (ms, fn) => hurried.setTimer(ms === stall ? ms / 50 : ms, fn) });
  const truth = tap.platform.fetch;
  const overloaded = JSON.stringify({ error: { code: 'rate_limited', message: 'later' } });
  Object.assign(tap.platform, {
    fetch: (url: string, init: RequestInit): Promise<Response> =>
      init.method === 'POST' && /\/items(\/batch)?$/.test(url)
        ? Promise.resolve(new Response(overloaded, { status: 429 }))
        : truth(url, init),
  });
  const at = await place(t, { tap });
  const file = await plainFile(at, (document) => ({ ...document, items: many(900) }));
  const terminal = fakeTerminal({ json: true });
  t.equal(await importVault(at.context(terminal), { file }), EXIT.unavailable);
  t.match(terminal.documents, [{ written: 0, waiting: 900 }]);
  t.equal(terminal.notes.filter((note) => note.includes('is rate-limiting')).length, 1);
});

t.test('ARCHIVE-13: an import waits for a server that is overloaded, and then completes', async (t) => {
  const tap = wiretap(hurried);
  const { platform } = tap;
  const truth = platform.fetch;
  let refusals = 0;
  const overloaded = JSON.stringify({ error: { code: 'unavailable', message: 'later' } });
  Object.assign(platform, {
    // As often as the client repeats a request, and once more.
    fetch: (url: string, init: RequestInit): Promise<Response> =>
      url.includes('/items/batch') && refusals < 6 && ++refusals > 0
        ? Promise.resolve(new Response(overloaded, { status: 503 }))
        : truth(url, init),
  });
  const at = await place(t, { tap });
  const file = await plainFile(at, (document) => ({ ...document, items: many(450) }));
  const terminal = fakeTerminal({ json: true });
  t.equal(await importVault(at.context(terminal), { file }), EXIT.ok);
  t.equal(refusals, 6);
  t.match(terminal.documents, [{ written: 450, waiting: 0 }]);
  t.match(terminal.notes.join('\n'), /is rate-limiting/);
  t.equal((await at.client.device.list()).length, 450);
});
