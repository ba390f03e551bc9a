/**
 * How a change is decided: the order of decisions, on PostgreSQL through the commit lanes and on the log in
 * memory that is the model of the property tests. Cases are data; each has a tenant of its own.
 */
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { type Change, type Verdict } from '../src/server/tenant/change.js';
import { HASH_BYTES, frameBytes, JsonWriter, rowText } from '../src/server/tenant/codec.js';
import { decodeWriteA, decodeWriteB } from '../src/server/tenant/decode.js';
import { ServiceError } from '../src/protocol/errors.js';
import type { Item } from '../src/protocol/item.js';
import {
  arena,
  blob,
  blobRef,
  bytes,
  deleteChange,
  deviceId,
  inline,
  itemId,
  master,
  moveChange,
  OTHER_BIN,
  sig,
  TS,
  writeChange,
  writeOf,
  type ChangeContext,
} from './support/changes.js';
import {
  allRows,
  commit,
  memoryLogs,
  postgresLogs,
  stored,
  sums,
  type BlobState,
  type LogUnderTest,
} from './support/logs.js';
import { inLongRun } from './support/long.js';
import { MemoryLog } from './support/memory-log.js';
import { itemOf } from './support/rows.js';

type Make = (context: ChangeContext) => Change;
type Write = Parameters<typeof writeOf>[0];
const [ONE, TWO] = [deviceId(1), deviceId(2)];

const write =
  (given: Write = {}, more: Partial<ChangeContext> = {}): Make =>
  (context) =>
    writeChange(writeOf(given), { ...context, ...more });
const remove =
  (tag: Uint8Array | null = null, more: Partial<ChangeContext> = {}): Make =>
  (context) =>
    deleteChange(itemId(1), tag, { ...context, ...more });
const move =
  (to: { binId?: string; version?: number; sig?: Uint8Array } = {}, more: Partial<ChangeContext> = {}): Make =>
  (context) =>
    moveChange({ id: itemId(1), binId: OTHER_BIN, version: 1, sig: sig('moved'), ...to }, { ...context, ...more });
const PURGE = 'purge';
const BUMP = 'bump';

interface Case {
  readonly title: string;
  /** What happened before, in order. */
  readonly given?: readonly (Make | typeof PURGE | typeof BUMP)[];
  readonly blobs?: Readonly<Record<string, BlobState>>;
  readonly when: Make;
  /** The verdict, the version that it answers, and the stored ts where it is answered. */
  readonly then: readonly [verdict: Verdict, version: number | null, ts?: number];
  /** The parts of the stored item that matter afterwards. */
  readonly stored?: object;
  readonly blobsAfter?: Readonly<Record<string, BlobState>>;
}

const wraps = (devices: readonly string[], given: Write = {}): Write => ({ inline: inline('one', devices), ...given });
/** The `n`th device that joins: a re-wrap for it and those before it, against the version before. */
const rewrap = (n: number, condition: Write = { ifVersion: n }): Make =>
  write(
    wraps(
      Array.from({ length: n + 1 }, (_, at) => deviceId(at + 1)),
      condition,
    ),
  );
const rewraps = (count: number): Make[] => Array.from({ length: count }, (_, at) => rewrap(at + 1));
const READY = { state: 'ready', itemId: null };
const TAKEN = { state: 'ready', itemId: itemId(1) };
const ORPHAN = { state: 'orphan', itemId: itemId(1) };
const [R1, R2] = [blobRef(1), blobRef(2)];
const withBlob = (ref: string, devices: readonly string[] = [ONE]): Write => ({
  inline: null,
  blob: blob(ref, devices),
});

