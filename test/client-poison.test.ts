/** No payload that a holder of the master key can write keeps the other items from being read. */
import { readFile } from 'node:fs/promises';
import { join as joinPath } from 'node:path';
import fc from 'fast-check';
import t from 'tap';
import type { ItemOutput } from '../src/mcp/schemas.js';
import { ArchiveWriter, readArchive } from '../src/sdk/archive/archive.js';
import { decodeRecord, readPlain, type ArchivedItem } from '../src/sdk/archive/records.js';
import { payloadBytes, payloadObject, PAYLOAD_DEPTH_MAX } from '../src/crypto/payload.js';
import { phraseSeed } from '../src/crypto/master-key.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { text } from '../src/protocol/bytes.js';
import { exportVault } from '../src/cli/commands/export.js';
import { EXIT } from '../src/terminal/terminal.js';
import { readItem } from '../src/sdk/wire.js';
import { bodyOf } from './reference-client/client.js';
import { sealItem } from './reference-client/cryptography.js';
import { bytesSink, bytesSource } from './support/archives.js';
import { machine } from './support/cli.js';
import { newId } from './support/client.js';
import { letIn, note, wiretap, world } from './support/client-world.js';
import { companion } from './support/mcp.js';
import { plant, type Plant } from './support/planted.js';
import { fakeTerminal } from './support/vault-context.js';
import { place } from './support/vault-place.js';

t.setTimeout(600_000);

/** The refusal of an invalid payload. */
const BAD = { name: 'CryptoRefusal', reason: 'bad_payload' } as unknown as Error;

const nested = (levels: number): string => `${'{"a":'.repeat(levels - 1)}{}${'}'.repeat(levels - 1)}`;
const arrays = (levels: number): string => `{"text":${'['.repeat(levels - 1)}${']'.repeat(levels - 1)}}`;

t.test('CLIENT-51: a payload of 64 levels is accepted, one of 65 is refused, on writing and on reading', (t) => {
  for (const made of [nested, arrays]) {
    t.ok(payloadObject(text(made(PAYLOAD_DEPTH_MAX))));
    for (const levels of [65, 32_000, 1_000_000]) t.throws(() => payloadObject(text(made(levels))), BAD, `${levels}`);
    t.throws(() => payloadBytes(text(made(65))), BAD);
  }
  t.ok(
    payloadObject(text(`{"text":"${'{['.repeat(1_000)}","b":"\\"${'['.repeat(100)}"}`)),
    'brackets inside strings do not count',
  );
  let deep: Record<string, unknown> = {};
  for (let level = 1; level < 64; level++) deep = { deep };
  t.ok(payloadBytes(deep));
  t.throws(() => payloadBytes({ deep }), BAD);
  for (let level = 0; level < 20_000; level++) deep = { deep };
  t.throws(() => payloadBytes(deep), BAD, 'without a stack overflow');
  const circle: Record<string, unknown> = {};
  circle['circle'] = circle;
  t.throws(() => payloadBytes(circle), BAD);
  t.throws(() => payloadBytes({ big: 1n }), BAD);
  fc.assert(
    fc.property(fc.object({ maxDepth: 6, withBigInt: false }), (object) => {
      payloadObject(payloadBytes(object));
    }),
  );
  t.end();
});

const ODD_KEYS = ['__proto__', 'constructor', 'toString', 'toJSON', 'hasOwnProperty', '', 'length', '\ud800', 'text'];
const ODD_TEXTS = ['\ud800', '\udfff\ud800', '\u202e', '\u0000', '\u2028', 'ﷺ'.repeat(3_000), '\u0300'.repeat(9_000)];
const NUMBERS = ['1e999', '-1e999', '-0', '1e-999', '1e20', '123456789012345678901234567890', '0.1'];

const value = (): fc.Arbitrary<string> =>
  fc.oneof(
    fc.jsonValue({ maxDepth: 4 }).map((one) => JSON.stringify(one)),
    fc.constantFrom(...NUMBERS),
    fc.constantFrom(...ODD_TEXTS).map((one) => JSON.stringify(one)),
    fc.integer({ min: 1, max: 200 }).map((levels) => nested(levels)),
    fc.constantFrom('null', 'true', '[]', '{}', '[[]]', '{"title":{}}', '{"toString":1}', '{"toJSON":"x"}'),
  );

/** JSON as text, which can hold what no object can: duplicate keys, and numbers out of range. */
const payloadText = (): fc.Arbitrary<string> => {
  const names = ['text', 'url', 'title', 'name', 'service', 'user', 'secret', 'label', 'mime', 'size', 'lat', 'lng'];
  const key = fc.oneof(fc.constantFrom(...names), fc.constantFrom(...ODD_KEYS), fc.string());
  return fc
    .array(fc.tuple(key, value()), { maxLength: 12 })
    .map((fields) => `{${fields.map(([name, json]) => `${JSON.stringify(name)}:${json}`).join(',')}}`);
};

