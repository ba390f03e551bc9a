/** Stores of every kind, and what to put into them. */
import fc from 'fast-check';
import { join } from 'node:path';
import { MemoryLevel } from 'memory-level';
import { StoreError } from '../../src/sdk/store/error.js';
import { createStore, LevelStore, type Level } from '../../src/sdk/store/level-store.js';
import { openNodeStore } from '../../src/sdk/store/node-store.js';
import type { StoreOwner } from '../../src/sdk/store/records.js';
import { MemoryStore, type Batch, type Entry, type Pending, type Store } from '../../src/sdk/store/store.js';
import { CONTENT_TYPES, type LiveItem } from '../../src/protocol/item.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

export const OWNER: StoreOwner = { tenantId: 'tenant', deviceId: '01HZZZZZZZZZZZZZZZZZZZZZZZ' };

/** One store that can be closed and opened again, with what it kept. */
interface Bench {
  store: Store;
  reopen: () => Promise<void>;
  close: () => Promise<void>;
}

interface StoreKind {
  readonly name: string;
  make(t: WithTeardown): Promise<Bench>;
}

export const memoryLevel = (): Level & { open(): Promise<void> } =>
  new MemoryLevel<string, Uint8Array>({ valueEncoding: 'view', storeEncoding: 'view' });

async function benchOf(open: () => Promise<Store & { close(): Promise<void> }>): Promise<Bench> {
  let store = await open();
  const bench: Bench = {
    store,
    reopen: async () => {
      await store.close();
      bench.store = store = await open();
    },
    close: () => store.close(),
  };
  return bench;
}

async function inMemory(): Promise<Bench> {
  const level = memoryLevel();
  await createStore(level, { owner: OWNER, batches: 0, changes: [] });
  return benchOf(async () => {
    await level.open();
    return LevelStore.open(level, OWNER);
  });
}

async function inFolder(t: WithTeardown): Promise<Bench> {
  const folder = join(await temporaryFolder(t), 'store');
  const bench = await benchOf(async () => {
    const { store, repair } = await openNodeStore(folder, OWNER);
    if (repair !== null) throw new Error(`it was damaged: ${repair.reason}`);
    return store;
  });
  t.teardown(() => bench.close());
  return bench;
}

export const KINDS: readonly StoreKind[] = [
  {
    name: 'memory',
    make: () =>
      Promise.resolve({ store: new MemoryStore(), reopen: () => Promise.resolve(), close: () => Promise.resolve() }),
  },
  { name: 'a database in memory', make: inMemory },
  { name: 'LevelDB', make: inFolder },
];

export async function allOf(store: Pick<Store, 'entries'>): Promise<Entry[]> {
  const found: Entry[] = [];
  for await (const entry of store.entries()) found.push(entry);
  return found.sort((one, other) => (one.id < other.id ? -1 : 1));
}

/** Everything that a store can be asked, with bytes as plain text, so that kinds of arrays do not count. */
export async function stateOf(store: Store): Promise<unknown> {
  const [cursor, held, pending, entries] = await Promise.all([
    store.cursor(),
    store.held(),
    store.pending(),
    allOf(store),
  ]);
  return plain({ cursor, held, pending, entries });
}

/** A value without bytes and maps. */
export function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
  if (value instanceof Map) return [...value].map(plain);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, plain(part)]));
}

const IDS = ['A', 'B', 'C', 'D', 'E'].map((letter) => letter.padStart(26, '0'));
const id = fc.constantFrom(...IDS);
const bytes = fc.uint8Array({ maxLength: 40 });
const word = fc.string({ unit: 'grapheme', maxLength: 12 });
const count = fc.oneof(fc.nat(200), fc.maxSafeNat());
const keys = fc.array(fc.tuple(word, bytes), { maxLength: 3 }).map((pairs) => new Map(pairs));
const orNull = <T>(some: fc.Arbitrary<T>): fc.Arbitrary<T | null> => fc.option(some, { nil: null });

