/** The archive's bytes: what is read back, and what is refused. */
import fc from 'fast-check';
import t from 'tap';
import { ArchiveWriter, readArchive } from '../src/sdk/archive/archive.js';
import {
  decodeRecord,
  encodeRecord,
  readPlain,
  type ArchivedItem,
  type ArchiveRecord,
} from '../src/sdk/archive/records.js';
import { loadBrowserSodium } from '../src/crypto/sodium-browser.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Sodium } from '../src/crypto/sodium.js';
import { text } from '../src/protocol/bytes.js';
import { bytesSink, bytesSource } from './support/archives.js';
import { newId } from './support/client.js';
import { refusal, wiretap } from './support/client-world.js';
import { archiveCheck } from './vectors/check-archive.js';
import { vectors } from './vectors/check.js';

/** Real except for Argon2id, which the vectors test. */
const sodium = wiretap().platform.sodium;
const seed = sodium.random(64);
const manifest: ArchiveRecord = {
  record: 'manifest',
  format: 1,
  createdAt: 1_760_000_000_000,
  tenantId: 'tenant',
  masterFingerprint: Array.from({ length: 8 }, () => '0a1b').join(' '),
};
const itemOf = (payload: Record<string, unknown>): ArchivedItem => ({
  record: 'item',
  id: newId(),
  bin: 'inbox',
  type: 'text',
  ts: 1_750_000_000_000,
  payload,
  blob: false,
  content: null,
});

async function written(records: readonly ArchiveRecord[]): Promise<Uint8Array> {
  const { sink, written: all } = bytesSink();
  const writer = await ArchiveWriter.create(sodium, seed, sink);
  for (const record of records) await writer.add(record);
  await writer.finish();
  return all();
}

async function read(bytes: Uint8Array, by: Sodium = sodium): Promise<ArchiveRecord[]> {
  const records: ArchiveRecord[] = [];
  for await (const record of readArchive(by, seed, bytesSource(bytes))) records.push(record);
  return records;
}

const codeOf = async (bytes: Uint8Array): Promise<string> => (await refusal(read(bytes))).code ?? 'no code';

t.test('ARCHIVE-01: both bindings read the archives of the vectors, and write the same bytes', async (t) => {
  for (const binding of [nodeSodium, await loadBrowserSodium()]) {
    for (const { comment, input, expected } of vectors('archive').slice(0, 4)) {
      const archive = new Uint8Array(Buffer.from(String(input['archive']), 'hex'));
      t.same(await archiveCheck(binding, { phrase: String(input['phrase']), archive }), expected, comment);
    }
  }
});

t.test('ARCHIVE-02: any records are read back as they were written, over any number of chunks', async (t) => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.record({ name: fc.string({ minLength: 1 }), emoji: fc.string() }), { maxLength: 5 }),
      fc.array(fc.tuple(fc.dictionary(fc.string(), fc.jsonValue()), fc.nat(60_000)), { maxLength: 12 }),
      async (labels, payloads) => {
        const bins = labels.map((label, at): ArchiveRecord => ({ record: 'bin', id: `b${at}`, slug: `b${at}`, label }));
        const items = payloads.map(([payload, padding]) =>
          itemOf({ ...payload, padding: 'x'.repeat(Math.max(0, padding - JSON.stringify(payload).length * 6)) }),
        );
        const all = [manifest, ...bins, ...items];
        const back = await read(await written(all));
        // Compared as JSON, in which a negative zero has no sign.
        return JSON.stringify(back) === JSON.stringify(all);
      },
    ),
    { numRuns: 40 },
  );
  t.pass('all came back');
});

t.test('ARCHIVE-02: an archive whose header cannot be written, or that is given up, leaves no key', async (t) => {
  const keys: Uint8Array[] = [];
  const recorded: Sodium = {
    ...sodium,
    blake2b: (length, ...of) => {
      const hash = sodium.blake2b(length, ...of);
      if (of[1] !== undefined) keys.push(hash);
      return hash;
    },
  };
  await t.rejects(
    ArchiveWriter.create(recorded, seed, () => Promise.reject(new Error('the disk is full'))),
    { message: 'the disk is full' },
  );
  const writer = await ArchiveWriter.create(recorded, seed, () => Promise.resolve());
  await writer.add(manifest);
  writer.end();
  await t.rejects(writer.add(itemOf({ text: 'a note' })), { code: 'closed' });
  await t.rejects(writer.finish(), { code: 'closed' });
  t.equal(keys.length, 4);
  for (const key of keys) t.ok(key.every((byte) => byte === 0));
});

