/**
 * The user's items: a device of the SDK that polls and opens no socket, over a store in memory. Before each answer it
 * catches up and compares its count with the server's.
 */
import { Device } from '../sdk/device.js';
import { QueuedError } from '../sdk/errors.js';
import type { DeviceEvents } from '../sdk/events.js';
import type { Identity } from '../sdk/identity.js';
import type { Platform } from '../sdk/platform.js';
import type { Stored } from '../sdk/replies.js';
import { sameHeld } from '../sdk/store/store.js';
import { compareCounts, lackingIn } from '../sdk/sync.js';
import type { PutRequest } from '../sdk/writer.js';
import { Saver } from '../device/saver.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { BinScope, type Bins } from './bin-scope.js';
import type { Paths } from './context.js';
import { toolFailure } from './errors.js';
import { keepKnownDevices, knownDevicesText, readKnownDevices } from './known-devices.js';
import type { Policy } from './policy.js';
import { VaultStore, type Card } from './vault-store.js';

interface VaultOptions {
  readonly platform: Platform;
  readonly identity: Identity;
  readonly policy: Policy;
  readonly note: (text: string) => void;
  /** Saves a renewed token. */
  readonly keep: (identity: Identity) => Promise<unknown>;
  /** Where the device list of earlier runs is. */
  readonly paths: Pick<Paths, 'folder'>;
}

/** Progress of the first reading: items read, and the server's item count. */
export type Progress = (done: number, total: number) => void;

/** The state after catching up. */
export interface Fresh {
  readonly bins: Bins;
  /**
   * True: the copy has all items that the server counts. False: it has not, even after reading everything again. Null:
   * the history changed too fast to compare, or the server does not report its count.
   */
  readonly complete: boolean | null;
}

/** Minimum time between two full readings for the same difference. */
const LOOK_AGAIN_MS = 5 * 60_000;
/** Most messages that are kept for the next answer. */
const NEWS_MAX = 20;
/** Most unacknowledged changes whose ids are kept. */
const WAITING_MAX = 1_000;

export class Vault {
  /** The difference found by the last comparison; null: none. */
  missing: DeviceEvents['missing'] | null = null;
  readonly store: VaultStore;
  private readonly scope: BinScope;
  private readonly watchers = new Set<Progress>();
  /** Ids of changes that the server has not acknowledged. */
  private readonly waiting = new Set<string>();
  private news: string[] = [];
  private readonly reading = new SingleFlight(() => this.round());
  /** Expected number of items of the first reading; null: it has ended, or has not begun. */
  private expected: number | null = null;
  /** Time of the last full reading, ms. */
  private lookedAt = -Infinity;
  private lastProblem = '';
  private readonly tokens: Saver<Identity>;
  private readonly devices: Saver<string>;
  /** The device list as it was offered to `devices` last; empty: it was not read in this run. */
  private known = '';
  private device!: Device;

  private constructor(private readonly options: VaultOptions) {
    this.scope = new BinScope(options.policy.bins);
    this.store = new VaultStore((items) => this.progressed(items));
    const { platform, note, keep, paths } = options;
    const saver = <T>(what: string, save: (value: T) => Promise<unknown>): Saver<T> =>
      new Saver({
        save,
        clock: platform.clock,
        // Not fatal: the next start renews the token with the device's key, and reads the list from the server.
        failed: (error) => `The ${what} was not saved: ${toolFailure(error).message}. Trying again.`,
        saved: `The ${what} is saved now.`,
        note,
      });
    this.tokens = saver('renewed token', keep);
    this.devices = saver('list of devices', (known: string) => keepKnownDevices(paths, known));
  }

  /** Opening sends no request; the first call does. */
  static async open(options: VaultOptions): Promise<Vault> {
    const vault = new Vault(options);
    const { platform, identity, paths } = options;
    vault.device = await Device.open({
      platform,
      identity,
      store: vault.store,
      devices: await readKnownDevices(paths, identity.deviceId),
      onIdentity: (next) => vault.tokens.offer(next),
      onProblem: (error) => vault.problem(error),
    });
    vault.listen();
    return vault;
  }

  /** Closes the device. Reports unacknowledged changes, since they exist only here and are lost. */
  async close(): Promise<void> {
    const { waiting } = this;
    if (waiting.size > 0)
      this.options.note(`${waiting.size} changes were not acknowledged by the server: ${[...waiting].join(', ')}`);
    this.device.close();
    await Promise.all([this.tokens.end(), this.devices.end()]);
  }

