/** The wire is pinned: clients in the field depend on every name, so none changes by accident. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { CATALOGUE, codeOf, statusOf, type ErrorName } from '../src/protocol/errors.js';
import type { ItemFrameB, ItemRowA, ItemRowB, Piece, PlainFrame, SnakeKey, Wire } from '../src/protocol/frames.js';
import { frameText, rowText } from './support/item-text.js';
import type { DeletedItem, LiveItem } from '../src/protocol/item.js';
import { toSnake } from '../src/protocol/shape.js';
import { PROJECT_ROOT } from '../src/root.js';
import { asIs } from '../src/server/tenant/codec.js';
import { plainFrame } from '../src/server/tenant/replay.js';

const PIN = '2ba7768a9dd3f90bc1caff1386fe482ca801523b582fcdf41ae42f598a2bd953';

const bytes = (length: number): Uint8Array => new Uint8Array(length).fill(7);
const device = '01HZZZZZZZZZZZZZZZZZZZZZZZ';
const live: LiveItem = {
  id: '01J00000000000000000000000',
  binId: 'inbox',
  type: 'text',
  senderDevice: device,
  ts: 1_700_000_000_000,
  version: 3,
  deletedAt: null,
  inline: { ct: bytes(16), nonce: bytes(24), keys: new Map([[device, bytes(80)]]) },
  blob: { ref: '01J00000000000000000000001.bin', nonce: bytes(24), keys: new Map([[device, bytes(80)]]) },
  master: { nonce: bytes(24), ct: bytes(48) },
  sig: bytes(32),
};
const deleted: DeletedItem = {
  id: live.id,
  binId: 'inbox',
  type: 'text',
  senderDevice: device,
  ts: live.ts,
  version: 4,
  deletedAt: 1_700_000_000_001,
  sig: bytes(32),
};

/** Names and types of the request bodies, without comments and white space. */
function requestSchema(): string {
  const source = readFileSync(join(PROJECT_ROOT, 'src/protocol/requests.ts'), 'utf8');
  return source.replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '').replace(/\s+/g, ' ');
}

function wire(): string {
  const errors = (Object.keys(CATALOGUE) as ErrorName[])
    .flatMap((name) => (['a', 'b'] as const).map((shape) => `${codeOf(name, shape)} ${statusOf(name, shape)}`))
    .sort();
  const items = (['a', 'b'] as const).flatMap((shape) =>
    [live, { ...live, inline: null }, { ...live, blob: null }, deleted].flatMap((item) => [
      rowText(shape, item),
      frameText(shape, item),
    ]),
  );
  return [requestSchema(), ...errors, ...items].join('\n');
}

t.test('ARCH-11: the schema of the wire equals the pinned one', (t) => {
  const found = createHash('sha256').update(wire()).digest('hex');
  t.equal(
    found,
    PIN,
    'A name, type, code or status on the wire changed. If a client in the field could notice, take it back or add beside ' +
      'it. If it is meant, write it into CHANGELOG.md and set PIN in test/wire.test.ts to the hash found.',
  );
  t.end();
});

t.test('ERR-03: a code has one status in each shape, and every row and frame is JSON', (t) => {
  const statuses = new Map<string, Set<number>>();
  for (const name of Object.keys(CATALOGUE) as ErrorName[]) {
    for (const shape of ['a', 'b'] as const) {
      const key = `${shape} ${codeOf(name, shape)}`;
      statuses.set(key, (statuses.get(key) ?? new Set()).add(statusOf(name, shape)));
    }
  }
  // The statuses of a missing blob differ: one that an item names, and one that is requested.
  t.same(
    [...statuses].filter(([, set]) => set.size > 1).map(([key]) => key),
    ['a blob_not_found', 'b blob_not_found'],
  );
  for (const shape of ['a', 'b'] as const) {
    for (const item of [live, { ...live, inline: null }, deleted]) {
      t.doesNotThrow(() => JSON.parse(rowText(shape, item)) as unknown);
      t.doesNotThrow(() => JSON.parse(frameText(shape, item)) as unknown);
    }
  }
  t.end();
});

t.test('ARCH-13: a key that a frame does not have does not compile', (t) => {
  const row: Piece<ItemRowA> = asIs;
  const frame: Piece<ItemFrameB> = asIs;
  const value: string = 'x';
  t.equal(row(`"binId":"${value}","payloadEnc":null`), '"binId":"x","payloadEnc":null');
  // @ts-expect-error: a row of shape A has no such key. That this line compiles without the comment fails the build.
  row(`"id":"${value}","bin_id":"${value}"`);
  // @ts-expect-error: nor this one, which stands first in a piece that begins in the middle.
  row(`,"blob":null,"blobRef":null`);
  const rowB: Piece<ItemRowB> = asIs;
  rowB(`"bin_id":"${value}","wrapped":[]`);
  // @ts-expect-error: a row of shape B has no key of shape A.
  rowB(`"bin_id":"${value}","payloadEnc":null`);
  // @ts-expect-error: the object that holds the row has no key of the row.
  frame(`{"type":"item","bin_id":"${value}"}`);
  // @ts-expect-error: a plain frame has no key in snake_case; the shape's spelling comes after.
  plainFrame('b', { type: 'caught_up', version: 1, epoch: 'e', item_count: 1, versionSum: 1 });
  const snake: SnakeKey<'wrappedMasterKey'> = 'wrapped_master_key';
  t.equal(toSnake('wrappedMasterKey'), snake);
  t.end();
});

t.test('ARCH-13: plain frames are on the wire as their types say, in both shapes', (t) => {
  const key = bytes(1);
  const view = { id: 'inbox', slug: 'inbox', meta: key, createdAt: 1, updatedAt: 2, itemCount: 3 };
  const joined = { id: device, name: 'phone', glyph: 'phone' as const, pubkey: key, pairedAt: 1, cert: null };
  const frames: readonly (readonly [PlainFrame, Wire<'a', PlainFrame>, Wire<'b', PlainFrame>])[] = [
    [
      { type: 'caught_up', version: 4, epoch: 'e', itemCount: 1, versionSum: 3 },
      { type: 'caught_up', version: 4, epoch: 'e', itemCount: 1, versionSum: 3 },
      { type: 'caught_up', version: 4, epoch: 'e', item_count: 1, version_sum: 3 },
    ],
    [
      { type: 'bin', bin: view },
      { type: 'bin', bin: { ...view, meta: 'Bw' } },
      { type: 'bin', bin: { id: 'inbox', slug: 'inbox', meta: 'Bw==', created_at: 1, updated_at: 2, item_count: 3 } },
    ],
    [
      { type: 'bin', id: 'inbox', deletedAt: 5 },
      { type: 'bin', id: 'inbox', deletedAt: 5 },
      { type: 'bin', id: 'inbox', deleted_at: 5 },
    ],
    [
      { type: 'device_joined', device: joined },
      { type: 'device_joined', device: { ...joined, pubkey: 'Bw' } },
      {
        type: 'device_joined',
        device: { id: device, name: 'phone', glyph: 'phone', pubkey: 'Bw==', paired_at: 1, cert: null },
      },
    ],
  ];
  for (const [frame, a, b] of frames) {
    t.same(JSON.parse(plainFrame('a', frame)), a);
    t.same(JSON.parse(plainFrame('b', frame)), b);
  }
  t.end();
});