// prettier-ignore
const CASES: readonly Case[] = [
  { title: 'ITEM-01 ITEM-02: a new item', when: write(), then: ['insert', 1], stored: { version: 1, senderDevice: ONE, ...inlineOf('one') } },
  { title: 'ITEM-07 ITEM-35: a later ts and other content replace', given: [write()], when: write({ text: 'two', ts: TS + 1 }, { deviceId: TWO }), then: ['replace', 2, TS], stored: { ts: TS + 1, senderDevice: TWO, ...inlineOf('two') } },
  { title: 'ITEM-38: a refused write takes no version', when: write({}, { refused: true }), then: ['refused', null] },
  { title: 'ITEM-38: a refused replace', given: [write()], when: write({ text: 'two', ts: TS + 1 }, { refused: true }), then: ['refused', 1, TS], stored: inlineOf('one') },
  { title: 'ITEM-38: a refused re-wrap', given: [write()], when: write(wraps([ONE, TWO]), { refused: true }), then: ['refused', 1, TS], stored: inlineOf('one') },
  { title: 'RETRY-18: a re-wrap that names a bin that is gone, of an item elsewhere', given: [write()], when: write(wraps([ONE, TWO], { binId: OTHER_BIN }), { refused: true, refusedFor: 'bin' }), then: ['rewrap', 2, TS], stored: { binId: 'inbox' } },
  { title: 'RETRY-18: of an item in that very bin', given: [write()], when: write(wraps([ONE, TWO]), { refused: true, refusedFor: 'bin' }), then: ['refused', 1, TS] },
  { title: 'RETRY-18: but for more reasons than its bin', given: [write()], when: write(wraps([ONE, TWO], { binId: OTHER_BIN }), { refused: true }), then: ['refused', 1, TS] },
  { title: 'ITEM-43: a re-wrap of a content that is refused', given: [write()], when: write(wraps([ONE, TWO]), { refused: true, refusedFor: 'content' }), then: ['rewrap', 2, TS] },
  { title: 'ITEM-43: another content', given: [write()], when: write({ text: 'two', ts: TS + 1 }, { refused: true, refusedFor: 'content' }), then: ['refused', 1, TS] },
  { title: 'ITEM-43: a new item', when: write({}, { refused: true, refusedFor: 'content' }), then: ['refused', null] },
  { title: 'ITEM-38: a new item for a bin that is gone', when: write({}, { refused: true, refusedFor: 'bin' }), then: ['refused', null] },
  { title: 'RETRY-02: no restore, and so it is told where the write is refused besides', given: [write(), remove()], when: write({ text: 'two', ts: TS + 9 }, { refused: true }), then: ['conflict', 2, TS] },
  { title: 'RETRY-03: another version, refused besides', given: [write(), write({ text: 'two', ts: TS + 1 })], when: write({ text: 'three', ts: TS + 2, ifVersion: 1 }, { refused: true }), then: ['conflict', 2, TS + 1] },
  { title: 'RETRY-06: an earlier ts, refused besides', given: [write()], when: write({ text: 'two', ts: TS - 1 }, { refused: true }), then: ['conflict', 1, TS] },
  { title: 'RETRY-13: a version of an item that is not there, refused besides', when: write({ ifVersion: 1 }, { refused: true }), then: ['conflict', null] },
  { title: 'RETRY-17: a re-wrap that adds nothing, refused besides', given: [write(wraps([ONE, TWO]))], when: write({}, { refused: true }), then: ['same', 1, TS] },
  { title: 'DEL-04: deleted already, refused besides', given: [write(), remove()], when: remove(null, { refused: true }), then: ['same', 2, TS] },
  { title: 'DEL-05: never there, refused besides', when: remove(null, { refused: true }), then: ['missing', null] },
  { title: 'MOVE-04: against an old version, refused besides', given: [write(), write({ text: 'two', ts: TS + 1 })], when: move({}, { refused: true }), then: ['conflict', 2, TS + 1] },
  { title: 'MOVE-05: moved already, refused besides', given: [write(), move()], when: move({}, { refused: true }), then: ['same', 2, TS] },
  { title: 'a refused delete', given: [write()], when: remove(null, { refused: true }), then: ['refused', 1, TS], stored: { deletedAt: null } },
  { title: 'a refused move', given: [write()], when: move({}, { refused: true }), then: ['refused', 1, TS], stored: { binId: 'inbox' } },

  { title: 'RETRY-01: the same write again', given: [write()], when: write(), then: ['same', 1, TS] },
  { title: 'RETRY-01: before the second decision, the delete', given: [write(), remove()], when: write(), then: ['same', 2, TS] },
  { title: 'RETRY-01: after a move', given: [write(), move()], when: write(), then: ['same', 2, TS] },
  { title: 'RETRY-01 RETRY-10: after a move, with its condition', given: [write(), move()], when: write({ ifVersion: 0 }), then: ['same', 2, TS] },
  { title: 'RETRY-01 RETRY-08: the first write after another device re-wrapped', given: [write(), write(wraps([ONE, TWO]), { deviceId: TWO })], when: write({ ifVersion: 0 }), then: ['same', 2, TS] },
  { title: 'RETRY-01 RETRY-10: the same re-wrap again, with the version it was made against', given: [write(), write(wraps([ONE, TWO], { ifVersion: 1 }))], when: write(wraps([ONE, TWO], { ifVersion: 1 })), then: ['same', 2, TS] },
  { title: 'RETRY-01: a replace ends what was the same before', given: [write(), write(wraps([ONE, TWO])), write({ text: 'two', ts: TS + 1 })], when: write(wraps([ONE, TWO])), then: ['conflict', 3, TS + 1] },
  { title: 'RETRY-02: no restore', given: [write(), remove()], when: write({ text: 'two', ts: TS + 9 }), then: ['conflict', 2, TS], stored: { version: 2 } },
  { title: 'RETRY-03: another version than the current', given: [write(), write({ text: 'two', ts: TS + 1 })], when: write({ text: 'three', ts: TS + 2, ifVersion: 1 }), then: ['conflict', 2, TS + 1], stored: inlineOf('two') },
  { title: 'RETRY-01 RETRY-10: a re-wrap again after two others', given: [write(), ...rewraps(3)], when: rewrap(1), then: ['same', 4, TS] },
  { title: 'RETRY-01 RETRY-10: the middle one of three', given: [write(), ...rewraps(3)], when: rewrap(2), then: ['same', 4, TS] },
  { title: 'RETRY-01: an earlier re-wrap again after a delete', given: [write(), ...rewraps(2), remove()], when: rewrap(1), then: ['same', 4, TS] },
  { title: 'RETRY-05: a replace forgets the re-wraps of what it replaced', given: [write(), ...rewraps(2), write({ text: 'two', ts: TS + 1 })], when: rewrap(1), then: ['conflict', 4, TS + 1] },
  { title: 'RETRY-01: the content again after 40 re-wraps', given: [write(), ...rewraps(40)], when: write({ ifVersion: 0 }), then: ['same', 41, TS] },
  { title: 'RETRY-01 RETRY-10: the 31st re-wrap from the end', given: [write(), ...rewraps(40)], when: rewrap(10), then: ['same', 41, TS] },
  { title: 'RETRY-15: the 32nd is not known any more', given: [write(), ...rewraps(40)], when: rewrap(9), then: ['conflict', 41, TS] },
  { title: 'RETRY-17: and without a condition it adds nothing', given: [write(), ...rewraps(40)], when: rewrap(9, {}), then: ['same', 41, TS] },
  { title: 'RETRY-04 ITEM-35: a re-wrap adds a device', given: [write()], when: write(wraps([ONE, TWO], { sig: null }), { deviceId: TWO }), then: ['rewrap', 2, TS], stored: { senderDevice: ONE, sig: sig('one'), inline: inline('one', [ONE, TWO]) } },
  { title: 'RETRY-05: a later ts is no conflict', given: [write()], when: write({ text: 'two', ts: TS + 1 }), then: ['replace', 2, TS] },
  { title: 'RETRY-05: the same content with a later ts is a replace', given: [write()], when: write({ ts: TS + 1 }), then: ['replace', 2, TS] },
  { title: 'RETRY-06: the same ts and other content', given: [write()], when: write({ text: 'two' }), then: ['conflict', 1, TS], stored: inlineOf('one') },
  { title: 'RETRY-06: another ciphertext alone', given: [write()], when: write({ inline: { ...inline('one'), ct: inline('two').ct } }), then: ['conflict', 1, TS], stored: inlineOf('one') },
  { title: 'RETRY-06: another nonce alone', given: [write()], when: write({ inline: { ...inline('one', [ONE, TWO]), nonce: inline('two').nonce } }), then: ['conflict', 1, TS], stored: inlineOf('one') },
  { title: 'RETRY-06: another type alone', given: [write()], when: write({ type: 'code' }), then: ['conflict', 1, TS], stored: { type: 'text' } },
  { title: 'RETRY-06: an earlier ts', given: [write()], when: write({ text: 'two', ts: TS - 1 }), then: ['conflict', 1, TS], stored: inlineOf('one') },
  { title: 'RETRY-11: the same write though a new one is refused', given: [write()], when: write({}, { refused: true }), then: ['same', 1, TS] },
  { title: 'RETRY-12: purged', given: [write(), remove(), PURGE], when: write({ ts: TS + 1 }), then: ['conflict', 2], stored: { type: null } },
  { title: 'RETRY-12: purged, and the same write again', given: [write(), remove(), PURGE], when: write(), then: ['conflict', 2] },
  { title: 'RETRY-13: ifVersion 0 and an item that exists', given: [write()], when: write({ text: 'two', ts: TS + 1, ifVersion: 0 }), then: ['conflict', 1, TS] },
  { title: 'RETRY-13: ifVersion 0 and a new item', when: write({ ifVersion: 0 }), then: ['insert', 1] },
  { title: 'RETRY-13: a version of an item that is not there', when: write({ ifVersion: 1 }), then: ['conflict', null] },
  { title: 'RETRY-14: the current version goes on to a replace', given: [write()], when: write({ text: 'two', ts: TS + 1, ifVersion: 1 }), then: ['replace', 2, TS] },
  { title: 'RETRY-14: and to a conflict by ts', given: [write()], when: write({ text: 'two', ifVersion: 1 }), then: ['conflict', 1, TS] },
  { title: 'RETRY-15: a re-wrap against an old version', given: [write(), move()], when: write(wraps([ONE, TWO], { ifVersion: 1 })), then: ['conflict', 2, TS], stored: inlineOf('one') },
  { title: 'RETRY-16: a master that was missing', given: [write()], when: write({ master: master() }), then: ['rewrap', 2, TS], stored: { master: master() } },
  { title: 'RETRY-17: nothing that was missing', given: [write(wraps([ONE, TWO], { master: master() }))], when: write(wraps([ONE], { master: master('another'), sig: sig('another') })), then: ['same', 1, TS], stored: { master: master(), sig: sig('one') } },
  { title: 'RETRY-04: a re-wrap without a master keeps the stored one', given: [write({ master: master() })], when: write(wraps([ONE, TWO])), then: ['rewrap', 2, TS], stored: { master: master() } },
  { title: 'RETRY-18: a re-wrap with another bin', given: [write(), move()], when: write(wraps([ONE, TWO])), then: ['rewrap', 3, TS], stored: { binId: OTHER_BIN, sig: sig('moved') } },
  { title: 'RETRY-19: a late retry of a text that was replaced', given: [write(), write({ text: 'two', ts: TS + 1 })], when: write(), then: ['conflict', 2, TS + 1], stored: inlineOf('two') },

  { title: 'DEL-01 DEL-02 DEL-07 ITEM-35: a delete clears the payload', given: [write({ master: master() })], when: remove(sig('gone'), { deviceId: TWO }), then: ['delete', 2, TS], stored: { version: 2, sig: sig('gone'), senderDevice: ONE, type: 'text', ts: TS } },
  { title: 'DEL-08: a delete without a tag', given: [write()], when: remove(), then: ['delete', 2, TS], stored: { sig: null } },
  { title: 'DEL-04: deleted already', given: [write(), remove()], when: remove(sig('late')), then: ['same', 2, TS], stored: { sig: null } },
  { title: 'DEL-05: never there', when: remove(), then: ['missing', null] },
  { title: 'DEL-06: purged', given: [write(), remove(), PURGE], when: remove(), then: ['missing', 2] },

  { title: 'MOVE-01 MOVE-03 ITEM-35: a move changes bin and tag alone', given: [write({ master: master() })], when: move({}, { deviceId: TWO }), then: ['move', 2, TS], stored: { binId: OTHER_BIN, sig: sig('moved'), senderDevice: ONE, master: master(), ...inlineOf('one') } },
  { title: 'MOVE-04: against an old version', given: [write(), write({ text: 'two', ts: TS + 1 })], when: move(), then: ['conflict', 2, TS + 1], stored: { binId: 'inbox' } },
  { title: 'MOVE-05: bin and tag are the stored ones', given: [write(), move()], when: move(), then: ['same', 2, TS] },
  { title: 'MOVE-04: the same bin with another tag is a move', given: [write(), move()], when: move({ sig: sig('again'), version: 2 }), then: ['move', 3, TS] },
  { title: 'MOVE-06: never there', when: move(), then: ['missing', null] },
  { title: 'MOVE-06: purged', given: [write(), remove(), PURGE], when: move({ version: 2 }), then: ['missing', 2] },
  { title: 'a deleted item does not move', given: [write(), remove()], when: move({ version: 2 }), then: ['conflict', 2, TS] },

  { title: 'INST-11: a write checked against yesterday', given: [BUMP], when: write(), then: ['stale', null] },
  { title: 'INST-11: even the same write again', given: [write(), BUMP], when: write(), then: ['stale', 1, TS] },
  { title: 'INST-11: a delete', given: [write(), BUMP], when: remove(), then: ['stale', 1, TS], stored: { deletedAt: null } },
  { title: 'INST-11: a move', given: [write(), BUMP], when: move(), then: ['stale', 1, TS], stored: { binId: 'inbox' } },

  { title: 'ITEM-19: a blob that was never uploaded', when: write(withBlob(R1)), then: ['no_blob', null] },
  { title: 'ITEM-19: a blob whose upload is not done', blobs: { [R1]: { state: 'pending', itemId: null } }, when: write(withBlob(R1)), then: ['no_blob', null] },
  { title: 'ITEM-19: another item has the blob', blobs: { [R1]: { state: 'ready', itemId: itemId(2) } }, when: write(withBlob(R1)), then: ['no_blob', null] },
  { title: 'ITEM-19: a replace by a blob that is not there', given: [write()], when: write({ ...withBlob(R1), ts: TS + 1 }), then: ['no_blob', 1, TS], stored: inlineOf('one') },
  { title: 'ITEM-31: a blob alone', blobs: { [R1]: READY }, when: write({ ...withBlob(R1), master: master() }), then: ['insert', 1], stored: { inline: null, blob: blob(R1), master: master() }, blobsAfter: { [R1]: TAKEN } },
  { title: 'ITEM-17: a blob with metadata beside it', blobs: { [R1]: READY }, when: write({ blob: blob(R1) }), then: ['insert', 1], stored: { blob: blob(R1), ...inlineOf('one') }, blobsAfter: { [R1]: TAKEN } },
  { title: 'a replace leaves the old blob behind', blobs: { [R1]: READY, [R2]: READY }, given: [write(withBlob(R1))], when: write({ ...withBlob(R2), ts: TS + 1 }), then: ['replace', 2, TS], blobsAfter: { [R1]: ORPHAN, [R2]: TAKEN } },
  { title: 'a replace keeps the blob it names', blobs: { [R1]: READY }, given: [write(withBlob(R1))], when: write({ blob: blob(R1), ts: TS + 1 }), then: ['replace', 2, TS], blobsAfter: { [R1]: TAKEN } },
  { title: 'a delete leaves the blob behind, and it does not come back', blobs: { [R1]: READY }, given: [write(withBlob(R1)), remove()], when: (context) => writeChange(writeOf({ ...withBlob(R1), id: itemId(2) }), context), then: ['no_blob', null], blobsAfter: { [R1]: ORPHAN } },
  { title: 'RETRY-04: a blob is re-wrapped', blobs: { [R1]: READY }, given: [write(withBlob(R1))], when: write({ ...withBlob(R1, [ONE, TWO]), sig: sig('new') }), then: ['rewrap', 2, TS], stored: { blob: blob(R1, [ONE, TWO]), sig: sig('new') }, blobsAfter: { [R1]: TAKEN } },
  { title: 'RETRY-18: after a move the blob keeps the keys that its tag covers', blobs: { [R1]: READY }, given: [write({ blob: blob(R1) }), move()], when: write({ ...wraps([ONE, TWO]), blob: blob(R1, [ONE, TWO]) }), then: ['rewrap', 3, TS], stored: { inline: inline('one', [ONE, TWO]), blob: blob(R1), sig: sig('moved') } },
  { title: 'RETRY-18: after a move new blob keys alone add nothing', blobs: { [R1]: READY }, given: [write(withBlob(R1)), move()], when: write(withBlob(R1, [ONE, TWO])), then: ['same', 2, TS], stored: { blob: blob(R1) } },
  { title: 'RETRY-06: another nonce of the blob alone', blobs: { [R1]: READY }, given: [write(withBlob(R1))], when: write({ inline: null, blob: { ...blob(R1, [ONE, TWO]), nonce: blob(R2).nonce } }), then: ['conflict', 1, TS], stored: { blob: blob(R1) } },
  { title: 'RETRY-06: another blob with the same ts', blobs: { [R1]: READY, [R2]: READY }, given: [write(withBlob(R1))], when: write(withBlob(R2)), then: ['conflict', 1, TS], blobsAfter: { [R1]: TAKEN, [R2]: READY } },
];

