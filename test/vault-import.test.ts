/** `export` and `import` as commands, with a real device on a real server: what is restored, kept, and interrupted. */
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { exportVault } from '../src/cli/commands/export.js';
import { importVault, report } from '../src/cli/commands/import.js';
import { withSource } from '../src/cli/import-source.js';
import { surveyOf, renewedId } from '../src/sdk/archive/importer.js';
import { EXIT } from '../src/terminal/terminal.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { drawPhrase, phraseSeed } from '../src/crypto/master-key.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Context } from '../src/cli/context.js';
import type { ItemView } from '../src/sdk/events.js';
import { systemClock, type Clock } from '../src/protocol/clock.js';
import { isUlid } from '../src/protocol/ids.js';
import { note, refusal, wiretap, next, writes } from './support/client-world.js';
import { fakeTerminal, type FakeTerminal } from './support/vault-context.js';
import { contextFor, filled, place, type Place } from './support/vault-place.js';
import { newId } from './support/client.js';
import { TcpProxy } from './support/tcp-proxy.js';

const parts = async (folder: string): Promise<string[]> =>
  (await readdir(folder)).filter((name) => name.endsWith('.part'));

t.test(
  'ARCHIVE-05 ARCHIVE-07 ARCHIVE-14: an archive is encrypted under words that are typed without being shown',
  async (t) => {
    const { world: at, folder, context } = await filled(t);
    const file = join(folder, 'vault.archive');
    const wrong = drawPhrase(nodeSodium);
    const terminal = fakeTerminal({ answers: ['not twelve words', wrong, at.phrase] });
    t.equal(await exportVault(context(terminal), { file }), EXIT.ok);
    t.ok(terminal.asked.every(({ hidden }) => hidden) && terminal.asked.length === 3);
    t.match(terminal.notes, [/expected 12 words, got 3/, /not the twelve words of this vault/]);
    t.equal((await stat(file)).mode & 0o777, 0o600);
    const bytes = await readFile(file, 'latin1');
    for (const content of ['spare', 'Beans', 'garden', 'record']) t.notOk(bytes.includes(content), content);
    for (const content of ['spare', 'Beans', 'garden']) t.notOk(terminal.all().includes(content), `told: ${content}`);
    for (const phrase of [at.phrase, wrong]) {
      const words = phrase.split(' ');
      for (const [n, word] of words.entries()) {
        t.notOk(word.length > 4 && bytes.includes(word));
        t.notOk(
          n > 0 && terminal.all().includes(`${words[n - 1] ?? ''} ${word}`),
          'no two adjacent words of a phrase are printed',
        );
      }
    }
    t.same(await parts(folder), []);
  },
);

t.test('ARCHIVE-05: wrong words write no file, and are asked for three times at most', async (t) => {
  const { world: at, folder, context } = await filled(t);
  const file = join(folder, 'vault.archive');
  const wrong = [1, 2, 3, 4].map(() => drawPhrase(nodeSodium));
  const terminal = fakeTerminal({ answers: wrong });
  t.match(await refusal(exportVault(context(terminal), { file })), { message: /not the twelve words/ });
  t.equal(terminal.asked.length, 3);
  t.match(await refusal(exportVault(context(fakeTerminal()), { file })), { exitCode: EXIT.usage });
  const piped = fakeTerminal({ input: `${wrong[0] ?? ''}\n` });
  t.match(await refusal(exportVault(context(piped), { file, phraseStdin: true })), { message: /not the twelve words/ });
  t.same((await readdir(folder)).sort(), ['default'], 'nothing was written');
  const right = fakeTerminal({ input: `${at.phrase}\n`, interactive: false });
  t.equal(await exportVault(context(right), { file, phraseStdin: true }), EXIT.ok);
});

t.test('ARCHIVE-06: bins with names and all items that verify are exported; the rest is reported', async (t) => {
  const { world: at, folder, client, ids } = await filled(t);
  const file = join(folder, 'vault.json');
  // Another program with the same device, which has no item yet and gets one whose tag is invalid.
  await at.server.sql(`UPDATE items SET sig = decode(repeat('00', 32), 'hex') WHERE id = $1`, [ids[1]]);
  const terminal = fakeTerminal({ json: true });
  const store = new MemoryStore();
  const fresh = await at.open(client.identity(), { store });
  t.equal(
    await exportVault(await contextFor({ client: fresh, store, folder }, terminal), { file, plain: true }),
    EXIT.ok,
  );
  t.match(terminal.documents, [{ file, plain: true, bins: 2, items: 1, blobs: 0, hidden: 1 }]);
  t.match(terminal.notes.join('\n'), /1 item left out, since not verified/);
  const document = JSON.parse(await readFile(file, 'utf8')) as Record<'bins' | 'items', Record<string, unknown>[]>;
  t.match(
    document.bins.find((bin) => bin['id'] === 'garden'),
    { label: { name: 'The garden', emoji: '🌱' } },
  );
  t.match(document.items, [
    { id: ids[0], bin: 'inbox', type: 'text', payload: { text: 'the spare key is under the pot' } },
  ]);
});