const MANY_KEYS = `{${Array.from({ length: 7_000 }, (_, at) => `"${at}":0`).join(',')}}`;
const NUMBERS_THAT_GROW = `{"text":"grows","n":[${Array.from({ length: 13_000 }, () => '1e20').join(',')}]}`;

const FIXED: readonly string[] = [
  nested(32_000 / 5),
  nested(9_000),
  arrays(30_000),
  nested(64),
  nested(65),
  MANY_KEYS,
  NUMBERS_THAT_GROW,
  '{"text":{},"title":[],"url":{"a":1},"name":null,"label":7,"service":{"evil":1},"secret":[1]}',
  '{"__proto__":{"text":"polluted"},"text":"own"}',
  '{"text":"one","text":"two"}',
  '{"toJSON":"x","text":"y"}',
  '{}',
  '[]',
  'null',
  '"text"',
  'not JSON',
  '',
];

t.test('CLIENT-52: whatever an item contains, lists, searches, queries and exports return all others', async (t) => {
  const all = await world(t, { env: { RATE_READ_PER_S: '0', RATE_WRITE_PER_S: '0', RATE_PAIR_PER_MIN: '0' } });
  const { first } = all;
  await first.device.connect();
  const desk = await machine(t);
  await letIn(first, (words) => desk.json(['join', all.url, ...words.split(' '), '--name', 'Desk']));
  const second = await all.pair('Agent');
  second.device.close();
  const agent = await companion(t, { identity: second.identity() });

  const good: string[] = [];
  const keep = async (words: string): Promise<void> => void good.push((await first.device.put(note(words))).id);
  await keep('a good note before');
  const types = CONTENT_TYPES.filter((type) => !['image', 'file', 'audio', 'video'].includes(type));
  const random = fc.sample(fc.tuple(fc.constantFrom(...types), payloadText()), 40);
  const plants: Plant[] = [
    ...FIXED.flatMap((payload) => [
      { type: 'text', payload },
      ...(payload.length < 200
        ? [
            { type: 'password', payload },
            { type: 'link', payload },
          ]
        : []),
    ]),
    ...random.map(([type, payload]) => ({ type, payload })),
  ].filter(({ payload }) => Buffer.byteLength(payload) <= 65_520);
  const ids = await plant(all, first, plants);
  await keep('a good note after');

  await t.test('the library', async (t) => {
    const reader = await all.open(first.identity());
    const queried: string[] = [];
    const query = await reader.device.query({ text: 'good note', limit: 5_000 }, ({ items }) => {
      queried.splice(0, queried.length, ...items.map(({ id }) => id));
    });
    await reader.device.connect();
    const listed = await reader.device.list();
    const hidden = await reader.device.hidden();
    t.same(
      good.filter((id) => !listed.some((item) => item.id === id)),
      [],
    );
    t.equal(listed.length + hidden.length, good.length + ids.length, 'each item is shown or quarantined');
    t.ok(hidden.every(({ reason }) => reason === 'bad_payload') && hidden.length >= 8);
    t.same(
      good.filter((id) => !queried.includes(id)),
      [],
    );
    t.ok(JSON.stringify(listed).length > 0, 'the list can be serialized');
    for (const id of ids) await reader.device.get(id);
    t.equal(await reader.device.check(), true);
    t.equal(({} as Record<string, unknown>)['text'], undefined, 'the prototype of objects is not polluted');
    query.close();
    t.same(reader.problems, []);
  });

  await t.test('the command line', async (t) => {
    for (const argv of [['list'], ['search', 'good'], ['status'], ['list', '--json'], ['search', 'good', '--json']]) {
      const { code, out, notes } = await desk.call(argv);
      t.equal(code, EXIT.ok, `${argv.join(' ')}: ${notes.slice(-300)}`);
      if (argv[0] !== 'status') t.match(out, /good note after/);
    }
    const shown = await first.device.list();
    for (const id of ids.slice(0, 25)) {
      const { code, notes } = await desk.call(['--json', 'get', id, '--local']);
      t.ok(code === EXIT.ok || code === EXIT.untrusted || code === EXIT.notFound, `get: ${code} ${notes}`);
      t.equal(
        code === EXIT.ok,
        shown.some((item) => item.id === id),
        notes,
      );
    }
    const plain = joinPath(desk.home, 'vault.json');
    const { code, notes } = await desk.call(['export', '--plain', plain]);
    t.equal(code, EXIT.ok, notes);
    const records = readPlain(await readFile(plain, 'utf8'));
    const exported = records.flatMap((one) => (one.record === 'item' ? [one.id] : []));
    t.same(exported.sort(), shown.map(({ id }) => id).sort());

    const file = joinPath(desk.home, 'vault.archive');
    const made = await desk.call(['export', '--phrase-stdin', file], { input: `${all.phrase}\n` });
    t.equal(made.code, EXIT.ok, made.notes);
    const { sodium } = wiretap().platform;
    const seed = await phraseSeed(sodium, all.phrase);
    const archived: string[] = [];
    for await (const one of readArchive(sodium, seed, bytesSource(await readFile(file))))
      if (one.record === 'item') archived.push(one.id);
    t.same(archived.sort(), exported, 'the archive contains every exported item');
  });

  await t.test('the companion', async (t) => {
    const items: ItemOutput[] = [];
    for (let cursor: string | null | undefined; cursor !== null;) {
      const page = await agent.list({ limit: 200, ...(cursor === undefined ? {} : { cursor }) });
      t.equal(page.total, good.length + ids.length);
      items.push(...page.items);
      cursor = page.nextCursor;
    }
    t.same(
      good.filter((id) => !items.some((item) => item.id === id)),
      [],
    );
    const { items: found } = await agent.search('good note');
    t.same(found.map(({ id }) => id).sort(), [...good].sort());
    t.ok(JSON.stringify(items).length > 0);
  });
});