function inlineOf(text: string): object {
  return { inline: inline(text), deletedAt: null };
}

async function play({ lanes, log, ...logs }: LogUnderTest, { given = [], blobs = {}, when }: Case) {
  const tenantId = await logs.newTenant();
  for (const [ref, state] of Object.entries(blobs)) await logs.putBlob(tenantId, ref, state);
  for (const step of given) {
    if (step === PURGE) await logs.purge(tenantId, itemId(1));
    else if (step === BUMP) await logs.bump(tenantId);
    else await commit(lanes, step({ tenantId }));
  }
  const before = await stored(log, tenantId);
  const decision = await commit(lanes, when({ tenantId }));
  const after = await stored(log, tenantId);
  return { tenantId, before, decision, after };
}

const APPLIED: readonly Verdict[] = ['insert', 'replace', 'rewrap', 'delete', 'move'];
const plain = (item: Item | undefined): unknown => JSON.parse(JSON.stringify(item ?? null, spellBytes));
const spellBytes = (_: string, value: unknown): unknown => {
  if (value instanceof Map) return Object.fromEntries(value);
  if (typeof value === 'object' && value !== null && 'type' in value && value.type === 'Buffer')
    return Buffer.from(value as unknown as Uint8Array).toString('hex');
  return value instanceof Uint8Array ? Buffer.from(value).toString('hex') : value;
};