t.test('ARCHIVE-02: 50,000 items are written and read one chunk at a time', async (t) => {
  let largest = 0;
  const { sink, written: all } = bytesSink();
  const writer = await ArchiveWriter.create(sodium, seed, (bytes) => {
    largest = Math.max(largest, bytes.length);
    return sink(bytes);
  });
  await writer.add(manifest);
  for (let at = 0; at < 50_000; at++) await writer.add(itemOf({ text: `note number ${at}` }));
  await writer.finish();
  let asked = 0;
  let [items, inOrder] = [0, true];
  const source = bytesSource(all());
  const counted = {
    read: (length: number) => {
      asked = Math.max(asked, length);
      return source.read(length);
    },
  };
  for await (const record of readArchive(sodium, seed, counted)) {
    if (record.record !== 'item') continue;
    inOrder &&= record.payload?.['text'] === `note number ${items}`;
    items++;
  }
  t.ok(inOrder, 'each is read as it was written, in that order');
  t.equal(items, 50_000);
  t.ok(largest <= 64 * 1024 + 64, `at most one chunk is written at once: ${largest} bytes`);
  t.ok(asked <= 64 * 1024 + 64, `at most one chunk is read at once: ${asked} bytes`);
});

t.test('ARCHIVE-03: an archive that is truncated anywhere is refused', async (t) => {
  const whole = await written([manifest, itemOf({ text: 'one' })]);
  const codes = new Set<string>();
  for (let length = 0; length < whole.length; length++) codes.add(await codeOf(whole.subarray(0, length)));
  t.same([...codes].sort(), ['not_archive', 'truncated'], 'the archive is refused at whatever length it ends');
  const large = await written([manifest, ...Array.from({ length: 8 }, () => itemOf({ text: 'y'.repeat(50_000) }))]);
  const chunk = 5 + 64 * 1024 + 16;
  for (let chunks = 0; chunks * chunk + 88 < large.length; chunks++)
    t.equal(await codeOf(large.subarray(0, 88 + chunks * chunk)), 'truncated', `after ${chunks} whole chunks`);
});

t.test(
  'ARCHIVE-03: an archive with any one bit changed, or with one more byte after its end, is refused',
  async (t) => {
    const whole = await written([manifest, itemOf({ text: 'one' })]);
    for (let at = 0; at < whole.length; at++) {
      const changed = new Uint8Array(whole);
      changed[at] = (changed[at] ?? 0) ^ (1 << (at % 8));
      const code = await codeOf(changed);
      if (!/^(not_archive|unsupported|wrong_words|damaged|truncated)$/.test(code)) t.fail(`byte ${at}: ${code}`);
    }
    const longer = new Uint8Array(whole.length + 1);
    longer.set(whole);
    t.equal(await codeOf(longer), 'damaged');
    const other = await written([manifest, itemOf({ text: 'one' })]);
    const mixed = new Uint8Array(Buffer.concat([whole.subarray(0, 88), other.subarray(88)]));
    t.equal(await codeOf(mixed), 'damaged', 'chunks of another archive under the same recovery phrase are refused');
  },
);

t.test('ARCHIVE-03: chunks that are swapped, repeated or left out are refused', async (t) => {
  const large = await written([manifest, ...Array.from({ length: 6 }, () => itemOf({ text: 'y'.repeat(50_000) }))]);
  const chunk = 5 + 64 * 1024 + 16;
  const part = (n: number): Uint8Array => large.subarray(88 + n * chunk, 88 + (n + 1) * chunk);
  const tail = large.subarray(88 + 3 * chunk);
  const head = large.subarray(0, 88);
  const made = (...parts: Uint8Array[]): Uint8Array => new Uint8Array(Buffer.concat([head, ...parts, tail]));
  t.equal((await read(made(part(0), part(1), part(2)))).length, 7, 'the original order is read');
  t.equal(await codeOf(made(part(1), part(0), part(2))), 'damaged');
  t.equal(await codeOf(made(part(0), part(0), part(1), part(2))), 'damaged');
  t.equal(await codeOf(made(part(0), part(2))), 'damaged');
});