  /** What happened since the last call, as sentences. */
  takeNews(): readonly string[] {
    const { news, waiting } = this;
    this.news = [];
    const changes = waiting.size === 1 ? '1 change is' : `${waiting.size} changes are`;
    return waiting.size === 0 ? news : [...news, `${changes} waiting for the server to be back.`];
  }

  /**
   * Catches up and compares. A call during a reading shares the next one, since the running one may miss the newest
   * changes. Rejects with the SDK's errors.
   */
  async refresh(progress?: Progress): Promise<Fresh> {
    if (progress !== undefined) this.watchers.add(progress);
    try {
      return await this.reading.fresh();
    } finally {
      if (progress !== undefined) this.watchers.delete(progress);
    }
  }

  /** Reads items; changes go through `put` and `remove`, which know what the server has not acknowledged. */
  get reader(): Pick<Device, 'get' | 'blobUrl'> {
    return this.device;
  }

  /** The bins, without reading any item. */
  async bins(): Promise<Bins> {
    return this.scope.of(await this.device.bins.list());
  }

  /** The searched text of an item that was not opened yet. */
  async openedText({ id }: Card): Promise<string> {
    const view = await this.device.get(id);
    if (view !== undefined) this.store.keepText(view);
    return this.store.textOf(id) ?? '';
  }

  /** Writes a new item. `signal` aborts its upload, nothing later. Throws as `Writer.put`. */
  async put(item: Pick<PutRequest, 'binId' | 'type' | 'payload' | 'signal'>): Promise<Stored> {
    // A device may have been revoked since the list of the last run.
    if (this.known === '') await this.device.devices.refresh();
    return this.changing(this.device.put(item));
  }

  /** Deletes an item. Throws as `Writer.delete`. */
  remove(id: string): Promise<Stored> {
    return this.changing(this.device.delete(id));
  }

  private changing(change: Promise<Stored>): Promise<Stored> {
    return change.catch((error: unknown) => {
      if (error instanceof QueuedError && this.waiting.size < WAITING_MAX) this.waiting.add(error.id);
      throw error;
    });
  }

  private async round(): Promise<Fresh> {
    if ((await this.store.cursor()).since === 0) this.expected = (await this.device.me()).server.itemCount;
    try {
      await this.device.pull();
    } finally {
      this.expected = null;
    }
    const [complete, bins] = await Promise.all([this.compared(), this.bins()]);
    // Stops the timer that adds keys for new devices: read-only mode writes nothing.
    if (this.options.policy.readOnly) this.device.disconnect();
    return { bins, complete };
  }

  /**
   * `Fresh.complete`. A difference that the last full reading did not remove causes no other one within
   * `LOOK_AGAIN_MS`.
   */
  private async compared(): Promise<boolean | null> {
    const { device, store } = this;
    const found = await compareCounts({ store, me: device.me, catchUp: device.pull });
    if (found === null) return null;
    let complete: boolean | null = found.complete;
    if (!complete) {
      const now = this.options.platform.clock.now();
      const known = this.missing !== null && sameHeld(this.missing.lacking, lackingIn(found.at, found.held));
      if (known && Math.abs(now - this.lookedAt) < LOOK_AGAIN_MS) return false;
      this.lookedAt = now;
      complete = await device.check();
    }
    if (complete === true) this.missing = null;
    return complete;
  }

  private progressed(items: number): void {
    if (this.expected === null) return;
    for (const watcher of this.watchers) watcher(items, Math.max(this.expected, items));
  }

  private listen(): void {
    const { device } = this;
    device.on('item', (view) => this.store.keepText(view));
    device.on('missing', (event) => (this.missing = event));
    device.on('reset', () =>
      this.report("The server's history was replaced (a restored backup). All items were read again."),
    );
    device.on('sent', ({ id }) => void this.waiting.delete(id));
    device.on('rejected', ({ id, error }) => {
      this.waiting.delete(id);
      this.report(`The waiting change of ${id} was refused (${toolFailure(error).code}) and was not made.`);
    });
    device.on('devices', ({ devices }) => {
      const known = knownDevicesText(device.id, devices);
      if (known !== this.known) this.devices.offer(known);
      this.known = known;
    });
    device.on('revoked', () => this.options.note('This machine was revoked.'));
  }

  private report(sentence: string): void {
    this.news = [...this.news, sentence].slice(-NEWS_MAX);
    this.options.note(sentence);
  }

  /** Notes an error of background work; a repeated one only once. */
  private problem(error: Error): void {
    const text = `${error.name}: ${sanitizeText(error.message)}`;
    if (text !== this.lastProblem) this.options.note(text);
    this.lastProblem = text;
  }
}