async function contract(t: Test, open: (t: Test) => Promise<LogUnderTest>): Promise<void> {
  const logs = await open(t);
  for (const one of CASES) {
    await t.test(one.title, async (t) => {
      const { tenantId, before, decision, after } = await play(logs, one);
      const [verdict, version, ts] = one.then;
      const { outcome, summary } = decision;
      t.strictSame([outcome.verdict, outcome.version, outcome.storedTs], [verdict, version ?? 0, ts ?? null]);
      t.strictSame(summary, after.summary, 'the reported sums are those that are read');
      const applied = APPLIED.includes(verdict);
      t.equal(
        after.summary.version,
        before.summary.version + (applied ? 1 : 0),
        'one version if applied, otherwise none',
      );
      if (!applied) t.strictSame(after, before, 'a change that was not applied changed nothing');
      const row = after.rows.find(({ id }) => id === outcome.id);
      if (applied) t.equal(row?.changedBy, outcome.deviceId);
      if (one.stored !== undefined) t.hasStrict(plain(row && itemOf(row)), plain(one.stored as Item));
      for (const [ref, state] of Object.entries(one.blobsAfter ?? {}))
        t.strictSame(await logs.blob(tenantId, ref), state);
    });
  }
}

t.test('the log in memory', async (t) => contract(t, () => Promise.resolve(memoryLogs())));

