/** A device's copy of items with queries on it, and what a program that carries out a query's changes has in the end. */
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { LiveItem } from '../../src/protocol/item.js';
import { Emitter, type ItemView } from '../../src/sdk/events.js';
import { ItemReader } from '../../src/sdk/item-reader.js';
import { LiveQueryIndex } from '../../src/sdk/live-query-index.js';
import { Outbox, type NewChange } from '../../src/sdk/outbox.js';
import type { QueryUpdate } from '../../src/sdk/query.js';
import { Replica } from '../../src/sdk/replica.js';
import { MemoryStore, type Pending } from '../../src/sdk/store/store.js';
import { newIdentity, sealedRow } from './client.js';
import { TestClock } from './clock.js';

/** A device's copy with queries on it. `opened` counts decryptions. */
export async function shelf(store = new MemoryStore()) {
  const me = newIdentity();
  const counts = { opened: 0 };
  const sodium = {
    ...nodeSodium,
    aeadDecrypt: (input: Parameters<typeof nodeSodium.aeadDecrypt>[0]) => {
      counts.opened++;
      return nodeSodium.aeadDecrypt(input);
    },
  };
  const clock = new TestClock();
  const outbox = await Outbox.load(store, clock);
  const reader = { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } };
  const problems: Error[] = [];
  const onProblem = (error: Error): void => void problems.push(error);
  const { emit } = new Emitter(onProblem);
  const fetchNext = () => Promise.resolve(undefined);
  const replica = new Replica({ store, outbox, sodium: nodeSodium, reader, emit, fetchNext });
  const made = new LiveQueryIndex({ outbox, store, sodium, reader, clock, random: () => 0, onProblem });
  const library = new ItemReader({ store, outbox, sodium: nodeSodium, reader, onProblem });
  let version = 0;
  const row = (fields: Partial<Parameters<typeof sealedRow>[1]> = {}): LiveItem =>
    sealedRow(me, { ...fields, version: ++version });
  const own = async (change: NewChange): Promise<Pending> => {
    const { pending, stored } = outbox.add(change);
    await stored;
    return pending;
  };
  const parts = { me, counts, clock, store, outbox, replica, library, problems };
  return { ...parts, shelf: made, row, own, version: () => ++version };
}

/** The result of all updates' changes, from an empty list; the items' content is taken from the update that named it. */
export function replayed(updates: readonly QueryUpdate[]): readonly (ItemView | undefined)[] {
  const list: (ItemView | undefined)[] = [];
  for (const { items, changes } of updates) {
    const views = new Map(items.map((item) => [item.id, item] as const));
    for (const change of changes) {
      if (change.kind === 'removed') list.splice(change.at, 1);
      if (change.kind === 'changed') list.splice(change.from, 1);
      if (change.kind !== 'removed') list.splice(change.at, 0, views.get(change.id));
    }
  }
  return list;
}