t.test('ARCHIVE-06: false bins of a server do not lead to an export that no import accepts', async (t) => {
  const tap = wiretap();
  const truth = tap.platform.fetch;
  const row = { meta: null, createdAt: 1, updatedAt: 1, itemCount: 0 };
  const many = Array.from({ length: 1_200 }, (_, n) => ({ ...row, id: `more${n}`, slug: `more${n}` }));
  const bins = [...many, { ...row, id: 'garden', slug: 's'.repeat(100) }, { ...row, id: 'inbox', slug: '' }];
  let lies = false;
  Object.assign(tap.platform, {
    fetch: (url: string, init: RequestInit): Promise<Response> =>
      lies && new URL(url).pathname === '/api/bins' ? Promise.resolve(Response.json({ bins })) : truth(url, init),
  });
  const { folder, context, client, world: at } = await place(t, { tap });
  await client.device.bins.create('garden', { name: 'The garden' });
  await client.device.put(note('one'));
  await client.device.put({ ...note('two'), binId: 'garden' });
  lies = true;
  const input = `${at.phrase}\n`;
  for (const plain of [true, false]) {
    const file = join(folder, `vault.${String(plain)}`);
    t.equal(await exportVault(context(fakeTerminal({ input })), { file, plain, phraseStdin: true }), EXIT.ok);
    const { sodium } = tap.platform;
    const seed = await phraseSeed(sodium, at.phrase);
    const survey = await withSource(file, (source) => surveyOf(source.records(sodium, seed, () => undefined)));
    t.equal(survey.items, 2);
    t.equal(survey.manifest.tenantId, client.identity().tenantId, 'the manifest names the vault of the export');
    t.ok(survey.bins.get('garden') && survey.bins.get('inbox'), 'the bins that have items are included');
    t.equal(survey.bins.size, 1_000);
  }
});

t.test('ARCHIVE-06: without a server the bins are those of the items, where they were moved to', async (t) => {
  const at = await place(t);
  await at.client.device.bins.create('garden', { name: 'The garden' });
  const { id } = await at.client.device.put({ ...note('beans'), binId: 'garden' });
  const proxy = await TcpProxy.before(t, at.world.url);
  const store = new MemoryStore();
  const identity = { ...at.client.identity(), serverUrl: proxy.through(at.world.url).replace(/\/$/, '') };
  const client = await at.world.open(identity, { store, tap: wiretap(hurried) });
  await client.device.pull();
  await client.device.devices.list();
  proxy.refuse(true);
  proxy.cut();
  const kept = next(client, 'kept');
  client.device.move(id, 'inbox').catch(() => undefined);
  await kept;
  const file = join(at.folder, 'vault.json');
  const context = await contextFor({ client, store, folder: at.folder }, fakeTerminal());
  t.equal(await exportVault(context, { file, plain: true }), EXIT.ok);
  const { bins, items } = JSON.parse(await readFile(file, 'utf8')) as Record<'bins' | 'items', { bin?: string }[]>;
  t.match(items, [{ id, bin: 'inbox' }]);
  t.match(bins, [{ id: 'inbox' }]);
  t.equal(bins.length, 1, 'not the bin that is empty now');
});

t.test('ARCHIVE-07: an existing file is replaced only with --force, and a failed export leaves nothing', async (t) => {
  const { world: at, folder, context } = await filled(t);
  const file = join(folder, 'vault.archive');
  await writeFile(file, 'something else');
  const asked = fakeTerminal({ answers: [at.phrase] });
  t.match(await refusal(exportVault(context(asked), { file })), { exitCode: EXIT.usage, hint: /--force/ });
  t.equal(asked.asked.length, 0, 'refused before the words are asked for');
  t.equal(await readFile(file, 'utf8'), 'something else');
  t.equal(await exportVault(context(fakeTerminal({ answers: [at.phrase] })), { file, force: true }), EXIT.ok);
  t.not(await readFile(file, 'utf8'), 'something else');
  const interrupted = fakeTerminal({ answers: [at.phrase], interrupted: AbortSignal.abort() });
  const other = join(folder, 'other.archive');
  t.match(await refusal(exportVault(context(interrupted), { file: other })), { exitCode: EXIT.interrupted });
  const nowhere = join(folder, 'no', 'such', 'folder');
  t.match(await refusal(exportVault(context(fakeTerminal({ answers: [at.phrase] })), { file: nowhere })), {
    exitCode: EXIT.usage,
  });
  await mkdir(join(folder, 'a folder'));
  const onto = { file: join(folder, 'a folder'), force: true };
  t.match(await refusal(exportVault(context(fakeTerminal({ answers: [at.phrase] })), onto)), { message: /not a file/ });
  t.same((await readdir(folder)).sort(), ['a folder', 'default', 'vault.archive']);
});