t.test('PostgreSQL', async (t) => {
  const logs = await postgresLogs(t);
  await contract(t, () => Promise.resolve(logs));
  const { rows } = await logs.pool.query<{ id: string }>('SELECT id FROM tenants');
  for (const { id } of rows) {
    const { told, counted } = await sums(logs.pool, id);
    t.strictSame(told, counted, "the tenant's sums match its rows");
  }
  t.strictSame(logs.faults, []);
});

t.test('SHAPE-21 SHAPE-23 SHAPE-24: a frame spells the ciphertext in one way, however the write spelled it', (t) => {
  const { id, binId, type, ts } = writeOf();
  const url = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64url');
  const [out, envelope] = [new JsonWriter(), inline('one', [ONE])];
  const ctOf = (shape: 'a' | 'b', change: Change): unknown => {
    const frame = JSON.parse(frameBytes(out, shape, change).toString()) as Record<string, Record<string, unknown>>;
    return shape === 'a' ? frame['payloadEnc']?.['ct'] : frame['item']?.['ct'];
  };
  for (const length of [...Array.from({ length: 60 }, (_, n) => 16 + n), 3_070, 3_071, 3_072, 3_073, 65_536]) {
    const ct = bytes(`of ${length}`, length);
    const text = url(ct);
    const padded = Buffer.from(ct).toString('base64');
    // Stray bits after the last byte: a decoder ignores them, but the text differs.
    const stray =
      text.length % 4 === 0 ? text : text.slice(0, -1) + String.fromCharCode(text.charCodeAt(text.length - 1) + 1);
    for (const spelled of [text, padded, padded.replace(/=+$/, ''), text.padEnd(padded.length, '='), stray]) {
      const payloadEnc = {
        ct: spelled,
        nonce: url(envelope.nonce),
        keys: { [ONE]: url(envelope.keys.get(ONE) ?? ct) },
      };
      const change = decodeWriteA(arena, { id, binId, type, ts, payloadEnc }, 'never');
      t.equal(ctOf('a', change), text, `${length} bytes as ${spelled.slice(-4)}`);
      t.equal(ctOf('b', change), padded);
      t.ok((change.ctText?.length ?? 0) <= 4_096, 'at most 4,096 characters of the text are kept until the commit');
      arena.unpin(change.segment);
    }
  }
  t.end();
});