t.test('ARCHIVE-20: twice the memory and passes of an export are accepted; more is refused at once', async (t) => {
  const whole = await written([manifest]);
  const exported = new DataView(whole.buffer, whole.byteOffset);
  t.same([exported.getUint32(12), exported.getUint32(16)], [3, 64 * 1024], 'the passes and KiB of an export');
  const costs: { readonly ops: number; readonly memoryBytes: number }[] = [];
  const noting: Sodium = {
    ...sodium,
    argon2id13: (input) => {
      costs.push(input);
      return sodium.argon2id13(input);
    },
  };
  const asks = async (ops: number, memoryKib: number): Promise<string | undefined> => {
    const changed = new Uint8Array(whole);
    const view = new DataView(changed.buffer);
    view.setUint32(12, ops);
    view.setUint32(16, memoryKib);
    return (await refusal(read(changed, noting))).code;
  };
  t.equal(await asks(6, 128 * 1024), 'wrong_words', 'the key is derived, and the tag does not match');
  t.match(costs, [{ ops: 6, memoryBytes: 128 * 1024 * 1024 }]);
  for (const [ops, memory] of [
    [7, 65_536],
    [16, 65_536],
    [3, 128 * 1024 + 1],
    [3, 1024 * 1024],
    [1, 1024 * 1024],
    [0xffffffff, 8 * 1024],
  ] as const)
    t.equal(await asks(ops, memory), 'unsupported', `${ops} passes, ${memory} KiB`);
  t.equal(costs.length, 1);
});

t.test(
  'ARCHIVE-04: a header that requests too much, or is of another version, is refused before any work',
  async (t) => {
    const whole = await written([manifest]);
    let worked = 0;
    const counting: Sodium = {
      ...sodium,
      argon2id13: (input) => {
        worked++;
        return sodium.argon2id13(input);
      },
    };
    const changes: readonly (readonly [name: string, at: number, value: number])[] = [
      ['passes', 12, 1_000_000],
      ['no pass', 12, 0],
      ['memory', 16, 0xffffffff],
      ['too little memory', 16, 8],
      ['chunks', 20, 0x7fffffff],
      ['empty chunks', 20, 0],
      ['version', 8, 0x02010100],
      ['key derivation', 8, 0x01020100],
      ['cipher', 8, 0x01010200],
      ['reserved', 8, 0x01010101],
    ];
    for (const [name, at, value] of changes) {
      const changed = new Uint8Array(whole);
      new DataView(changed.buffer).setUint32(at, value);
      t.match(await refusal(read(changed, counting)), { code: 'unsupported' }, name);
    }
    t.equal(worked, 0);
  },
);

t.test(
  'ARCHIVE-03: records that are out of order or of unknown form are refused, without quoting their content',
  async (t) => {
    const item = itemOf({ text: 'one' });
    const writer = await ArchiveWriter.create(sodium, seed, bytesSink().sink);
    t.match(await refusal(writer.add(item)), { code: 'bad_record' }, 'no record comes before the manifest');
    await writer.add(manifest);
    t.match(await refusal(writer.add(manifest)), { code: 'bad_record' }, 'there is no second manifest');
    const bad: readonly (readonly [name: string, value: unknown])[] = [
      ['no object', 7],
      ['no kind', { ...item, record: 'secret' }],
      ['no vault', { ...manifest, tenantId: '' }],
      ['no id', { ...item, id: 'secret' }],
      ['bin', { ...item, bin: 'a secret' }],
      ['type', { ...item, type: 'secret' }],
      ['seconds', { ...item, ts: 1_750_000_000 }],
      ['payload', { ...item, payload: ['secret'] }],
      ['no payload', { ...item, payload: null }],
      ['too large', { ...item, payload: { secret: 's'.repeat(5 * 65_520) } }],
    ];
    for (const [name, value] of bad) {
      const line = text(JSON.stringify(value));
      t.throws(() => decodeRecord(line), { code: 'bad_record', message: /^(?!.*secret)/ }, name);
    }
    t.throws(() => decodeRecord(text('{"record":"item","secret')), { code: 'bad_record', message: /^(?!.*secret)/ });
    t.throws(() => decodeRecord(Uint8Array.of(0xff, 0xfe)), { code: 'bad_record' });
    t.throws(() => decodeRecord(encodeRecord({ ...manifest, format: 2 } as never)), { code: 'unsupported' });
    t.throws(() => readPlain('{"items": []}'), { code: 'not_archive' });
    t.throws(() => readPlain('{'), { code: 'bad_record' });
  },
);