t.test('ARCHIVE-08: plain JSON is written with a warning, with mode 0600, and not to a screen', async (t) => {
  const { folder, context, ids } = await filled(t);
  const file = join(folder, 'vault.json');
  const terminal = fakeTerminal();
  t.equal(await exportVault(context(terminal), { file, plain: true }), EXIT.ok);
  t.match(terminal.notes[0], /not encrypted/);
  t.equal((await stat(file)).mode & 0o777, 0o600);
  t.equal(terminal.asked.length, 0);
  t.match(await refusal(exportVault(context(fakeTerminal()), { file: '-', plain: true })), { message: /screen/ });
  t.match(await refusal(exportVault(context(fakeTerminal()), { file: '-' })), { exitCode: EXIT.usage });
  const piped = fakeTerminal({ onScreen: false });
  t.equal(await exportVault(context(piped), { file: '-', plain: true }), EXIT.ok);
  const document = JSON.parse(piped.printed.join('\n')) as { items: { id: string }[] };
  t.same(document.items.map(({ id }) => id).sort(), [...ids].sort());
});

t.test(
  'ARCHIVE-09: a file that is damaged, of another vault or no export is refused before anything is written',
  async (t) => {
    const { world: at, folder, context, client } = await filled(t);
    const { device, tap } = client;
    const file = join(folder, 'vault.archive');
    await exportVault(context(fakeTerminal({ answers: [at.phrase] })), { file });
    const whole = await readFile(file);
    const calls = (): number => tap.calls.filter(({ method }) => method !== 'GET').length;
    const before = calls();
    const flipped = Buffer.from(whole);
    flipped[200] = (flipped[200] ?? 0) ^ 1;
    const cases: readonly (readonly [name: string, bytes: Buffer, message: RegExp, code: string])[] = [
      ['cut', whole.subarray(0, -1), /cut short/, 'truncated'],
      ['changed', flipped, /changed or damaged/, 'damaged'],
      ['text', Buffer.from('dear diary'), /is not an archive/, 'not_archive'],
      ['empty', Buffer.alloc(0), /is not an archive/, 'not_archive'],
      ['json', Buffer.from('{"some": "json"}'), /no export/, 'not_archive'],
    ];
    for (const [name, bytes, message, code] of cases) {
      await writeFile(join(folder, name), bytes);
      const terminal = fakeTerminal({ answers: [at.phrase] });
      const refused = await refusal(importVault(context(terminal), { file: join(folder, name) }));
      t.match(refused, { exitCode: EXIT.untrusted, message, code }, name);
    }
    const others = fakeTerminal({ answers: [drawPhrase(nodeSodium)] });
    t.match(await refusal(importVault(context(others), { file })), {
      exitCode: EXIT.untrusted,
      message: /other words/,
      code: 'wrong_words',
    });
    t.match(await refusal(importVault(context(others), { file: join(folder, 'none') })), { message: /does not exist/ });

    const foreign = await filled(t);
    const terminal = fakeTerminal({ answers: [at.phrase] });
    t.match(await refusal(importVault(foreign.context(terminal), { file })), {
      exitCode: EXIT.untrusted,
      message: /another vault/,
      hint: /--foreign/,
    });
    t.equal(calls(), before, 'nothing was sent');
    t.equal((await device.list()).length, 2);
    const taken = fakeTerminal({ answers: [at.phrase] });
    t.equal(await importVault(foreign.context(taken), { file, foreign: true }), EXIT.ok);
    t.equal((await foreign.client.device.list()).length, 4);
  },
);

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