t.test('SHAPE-21 SHAPE-22: a binary field is accepted where it is valid base64, otherwise refused by its name', (t) => {
  const { id, binId, type, ts } = writeOf();
  const url = (length: number): string => Buffer.alloc(length, 0x5a).toString('base64url');
  const parts = { ct: 47, nonce: 24, key: 80, 'master.ct': 48, 'master.nonce': 24, sig: 32 };
  const codes = [...Array.from({ length: 256 }, (_, n) => n), 0x141, 0x2028, 0xd83d, 0xff0b];
  const out = new JsonWriter();
  const isBase64 = (text: string): boolean => {
    const [, data = '', pad = ''] = /^([\w+/-]*)(={0,2})$/s.exec(text) ?? [];
    return data + pad === text && (pad === '' ? data.length % 4 !== 1 : text.length % 4 === 0);
  };
  const judge = (part: string, spelled: string): void => {
    const of = (name: keyof typeof parts): string => (name === part ? spelled : url(parts[name]));
    const payloadEnc = {
      ...{ ct: of('ct'), nonce: of('nonce'), keys: { [ONE]: of('key') }, sig: of('sig') },
      master: { ct: of('master.ct'), nonce: of('master.nonce') },
    };
    try {
      const change = decodeWriteA(arena, { id, binId, type, ts, payloadEnc }, 'never');
      if (!isBase64(spelled)) t.fail(`taken: ${JSON.stringify(spelled)} as ${part}`);
      const frame = JSON.parse(frameBytes(out, 'a', change).toString()) as { payloadEnc: { ct: string } };
      const ct = Buffer.from(of('ct'), 'base64').toString('base64url');
      if (frame.payloadEnc.ct !== ct) t.fail(`${JSON.stringify(spelled)} became ${frame.payloadEnc.ct}`);
      arena.unpin(change.segment);
    } catch (error) {
      const path = `payloadEnc.${part === 'key' ? `keys.${ONE}` : part}`;
      if (!(error instanceof ServiceError) || !error.message.includes(path)) throw error;
      // A field of another length is refused too; a ciphertext may have any length.
      if (part === 'ct' && isBase64(spelled)) t.fail(`refused: ${JSON.stringify(spelled)}: ${error.message}`);
    }
  };
  for (const [part, length] of Object.entries(parts)) {
    for (const more of part === 'ct' ? [0, 1, 2] : [0]) {
      const text = url(length + more);
      for (const code of codes) {
        const c = String.fromCharCode(code);
        for (const at of [0, text.length >> 1, text.length - 2, text.length - 1, text.length]) {
          judge(part, text.slice(0, at) + c + text.slice(at + 1));
          judge(part, text.slice(0, at) + c + text.slice(at));
          judge(part, text.slice(0, at) + c + c + text.slice(at + 2));
        }
      }
    }
  }
  t.pass('every spelling was judged');
  t.end();
});