const item = (payload: Record<string, unknown>): ArchivedItem => ({
  ...{ record: 'item', id: newId(), bin: 'inbox', type: 'text', ts: 1_750_000_000_000, payload },
  ...{ blob: false, content: null },
});

t.test(
  'ARCHIVE-21: a payload that grows when written is read back; one that is too deep is a bad record',
  async (t) => {
    const { sodium } = wiretap().platform;
    const { sink, written } = bytesSink();
    const seed = sodium.random(64);
    const writer = await ArchiveWriter.create(sodium, seed, sink);
    const manifest = {
      format: 1,
      createdAt: 1,
      tenantId: 't',
      masterFingerprint: Array(8).fill('0a1b').join(' '),
    } as const;
    await writer.add({ record: 'manifest', ...manifest });
    const grown = item(payloadObject(text(NUMBERS_THAT_GROW.slice(0, 65_000).replace(/,[^,]*$/, ']}'))));
    await writer.add(grown);
    await writer.finish();
    const read: unknown[] = [];
    for await (const one of readArchive(sodium, seed, bytesSource(written()))) read.push(one);
    t.same(read.at(-1), grown);
    const line = JSON.stringify({ ...item({}), payload: 'DEEP' }).replace('"DEEP"', nested(9_000));
    t.throws(() => decodeRecord(text(line)), { code: 'bad_record' });
    const plain = {
      ...manifest,
      ...{ format: 'service-vault', version: 1 },
      bins: [],
      items: [{ ...item({}), payload: 'DEEP' }],
    };
    t.throws(() => readPlain(JSON.stringify(plain).replace('"DEEP"', nested(100_000))), { code: 'bad_record' });
    t.equal(readPlain(JSON.stringify(plain).replace('"DEEP"', nested(64))).length, 2, '64 levels are read');
  },
);

t.test(
  'CLIENT-52: a bad item that an older version of the program stored as valid does not end an export',
  async (t) => {
    const at = await place(t);
    const { device, identity } = at.client;
    const before = await device.put(note('before'));
    await device.pull();
    const { masterKey, deviceId, keys } = identity();
    const devices = new Map([[deviceId, Buffer.from(keys.publicKey)]]);
    const head = { id: newId(), binId: 'inbox', type: 'text', ts: 1_750_000_000_000 };
    const made = bodyOf(sealItem(head, nested(9_000), { master: Buffer.from(masterKey), devices }), 'a');
    const row = readItem({ ...made, version: 1, deletedAt: null, senderDevice: deviceId }, 'type');
    if (row.deletedAt !== null) throw new Error('it is not deleted');
    await at.store.apply({ entries: [{ id: row.id, version: 1, state: 'live', row }] });
    const file = joinPath(at.folder, 'vault.json');
    const terminal = fakeTerminal();
    t.equal(await exportVault(at.context(terminal), { file, plain: true }), EXIT.untrusted, 'the exit code shows it');
    t.match(terminal.all(), /1 item.*left out/);
    const records = readPlain(await readFile(file, 'utf8'));
    t.same(
      records.flatMap((one) => (one.record === 'item' ? [one.id] : [])),
      [before.id],
    );
    t.match(await device.list(), [{ id: before.id }]);
  },
);