const rowOf = (own: string): fc.Arbitrary<LiveItem> =>
  fc.record({
    id: fc.oneof({ weight: 5, arbitrary: fc.constant(own) }, { weight: 1, arbitrary: id }),
    binId: word,
    type: fc.constantFrom(...CONTENT_TYPES),
    ts: count,
    version: count,
    senderDevice: word,
    deletedAt: fc.constant(null),
    inline: orNull(fc.record({ ct: bytes, nonce: bytes, keys })),
    blob: orNull(fc.record({ ref: word, nonce: bytes, keys })),
    master: orNull(fc.record({ nonce: bytes, ct: bytes })),
    sig: orNull(bytes),
  });

// Small enough that sums stay whole numbers.
const version = fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 2 ** 40 }));

const entry: fc.Arbitrary<Entry> = id.chain((own) =>
  fc.oneof(
    fc.record({ id: fc.constant(own), version, state: fc.constant('live' as const), row: rowOf(own) }),
    fc.record({
      id: fc.constant(own),
      version,
      state: fc.constant('quarantined' as const),
      reason: fc.constantFrom('bad_row' as const, 'bad_sig' as const, 'rolled_back' as const),
      row: orNull(rowOf(own)),
      kept: orNull(rowOf(own)),
    }),
    fc.record({
      id: fc.constant(own),
      version,
      state: fc.constant('deleted' as const),
      tagged: fc.boolean(),
      kept: orNull(rowOf(own)),
    }),
  ),
);

const seq = fc.integer({ min: 1, max: 8 });
const change: fc.Arbitrary<Pending> = id.chain((own) => {
  const of = { seq, id: fc.constant(own), base: orNull(count), version: orNull(count) };
  return fc.oneof(
    fc.record({ ...of, kind: fc.constant('write' as const), row: rowOf(own), rewrap: fc.boolean() }),
    fc.record({ ...of, kind: fc.constant('move' as const), row: rowOf(own) }),
    fc.record({ ...of, kind: fc.constant('delete' as const), sig: bytes }),
  );
});

/** Any batch that the port allows. */
export const anyBatch: fc.Arbitrary<Batch> = fc.record(
  {
    entries: fc.array(entry, { maxLength: 4 }),
    cursor: fc.oneof(
      fc.record({ since: count, epoch: orNull(word) }),
      fc.record({ since: count, epoch: word, reset: fc.constant(true) }),
    ),
    pending: fc.array(change, { maxLength: 3 }),
    done: fc.array(seq, { maxLength: 3 }),
    forgetVersions: fc.boolean(),
  },
  { requiredKeys: [] },
);

/** A row of `size` bytes of ciphertext that nobody will open. */
function row(own: string, version: number, size = 100): LiveItem {
  const inline = {
    ct: new Uint8Array(size).fill(version & 255),
    nonce: new Uint8Array(24).fill(1),
    keys: new Map([
      [OWNER.deviceId, new Uint8Array(80).fill(2)],
      ['01HZZZZZZZZZZZZZZZZZZZZZZY', new Uint8Array(80).fill(3)],
    ]),
  };
  const master = { nonce: new Uint8Array(24).fill(4), ct: new Uint8Array(48).fill(5) };
  const head = { id: own, binId: 'inbox', type: 'text' as const, ts: 1_700_000_000_000 + version, version };
  const senderDevice = OWNER.deviceId;
  return { ...head, senderDevice, inline, blob: null, master, sig: new Uint8Array(32).fill(6), deletedAt: null };
}

export const live = (own: string, version: number, size?: number): Entry => ({
  id: own,
  version,
  state: 'live',
  row: row(own, version, size),
});

export const write = (seq: number, own: string, base: number | null = 0): Pending => ({
  kind: 'write',
  seq,
  id: own,
  base,
  version: null,
  row: row(own, 0),
  rewrap: false,
});

export const idOf = (n: number): string => String(n).padStart(26, '0');

/** The code of a store's refusal. */
export const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'none',
    (error: unknown) => (error instanceof StoreError ? error.code : String(error)),
  );
