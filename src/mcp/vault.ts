/**
 * The user's items as the companion has them: a device of the client library that polls and holds no socket, over a copy
 * in memory. Before each look it catches up, and compares what it holds with what the server counts.
 */
import { Device } from '../sdk/device.js';
import { QueuedError } from '../sdk/errors.js';
import type { DeviceEvents, ItemView } from '../sdk/events.js';
import type { Identity } from '../sdk/identity.js';
import type { Platform } from '../sdk/platform.js';
import type { DownloadUrl, Stored } from '../sdk/replies.js';
import type { Held } from '../sdk/store/store.js';
import { ulid } from '../sdk/ulid.js';
import type { PutRequest } from '../sdk/writer.js';
import { tokenSaver } from '../device/identity.js';
import type { Saver } from '../files/saver.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { BinScope, type Bins } from './bin-scope.js';
import { toolFailure } from './failure.js';
import type { Policy } from './policy.js';
import { VaultStore, type Card } from './vault-store.js';

/** What a vault stands on. */
export interface VaultOptions {
  readonly platform: Platform;
  readonly identity: Identity;
  readonly policy: Policy;
  /** A line for the person. */
  readonly note: (text: string) => void;
  /** Keeps a renewed token. */
  readonly keep: (identity: Identity) => Promise<unknown>;
}

/** How far a first reading is: items here, of those that the server counts. */
export type Progress = (done: number, total: number) => void;

/** How things stand after catching up. */
export interface Fresh {
  readonly bins: Bins;
  /**
   * True: what is here is what the server counts. False: it is not, and reading everything again did not help. Null: the
   * history moved on too fast to compare, or the server does not say.
   */
  readonly complete: boolean | null;
}

/** A history that moves on between every two looks is not compared for ever. */
const COMPARE_MAX = 3;
/** For the same lack everything is read again this seldom. */
const LOOK_AGAIN_MS = 5 * 60_000;
/** Sentences that wait for the next answer. */
const NEWS_MAX = 20;
/** Changes without an answer that are remembered. */
const WAITING_MAX = 1_000;

/** See above. */
export class Vault {
  /** What the server counts and does not hand out, as of the last comparison; null: nothing. */
  missing: DeviceEvents['missing'] | null = null;
  readonly store: VaultStore;
  private readonly scope: BinScope;
  private readonly watchers = new Set<Progress>();
  /** Ids of changes that wait for the server. */
  private readonly waiting = new Set<string>();
  private news: string[] = [];
  private readonly reading = new SingleFlight(() => this.round());
  /** How many items the first reading is about; null: it is over, or has not begun. */
  private expected: number | null = null;
  /** When everything was read again for the last time, ms. */
  private lookedAt = -Infinity;
  private lastProblem = '';
  private readonly saver: Saver<Identity>;
  private device!: Device;

  private constructor(private readonly options: VaultOptions) {
    this.scope = new BinScope(options.policy.bins);
    this.store = new VaultStore((items) => this.progressed(items));
    this.saver = tokenSaver({
      save: options.keep,
      clock: options.platform.clock,
      // A start without it renews it by the device's key.
      failed: (error) => `The renewed token is not saved: ${toolFailure(error).message}. It is tried again.`,
      note: options.note,
    });
  }

  /** Nothing is asked of the server before the first call. */
  static async open(options: VaultOptions): Promise<Vault> {
    const vault = new Vault(options);
    const { platform, identity } = options;
    vault.device = await Device.open({
      platform,
      identity,
      store: vault.store,
      onIdentity: (next) => vault.saver.offer(next),
      onProblem: (error) => vault.problem(error),
    });
    vault.listen();
    return vault;
  }

  /** Ends the device. Changes that were not sent are told: they are in no other place. */
  async close(): Promise<void> {
    if (this.waiting.size > 0)
      this.options.note(
        `${this.waiting.size} changes were not acknowledged by the server: ${[...this.waiting].join(', ')}`,
      );
    this.device.close();
    await this.saver.end();
  }

  /** Sentences on what happened since they were last asked for. */
  takeNews(): readonly string[] {
    const { news } = this;
    this.news = [];
    return this.waiting.size === 0 ? news : [...news, `${this.waiting.size} changes wait for the server to be back.`];
  }

  /**
   * Catches up and compares. A call during a reading shares the one after it, since what it was made for may be too new
   * for the one under way. Rejects with the client library's errors.
   */
  async refresh(progress?: Progress): Promise<Fresh> {
    if (progress !== undefined) this.watchers.add(progress);
    try {
      return await this.reading.fresh();
    } finally {
      if (progress !== undefined) this.watchers.delete(progress);
    }
  }