t.test('RETRY-07: the same write in the other shape or another encoding is the same write', (t) => {
  const { id, binId, type, ts } = writeOf();
  const { ct, nonce, keys } = inline('one', [ONE, TWO]);
  const wrap = master();
  const spell = (encoding: 'base64' | 'base64url') => (bytes: Uint8Array) => Buffer.from(bytes).toString(encoding);
  const bodyA = (out: (bytes: Uint8Array) => string, devices: readonly string[]) => ({
    ...{ id, binId, type, ts },
    payloadEnc: {
      ct: out(ct),
      nonce: out(nonce),
      keys: Object.fromEntries(devices.map((device) => [device, out(keys.get(device) ?? ct)])),
      master: { nonce: out(wrap.nonce), ct: out(wrap.ct) },
      sig: out(sig('one')),
    },
  });
  const out = spell('base64');
  const bodyB = {
    ...{ id, binId, type, ts },
    ct: out(ct),
    nonce: out(nonce),
    wrapped: [...keys].map(([device, key]) => ({ deviceId: device, key: out(key) })),
    master: { nonce: out(wrap.nonce), ct: out(wrap.ct) },
    sig: out(sig('one')),
  };
  const writes = [
    decodeWriteA(arena, bodyA(out, [ONE, TWO]), 'a'),
    decodeWriteA(arena, { ...bodyA(spell('base64url'), [TWO, ONE]), ifVersion: 7 }, 'a'),
    decodeWriteB(arena, bodyB, 'a'),
  ];
  const hashOf = ({ bytes, at }: Change): string => bytes.toString('hex', at, at + HASH_BYTES);
  const hashes = writes.map(hashOf);
  t.equal(new Set(hashes).size, 1);
  const first = writeOf({ id, binId, type, ts, inline: { ct, nonce, keys }, master: wrap, sig: sig('one') });
  const others: Partial<typeof first>[] = [
    { id: itemId(2) },
    { binId: OTHER_BIN },
    { type: 'code' },
    { ts: TS + 1 },
    { sig: null },
    { master: null },
    { blob: blob(R1) },
    { inline: { ct, nonce, keys: new Map([...keys].slice(1)) } },
    { inline: { ct: bytes('other', ct.length), nonce, keys } },
    { inline: { ct, nonce: bytes('other', 24), keys } },
    { inline: null, blob: blob(R1) },
  ];
  const different = others.map((other) => hashOf(writeChange({ ...first, ...other }, { tenantId: '' })));
  t.equal(new Set([...different, hashes[0]]).size, others.length + 1, 'every part counts');
  t.end();
});

