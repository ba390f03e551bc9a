/** Writes under settings that the conformance kit does not vary: which need a tag, the storage cap, the clock. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { ShiftedClock } from './support/clock.js';
import {
  blobFields,
  type BlobFields,
  edited,
  newId,
  sealedFor,
  wrappedOf,
  write,
  writeBody,
  type TestItem,
} from './support/devices.js';
import { Scene } from './support/scene.js';
import { SHAPES, type Json, type Reply, type Shape } from './support/wire.js';

const VALIDATION = { a: '400 validation', b: '400 invalid_payload' } as const;

/** A blob as an upload leaves it. */
async function newBlob(of: Scene): Promise<string> {
  const ref = `${newId()}.bin`;
  await of.server.sql(`INSERT INTO blobs (tenant_id, ref, size, state, created_at) VALUES ($1, $2, 1000, 'ready', 1)`, [
    of.server.tenantId,
    ref,
  ]);
  return ref;
}

/** A write of a blob alone, in A. */
const blobOnly = (blob: BlobFields, more: Json = {}): Json => ({
  ...{ id: newId(), binId: 'inbox', type: 'file', ts: Date.now() },
  ...blob,
  ...more,
});

t.test('ITEM-21 ITEM-22 ITEM-23 ITEM-24: REQUIRE_SIG decides which writes need a sig', async (t) => {
  const table = {
    a: { a: false, b: true, blob: true, beside: false, empty: false, besideB: true },
    always: { a: false, b: false, blob: false, beside: false, empty: false, besideB: false },
    never: { a: true, b: true, blob: true, beside: true, empty: true, besideB: true },
  };
  const blobOf = async (of: Scene): Promise<BlobFields> => blobFields(await newBlob(of), of.ids);
  const emptyEnvelope = (ids: string[]): Json => ({ ct: '', nonce: randomBytes(24), keys: sealedFor(...ids) });
  for (const [setting, passes] of Object.entries(table)) {
    const other = await Scene.start(t, { env: { REQUIRE_SIG: setting } });
    const send = async (body: Json, shape: Shape): Promise<Reply> => other.wire.post('/items', body, other.as(shape));
    const unsigned = other.item({ sig: null });
    const besideB = async (): Promise<Json> => {
      const blob = await blobOf(other);
      return { ...writeBody('b', other.item({ sig: null })), ...blob, blobKeys: wrappedOf(blob.blobKeys) };
    };
    const replies = {
      a: await send(writeBody('a', unsigned), 'a'),
      b: await send(writeBody('b', other.item({ sig: null })), 'b'),
      blob: await send(blobOnly(await blobOf(other)), 'a'),
      beside: await send({ ...writeBody('a', other.item({ sig: null })), ...(await blobOf(other)) }, 'a'),
      empty: await send(blobOnly(await blobOf(other), { payloadEnc: emptyEnvelope(other.ids) }), 'a'),
      besideB: await send(await besideB(), 'b'),
    };
    for (const [what, pass] of Object.entries(passes)) {
      const reply = replies[what as keyof typeof replies];
      t.equal(
        reply.outcome,
        pass ? '200' : VALIDATION[['b', 'besideB'].includes(what) ? 'b' : 'a'],
        `${setting}: ${what} without sig`,
      );
      if (!pass) t.match(reply.at('error.details.path'), /sig$/);
    }
    for (const shape of SHAPES)
      t.equal((await write(other.wire, other.first, other.item(), shape)).status, 200, 'with sig');
    await other.server.stop();
  }
});

t.test('ITEM-39 ITEM-40 RETRY-11 BATCH-04: a write over the storage cap is 413; a delete frees bytes', async (t) => {
  const capped = await Scene.start(t, { env: { STORAGE_CAP_BYTES: '20000' } });
  const send = async (item = capped.item({ ct: randomBytes(3_000) }), shape: Shape = 'a'): Promise<Reply> =>
    write(capped.wire, capped.first, item, shape);
  const stored = [];
  let refused: Reply | undefined;
  while (refused === undefined && stored.length < 20) {
    const item = capped.item({ ct: randomBytes(3_000) });
    const reply = await send(item, stored.length % 2 === 0 ? 'a' : 'b');
    if (reply.status === 200) stored.push({ item, version: reply.number('version') });
    else refused = reply;
  }
  t.equal(refused?.outcome, '413 storage_cap_exceeded');
  t.ok(stored.length >= 4 && stored.length <= 6, `${stored.length} items of 3,000 bytes fit in 20,000`);
  t.equal(await capped.head(), stored.length, 'a refused write takes no version');
  const [one, two] = stored;
  if (one === undefined || two === undefined) throw new Error('nothing was stored');
  t.equal((await send(one.item)).at('version'), one.version, 'the same write again');
  t.equal((await send(edited(one.item, { ct: randomBytes(3_000) }))).status, 200, 'other content of the same size');
  const growing = await send(edited(one.item, { ts: one.item.ts + 5, ct: randomBytes(9_000) }));
  t.equal(growing.outcome, '413 storage_cap_exceeded', 'content that grows over the cap');
  const batch = { items: [capped.item({ ct: randomBytes(3_000) }), two.item].map((item) => writeBody('b', item)) };
  const results = (await capped.wire.post('/items/batch', batch, capped.as('b'))).list('results');
  t.equal((results[0]?.['error'] as Json | undefined)?.['code'], 'storage_cap_exceeded');
  t.equal(results[1]?.['version'], two.version);
  t.equal((await capped.wire.delete(`/items/${two.item.id}`, capped.as('a'))).status, 200);
  t.equal((await send()).status, 200, 'a delete frees its bytes at once');
  t.equal((await send()).outcome, '413 storage_cap_exceeded');
});

t.test(
  'ITEM-43: a ts more than 24 hours ahead is refused with the server’s time; a retry of a stored one is not',
  async (t) => {
    const clock = new ShiftedClock();
    const own = await Scene.start(t, { clock });
    const write = async (item: TestItem) => own.wire.post('/items', writeBody('a', item), own.as('a'));
    const ahead = (ms: number): number => clock.now() + 24 * 3_600_000 + ms;
    const late = await write(own.item({ ts: ahead(60_000) }));
    t.equal(late.outcome, VALIDATION.a);
    t.match(late.at('error.details'), { path: 'ts', rule: "at most 24 hours after the server's clock" });
    t.ok(Math.abs(late.number('error.details.serverTime') - clock.now()) < 60_000);
    const item = own.item({ ts: ahead(-60_000) });
    const stored = await write(item);
    t.equal(stored.outcome, '200');
    clock.advance(-3_600_000);
    const again = await write(item);
    t.match([again.outcome, again.at('version')], ['200', stored.at('version')], 'the clock was set back');
    t.equal((await write({ ...item, ts: item.ts + 1, ct: randomBytes(40) })).outcome, VALIDATION.a);
  },
);