  /** The bins, without looking at any item. */
  async bins(): Promise<Bins> {
    return this.scope.of(await this.device.bins.list());
  }

  /** An item with its content; undefined where it is gone meanwhile. Throws `ClientError` `damaged_item`. */
  view(id: string): Promise<ItemView | undefined> {
    return this.device.get(id);
  }

  /** What is searched in an item, opened where that has not happened yet. */
  async textOf({ id }: Card): Promise<string> {
    const known = this.store.textOf(id);
    if (known !== undefined) return known;
    const view = await this.device.get(id);
    if (view !== undefined) this.store.read(view);
    return this.store.textOf(id) ?? '';
  }

  /** Where the content of a blob item is to be had. Throws as `Device.blobUrl`. */
  blobUrl(id: string): Promise<DownloadUrl> {
    return this.device.blobUrl(id);
  }

  /** A new item. `signal` ends an upload, and nothing after it. Throws as `Writer.put`. */
  put(item: Pick<PutRequest, 'binId' | 'type' | 'payload' | 'signal'>): Promise<Stored> {
    const { clock, sodium } = this.options.platform;
    const id = ulid(clock.now(), (length) => sodium.random(length));
    return this.changing(() => this.device.put({ ...item, id }));
  }

  /** Deletes an item. Throws as `Writer.delete`. */
  remove(id: string): Promise<Stored> {
    return this.changing(() => this.device.delete(id));
  }

  private async changing(work: () => Promise<Stored>): Promise<Stored> {
    try {
      return await work();
    } catch (error) {
      if (error instanceof QueuedError && this.waiting.size < WAITING_MAX) this.waiting.add(error.id);
      throw error;
    }
  }

  private async round(): Promise<Fresh> {
    if ((await this.store.cursor()).since === 0) this.expected = (await this.device.me()).server.itemCount;
    try {
      await this.device.pull();
    } finally {
      this.expected = null;
    }
    const [complete, bins] = await Promise.all([this.compared(), this.bins()]);
    // Keys for devices that join are added by a timer that this stops: nothing is written where nothing may be.
    if (this.options.policy.readOnly) this.device.disconnect();
    return { bins, complete };
  }

  /** See `Fresh.complete`. For the same lack everything is not read again at once: it did not help the last time. */
  private async compared(): Promise<boolean | null> {
    for (let tries = 0; tries < COMPARE_MAX; tries++) {
      const { server } = await this.device.me();
      const { headVersion, versionSum, itemCount, epoch } = server;
      if (headVersion === null || versionSum === null || epoch === null) return null;
      const cursor = await this.store.cursor();
      if (cursor.since !== headVersion || cursor.epoch !== epoch) {
        await this.device.pull();
        continue;
      }
      const held = await this.store.held();
      const lacking = { itemCount: itemCount - held.itemCount, versionSum: versionSum - held.versionSum };
      if (lacking.itemCount === 0 && lacking.versionSum === 0) {
        this.missing = null;
        return true;
      }
      const now = this.options.platform.clock.now();
      const known = this.missing !== null && sameLack(this.missing.lacking, lacking);
      if (known && Math.abs(now - this.lookedAt) < LOOK_AGAIN_MS) return false;
      this.lookedAt = now;
      const complete = await this.device.check();
      if (complete === true) this.missing = null;
      return complete;
    }
    return null;
  }

  private progressed(items: number): void {
    if (this.expected === null) return;
    for (const watcher of this.watchers) watcher(items, Math.max(this.expected, items));
  }

  private listen(): void {
    const { device } = this;
    device.on('item', (view) => this.store.read(view));
    device.on('missing', (event) => {
      this.missing = event;
    });
    device.on('reset', () =>
      this.tell("The server's history was replaced (a restored backup). All items were read again."),
    );
    device.on('sent', ({ id }) => void this.waiting.delete(id));
    device.on('rejected', ({ id, error }) => {
      this.waiting.delete(id);
      this.tell(`The change of ${id} that waited was refused (${toolFailure(error).code}) and is not made.`);
    });
    device.on('revoked', () => this.options.note('This machine was revoked.'));
  }

  private tell(sentence: string): void {
    this.news = [...this.news, sentence].slice(-NEWS_MAX);
    this.options.note(sentence);
  }

  /** What fails in the background. The same again and again is said once. */
  private problem(error: Error): void {
    const text = `${error.name}: ${sanitizeText(error.message)}`;
    if (text !== this.lastProblem) this.options.note(text);
    this.lastProblem = text;
  }
}

const sameLack = (one: Held, other: Held): boolean =>
  one.itemCount === other.itemCount && one.versionSum === other.versionSum;