/** Numbers from which a change of any kind is made, so that it applies often enough. */
const drawn = fc.record({
  item: fc.nat(5),
  kind: fc.nat(9),
  text: fc.nat(3),
  later: fc.nat(3),
  version: fc.nat(12),
  by: fc.nat(1),
  blob: fc.nat(2),
  refused: fc.nat(9),
});
type Drawn = typeof drawn extends fc.Arbitrary<infer T> ? T : never;

/** If two writes that wait together name one blob, the second waits for the next batch, and so for its version. */
const namesNewBlob = (one: Drawn, n: number, batch: readonly Drawn[]): boolean =>
  one.kind !== 2 || !batch.slice(0, n).some(({ kind, blob }) => kind === 2 && blob === one.blob);

function changeOf(one: Drawn): Make {
  const id = itemId(one.item);
  return (base) => {
    // 0: refused; 1, 2: a write refused for its bin or its content alone.
    const refusedFor = one.kind > 1 ? ((['all', 'bin', 'content'] as const)[one.refused] ?? 'all') : 'all';
    const context = {
      ...base,
      deviceId: deviceId(1 + one.by),
      refused: one.refused === 0 || refusedFor !== 'all',
      refusedFor,
    };
    if (one.kind === 0) return deleteChange(id, one.text === 0 ? null : sig(`${one.text}`), context);
    if (one.kind === 1)
      return moveChange(
        { id, binId: one.text === 0 ? OTHER_BIN : 'inbox', version: one.version, sig: sig(`${one.text}`) },
        context,
      );
    const devices = one.version % 2 === 0 ? [ONE] : [ONE, TWO];
    const attached = one.kind === 2 ? blob(blobRef(one.blob), devices) : null;
    const given = { id, ts: TS + one.later, inline: inline(`${one.text}`, devices, 20 + one.text), blob: attached };
    return writeChange(
      writeOf({ ...given, ifVersion: one.kind === 3 ? one.version : null, master: one.by === 0 ? null : master() }),
      context,
    );
  };
}

t.test(
  'ITEM-37 STAT-12: PostgreSQL and the log in memory decide alike, versions have no gap, and the sums hold',
  async (t) => {
    const logs = await postgresLogs(t);
    const batches = fc.array(fc.uniqueArray(drawn, { selector: ({ item }) => item, minLength: 1, maxLength: 6 }), {
      minLength: 1,
      maxLength: 25,
      size: 'max',
    });
    let applied = 0;
    const property = fc.asyncProperty(batches, async (script) => {
      const tenantId = await logs.newTenant();
      const model = new MemoryLog();
      model.addTenant(tenantId);
      for (const n of [0, 1, 2]) {
        await logs.putBlob(tenantId, blobRef(n), READY);
        model.tenant(tenantId).blobs.set(blobRef(n), { ...READY });
      }
      for (const batch of script) {
        const changes = batch.filter(namesNewBlob).map((one) => changeOf(one)({ tenantId }));
        const real = (await Promise.all(changes.map(async (change) => commit(logs.lanes, change)))).map(
          ({ outcome }) => outcome,
        );
        const told = (decided: readonly Change[]): string =>
          JSON.stringify(decided.map(({ verdict, version, storedTs }) => [verdict, version, storedTs]));
        const ours = told(real);
        // A decision is stored in the change itself, and the model decides the same changes anew.
        const expected = told(model.apply(changes).changes);
        if (ours !== expected) throw new Error(`${ours} instead of ${expected}`);
      }
      applied += model.tenant(tenantId).head;
      const [rows, wanted] = [await allRows(logs.log, tenantId), await allRows(model, tenantId)];
      const timeless = (list: typeof rows): string =>
        list
          .map((row) => `${rowText('b', row)} by ${row.changedBy}\n`)
          .join('')
          .replaceAll(/"deleted_at":\d+/g, '"deleted_at":1');
      if (timeless(rows) !== timeless(wanted)) throw new Error(`${timeless(rows)} instead of ${timeless(wanted)}`);
      const { told, counted } = await sums(logs.pool, tenantId);
      if (JSON.stringify(told) !== JSON.stringify(counted))
        throw new Error(`${JSON.stringify(told)} and not ${JSON.stringify(counted)}`);
    });
    const numRuns = Number(process.env['PROPERTY_RUNS'] ?? inLongRun(60, 120));
    await fc.assert(property, { numRuns, includeErrorInReport: true });
    t.comment(`${applied} changes were applied`);
    // About ten of each script are; scripts of which half as many are would prove little.
    t.ok(applied > 5 * numRuns);
    t.strictSame(logs.faults, []);
  },
);
