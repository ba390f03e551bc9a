/** Adds what is missing to the items held: keys of devices that joined, and the master wrap (contract 9). */
import type { ListedDevice } from '../crypto/device.js';
import { rewrapItem, type Reader } from '../crypto/item.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import type { LiveItem } from '../protocol/item.js';
import { BATCH_WRITES_MAX } from '../protocol/limits.js';
import { isConflict } from './errors.js';
import type { Outbox } from './outbox.js';
import type { Stored } from './replies.js';
import type { Roster } from './roster.js';
import type { Sender, Submitted } from './sender.js';
import type { Entry, Store } from './store/store.js';

/** How far re-wrapping is: items gone through, of those that lacked something when it began. */
export interface RewrapProgress {
  readonly done: number;
  readonly total: number;
}

/** How re-wrapping is done. */
export interface RewrapOptions {
  /** Ends it between two batches. */
  readonly signal?: AbortSignal;
  /** Waited for between two batches, so that the rate limit leaves room for the user's own writes. */
  readonly pause?: () => Promise<void>;
  readonly onProgress?: (progress: RewrapProgress) => void;
}

/** What is needed of a device. */
export interface MissingKeysOptions {
  readonly store: Pick<Store, 'entries'>;
  readonly outbox: Pick<Outbox, 'look'>;
  readonly sender: Pick<Sender, 'submit' | 'kick'>;
  readonly roster: Pick<Roster, 'recipients'>;
  readonly sodium: Sodium;
  readonly reader: Reader;
  /** Prepares a change after those before it and before those after it: each sees the one before (`Writer`). */
  readonly inTurn: <T>(prepare: () => Promise<T>) => Promise<T>;
}

/** See above. What is missing is found by looking at every item; nothing is remembered between two runs. */
export class MissingKeys {
  constructor(private readonly options: MissingKeysOptions) {}

  /**
   * Goes through all items, a batch after the other. Resolves with the number of items that were mended, when the
   * server has them all. An item that another device mends first is left alone, and so is one whose key this device
   * cannot prove. Rejects with the signal's reason between two batches, and with the first failure that is no conflict;
   * what was sent by then stays sent.
   */
  async addAll(options: RewrapOptions = {}): Promise<number> {
    const devices = await this.options.roster.recipients();
    const ids: string[] = [];
    for await (const entry of this.options.store.entries()) if (lacksSomething(entry, devices)) ids.push(entry.id);
    const total = ids.length;
    let mended = 0;
    if (total > 0) options.onProgress?.({ done: 0, total });
    for (let done = 0; done < total;) {
      options.signal?.throwIfAborted();
      if (done > 0) await options.pause?.();
      const batch = ids.slice(done, done + BATCH_WRITES_MAX);
      mended += await this.batch(batch, devices);
      done += batch.length;
      options.onProgress?.({ done, total });
    }
    return mended;
  }

  private async batch(ids: readonly string[], devices: readonly ListedDevice[]): Promise<number> {
    const waiting: Promise<Stored>[] = [];
    for (const id of ids) {
      const submitted = await this.options.inTurn(() => this.one(id, devices));
      if (submitted !== undefined) waiting.push(submitted.outcome);
    }
    this.options.sender.kick();
    let mended = 0;
    for (const outcome of await Promise.allSettled(waiting)) {
      if (outcome.status === 'fulfilled') mended++;
      else if (!isConflict(outcome.reason)) throw outcome.reason;
    }
    return mended;
  }

  private async one(id: string, devices: readonly ListedDevice[]): Promise<Submitted | undefined> {
    const { outbox, sodium, reader, sender } = this.options;
    const { entry, own } = await outbox.look(id);
    if (entry?.state !== 'live' || own !== undefined || !lacksSomething(entry, devices)) return undefined;
    const payload = rewrapped(() => rewrapItem(sodium, entry.row, { ...reader, devices }));
    if (payload === null) return undefined;
    const row = { ...entry.row, ...payload };
    return sender.submit({ kind: 'write', id, base: entry.version, row, rewrap: true }, { gather: true });
  }
}

/** The cheap question first: `rewrapItem` verifies a tag before it looks, and a whole store is gone through here. */
const lacksSomething = (entry: Entry, devices: readonly ListedDevice[]): boolean =>
  entry.state === 'live' && entry.version > 0 && lacksKeys(entry.row, devices);

const lacksKeys = (row: LiveItem, devices: readonly ListedDevice[]): boolean =>
  row.master === null ||
  devices.some(({ id }) => row.inline?.keys.has(id) === false || row.blob?.keys.has(id) === false);

/** An item whose key this device cannot prove is not re-wrapped; a device that can does it. */
function rewrapped<T>(make: () => T): T | null {
  try {
    return make();
  } catch (error) {
    if (error instanceof CryptoRefusal && error.reason !== 'uncertified_device') return null;
    throw error;
  }
}