t.test(
  'ARCHIVE-11: an item that does not verify here is replaced, though the server has it under the same time',
  async (t) => {
    const at = await filled(t);
    const { world, folder, client } = at;
    const [first] = at.ids;
    const film = await client.device.put({
      ...{ binId: 'inbox', type: 'file', payload: { name: 'film.mp4' } },
      content: bytesSource(new Uint8Array(100_000)),
    });
    const file = join(folder, 'vault.archive');
    const answers = [world.phrase, world.phrase];
    t.equal(await exportVault(at.context(fakeTerminal({ answers })), { file }), EXIT.ok);
    const ids = [first, film.id];
    await world.server.sql(`UPDATE items SET sig = decode(repeat('00', 32), 'hex') WHERE id = ANY($1)`, [ids]);
    const store = new MemoryStore();
    const fresh = await world.open(client.identity(), { store });
    const context = await contextFor({ client: fresh, store, folder }, fakeTerminal({ answers, json: true }));
    t.equal(await importVault(context, { file }), EXIT.ok);
    t.match(context.terminal, { documents: [{ written: 2, same: 1, refused: [] }] });
    t.match((await fresh.device.get(first))?.payload, { text: 'the spare key is under the pot' });
    t.equal(await fresh.device.blobSize(film.id), 100_000);
    await fresh.device.pull();
    t.same(await fresh.device.hidden(), []);
  },
);

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
  at.client.tap.alterRequest = (call) => {
    if (call.path !== '/items' && call.path !== '/items/batch') return undefined;
    const spoil = (write: Record<string, unknown>) => (write['id'] === items[1]?.id ? { ...write, type: 'no' } : write);
    const body = call.body ?? {};
    return Array.isArray(body['items'])
      ? { items: (body['items'] as Record<string, unknown>[]).map(spoil) }
      : spoil(body);
  };
  const terminal = fakeTerminal({ json: true });
  t.match(await refusal(importVault(at.context(terminal), { file })), {
    exitCode: EXIT.refused,
    message: '1 item refused: unknown_type.',
  });
  t.match(terminal.documents, [{ written: 2, refused: [{ code: 'unknown_type', items: 1 }] }]);
});

t.test('ARCHIVE-13: an item that no longer opens here is counted, and the rest is imported', async (t) => {
  const at = await filled(t);
  const photo = await at.client.device.put({ binId: 'inbox', type: 'file', payload: { name: 'a', mime: '', size: 3 }, content: bytesSource(new Uint8Array(3)) }); // prettier-ignore
  const file = join(at.folder, 'vault.archive');
  t.equal(await exportVault(at.context(fakeTerminal({ answers: [at.world.phrase] })), { file }), EXIT.ok);
  for (const id of [at.ids[0], photo.id]) {
    const entry = await at.store.get(id);
    if (entry?.state !== 'live' || entry.row.inline === null) throw new Error('the item is here');
    const ct = nodeSodium.random(entry.row.inline.ct.length);
    await at.store.apply({ entries: [{ ...entry, row: { ...entry.row, inline: { ...entry.row.inline, ct } } }] });
  }
  const terminal = fakeTerminal({ json: true, answers: [at.world.phrase] });
  t.match(await refusal(importVault(at.context(terminal), { file })), { exitCode: EXIT.refused });
  t.match(terminal.documents, [{ written: 0, same: 1, refused: [{ code: 'damaged_item', items: 2 }] }]);
});

t.test('ARCHIVE-13 CLI-14: a code that the server made up does not control the terminal', async (t) => {
  const at = await place(t);
  const file = await plainFile(at, (document) => ({ ...document, items: many(1) }));
  const context = at.context(fakeTerminal());
  const counts = {
    ...{ written: 0, renamed: 0, same: 0, newer: 0, blobs: 0, waiting: 0, bins: 0 },
    refused: new Map([['evil\u001b[2J', 1]]),
  };
  t.throws(() => report(context, { file }, counts), { message: '1 item refused: evil<U+001B>[2J.' });
});

t.test('CLI-14: the name of an archive does not control the terminal', async (t) => {
  const { folder, context } = await filled(t);
  const file = join(folder, 'vault\u001b[2J.json');
  const terminal = fakeTerminal();
  await exportVault(context(terminal), { file, plain: true });
  await importVault(context(terminal), { file });
  t.match(terminal.printed, [/vault<U\+001B>\[2J\.json: .* in /, /vault<U\+001B>\[2J\.json: .* imported/]);
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
  t.equal(await importVault(await context(terminal), { file }), EXIT.ok, 'stored here, to be sent later');
  t.match(terminal.documents, [{ written: 0, waiting: 5 }]);
  t.match(terminal.notes.join('\n'), /5 items wait here/);
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
      init.method === 'POST' && /\/items(\/batch)?(\?|$)/.test(url)
        ? Promise.resolve(new Response(overloaded, { status: 429 }))
        : truth(url, init),
  });
  const at = await place(t, { tap });
  const file = await plainFile(at, (document) => ({ ...document, items: many(900) }));
  const terminal = fakeTerminal({ json: true });
  t.equal(await importVault(at.context(terminal), { file }), EXIT.ok);
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
