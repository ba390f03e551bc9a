/**
 * Applies everything that comes from the server, strictly in order: frames are gathered into batches, and a
 * `caught_up` or `reset` is handled completely before the next frame.
 */
import { asError } from '../protocol/error-code.js';
import { Serial } from '../protocol/serial.js';
import type { DeviceApi } from './api.js';
import { type Replica, stopsReading } from './replica.js';
import { sameHeld, unversioned, type Cursor, type Held, type Store } from './store/store.js';
import { ProtocolError } from './errors.js';
import type { Listed, Named } from './events.js';
import type { ReconnectingSocket } from './reconnecting-socket.js';
import type { Me } from './replies.js';
import type { Sender } from './sender.js';
import type { Change, Completeness, Frame } from './wire.js';
import type { Core } from './core.js';

/** Changes applied and stored in one batch. */
const BATCH_MAX = 256;
/** Above this many queued frames reading is paused, until half of them are applied. */
const QUEUE_MAX = 2_000;
/** Most repaired items named in the event. */
const NAMED_MAX = 1_000;
/** Attempts to compare with a history that keeps changing. */
const COMPARE_MAX = 5;
/** As `QUEUE_MAX`, by size in characters: the largest frames have some hundred thousand. */
const QUEUE_SIZE_MAX = 16 * 1024 * 1024;
/**
 * A browser's socket cannot be paused: at this multiple of the limits the queue is discarded, and the server sends the
 * frames again from the cursor.
 */
const QUEUE_FULL = 4;

type StreamFrame = Extract<Frame, { kind: 'change' | 'caught_up' | 'reset' }>;

/** What was known when a replay began. */
interface Before {
  /** Changes that were acknowledged by then, by `seq`: the replay contains them. */
  readonly acknowledged: ReadonlySet<number>;
  /** Null: none was known. */
  readonly epoch: Cursor['epoch'];
}

/** Applies the stream of the server. */
export class Sync {
  private queue: { readonly frame: StreamFrame; readonly size: number }[] = [];
  private queuedSize = 0;
  private readonly work = new Serial();
  private draining = false;
  /** Set by the first failure of a connection: later frames must not be applied after a gap. */
  private broken = false;
  private closed = false;
  /** Everything was listed again; the next `caught_up` shows whether the store is complete now. */
  private listing = false;
  /** The difference at the last `missing` event: for the same one, everything is not listed again. */
  private reported: Held | undefined;
  /** From a reset to the next `caught_up` of the same connection. */
  private begunAnew = false;
  private unlisted: readonly Named[] = [];
  /** Of the connection: see `Before`. */
  private before: Before = { acknowledged: new Set(), epoch: null };
  /** Shared by all callers of `caughtUp`; `wake` resolves it. */
  private waiting: Promise<void> | undefined;
  private wake: () => void = () => undefined;

  constructor(
    private readonly options: Pick<Core, 'api' | 'store' | 'outbox' | 'emit'> & {
      readonly replica: Replica;
      readonly sender: Sender;
      readonly socket: Pick<ReconnectingSocket, 'restart' | 'flow' | 'settled'>;
      /** Called when reading from the server is stopped, because it would fill this device's memory or store. */
      readonly halt: (error: ProtocolError) => void;
      /** Reads devices and bins again. */
      readonly refresh: () => Promise<void>;
    },
  ) {}

  /** Queues a frame of the ordered stream; `size`: characters of its text. */
  receive(frame: StreamFrame, size = 0): void {
    if (this.broken || this.closed) return;
    if (this.isFull(QUEUE_FULL)) {
      this.broken = true;
      this.letGo();
      return this.options.socket.restart('frames come faster than they can be stored');
    }
    this.queue.push({ frame, size });
    this.queuedSize += size;
    if (this.isFull(1)) this.options.socket.flow(false);
    if (this.draining) return;
    this.draining = true;
    void this.exclusive(() => this.drain());
  }

  private isFull(times: number): boolean {
    return this.queue.length >= times * QUEUE_MAX || this.queuedSize >= times * QUEUE_SIZE_MAX;
  }

  /** Discards the queued frames. Nothing is left whose processing would resume reading. */
  private letGo(): void {
    this.queue = [];
    this.queuedSize = 0;
    this.options.socket.flow(true);
  }

  /** Called when the device was closed: only work in progress is completed. */
  close(): void {
    this.closed = true;
    this.letGo();
  }

  /** The cursor for the `hello` of a new connection, after all frames of the previous connection were handled. */
  begin(): Promise<Cursor> {
    return this.exclusive(async () => {
      this.letGo();
      this.broken = false;
      this.begunAnew = false;
      const acknowledged = this.options.outbox.unconfirmed();
      const cursor = await this.options.replica.replaying();
      this.before = { acknowledged, epoch: cursor.epoch };
      return cursor;
    });
  }

  /** Resolves at the next `caught_up` that was handled. */
  caughtUp(): Promise<void> {
    this.waiting ??= new Promise((resolve) => (this.wake = resolve));
    return this.waiting;
  }

  /**
   * The epoch of the cursor. A device that has read nothing asks for it, because a change must not be sent to a history
   * without a name, nor a replay begin in one: after a restore nobody could tell which one acknowledged it, or which one
   * the states are of that were received before the connection was lost. Null where the server does not report it. `api`:
   * to ask with.
   */
  async epoch(api: DeviceApi): Promise<Cursor['epoch']> {
    const { store } = this.options;
    const { epoch } = await store.cursor();
    if (epoch !== null) return epoch;
    return this.exclusive(async () => {
      const cursor = await store.cursor();
      const named = cursor.epoch ?? (await api.me()).server.epoch;
      if (named !== cursor.epoch) await store.apply({ cursor: { ...cursor, epoch: named } });
      return named;
    });
  }

  /** Catches up over HTTP, from the cursor to the head. */
  pull(): Promise<void> {
    return this.exclusive(async () => {
      const acknowledged = this.options.outbox.unconfirmed();
      const { epoch } = await this.options.store.cursor();
      const version = await this.pages();
      await this.resendLacking({ acknowledged, epoch });
      await this.settled(version, null);
    });
  }

  /**
   * Reads the whole history again, and re-verifies items that did not decrypt or verify: for a damaged store, or on
   * request of the user.
   */
  async resync(): Promise<void> {
    this.reported = undefined;
    // A listing of everything does not tell which history it is of; one that is read for the first time does.
    if ((await this.options.store.cursor()).epoch === null) await this.pull();
    await this.exclusive(() => this.refetch(true));
    this.options.socket.restart('everything was read again');
  }

  /**
   * The completeness check without a socket: catches up, compares count and sum, repairs as after `caught_up`, and
   * emits the same events. Null where the history changes too fast to compare.
   */
  async check(): Promise<boolean | null> {
    await this.pull();
    return this.exclusive(async () => {
      let found = await this.compared();
      if (found?.complete === false) {
        await this.refetch();
        found = await this.compared();
      }
      if (found === null) return null;
      if (!found.complete) this.missing(found.at, found.held);
      this.unlisted = [];
      await this.settled(found.at.version, found.complete);
      return found.complete;
    });
  }

  /** Reads all pages from the cursor to the head; returns the head. */
  private async pages(): Promise<number> {
    this.begunAnew = false;
    await this.options.replica.listing();
    for (let resets = 0; ;) {
      const { since, epoch } = await this.options.store.cursor();
      const page = await this.options.api.page({ since, epoch });
      const another = page.reset || (epoch !== null && page.epoch !== epoch);
      // A server that starts over on every page would never end the listing.
      if (another && ++resets > 1)
        throw new ProtocolError('the epoch changed more than once during a listing', { code: 'epoch_changed' });
      if (another) await this.resetBeside(page.epoch);
      await this.options.replica.applyListed(page.items, page.nextSince);
      if (page.hasMore) continue;
      await this.options.replica.settlePulled({ version: page.nextSince, epoch: page.epoch });
      return page.nextSince;
    }
  }

  private compared(): ReturnType<typeof compareCounts> {
    const { api, store } = this.options;
    return compareCounts({ store, me: () => api.me(), catchUp: () => this.pages() });
  }

  /** Runs `work` exclusively: no frames and no other listing are applied meanwhile. */
  private exclusive<T>(work: () => Promise<T>): Promise<T> {
    return this.work.run(async () => {
      try {
        return await work();
      } catch (error) {
        // Halts before the next queued work starts.
        if (stopsReading(error)) this.options.halt(error);
        throw error;
      }
    });
  }

  private async drain(): Promise<void> {
    try {
      while (this.queue.length > 0) {
        await this.next();
        if (!this.isFull(1 / 2)) this.options.socket.flow(true);
      }
    } catch (error) {
      // The store may have been closed with the device: not a failure, the next connection brings the frames again.
      if (this.closed) return;
      this.broken = true;
      this.letGo();
      this.options.emit('problem', { error: asError(error) });
      if (stopsReading(error)) this.options.halt(error);
      else this.options.socket.restart('frames could not be applied');
    } finally {
      this.draining = false;
    }
  }

  /** Applies the changes at the front of the queue as one batch, or one frame of another kind. */
  private async next(): Promise<void> {
    const changes: Change[] = [];
    for (const { frame } of this.queue) {
      if (frame.kind !== 'change' || changes.length >= BATCH_MAX) break;
      changes.push(frame.change);
    }
    const taken = this.queue.splice(0, Math.max(1, changes.length));
    for (const { size } of taken) this.queuedSize -= size;
    if (changes.length > 0) return this.options.replica.apply(changes);
    for (const { frame } of taken) {
      if (frame.kind === 'reset') await this.reset(frame.epoch);
      if (frame.kind === 'caught_up') await this.settle(frame.at);
    }
  }

  private async reset(epoch: string): Promise<void> {
    // A reset rewrites the whole store. Only its replay may follow, never another reset.
    if (this.begunAnew) throw new ProtocolError('a reset within the replay of another', { code: 'epoch_changed' });
    this.begunAnew = true;
    this.options.sender.hold('reset');
    await this.options.replica.reset(epoch);
    // None is acknowledged any more: one that is sent again meanwhile is acknowledged after this replay began.
    this.before = { acknowledged: new Set(), epoch };
  }

  /** A reset in a listing. What has come and still comes over the connection is of the history before. */
  private async resetBeside(epoch: string): Promise<void> {
    this.broken = true;
    this.letGo();
    await this.reset(epoch);
    this.options.socket.restart('a listing showed another history');
  }

  private async settle(at: Completeness): Promise<void> {
    const outcome = await this.options.replica.settle(at);
    if (outcome === undefined) {
      await this.reset(at.epoch);
      throw new ProtocolError('caught_up names another epoch than the replay before it', { code: 'epoch_changed' });
    }
    const { complete, held } = outcome;
    const lacking = lackingIn(at, held);
    const known = this.reported !== undefined && sameHeld(this.reported, lacking);
    if (!complete && !this.listing && !known) {
      await this.refetch();
      this.listing = true;
      // Only another replay reports the count at exactly the stored version.
      return this.options.socket.restart('everything was read again: is it complete now?');
    }
    this.listing = false;
    if (!complete) this.missing(at, held);
    this.reported = complete ? undefined : lacking;
    this.unlisted = [];
    this.options.socket.settled();
    if (complete) await this.resendLacking(this.before);
    await this.settled(at.version, complete);
  }

  /**
   * A whole replay without a change that was acknowledged before it: the server dropped it, so it is sent again. It is
   * no fault if no epoch was known then: the change may have been acknowledged in another one.
   */
  private async resendLacking({ acknowledged, epoch }: Before): Promise<void> {
    const { outbox, emit } = this.options;
    for (const id of await outbox.resend(acknowledged)) {
      if (epoch === null) continue;
      const message = `the server acknowledged a change of ${id}, which its history does not have`;
      emit('problem', { error: new ProtocolError(message, { code: 'wrong_reply' }) });
    }
  }

  private missing(at: Held, held: Held): void {
    const expected = { itemCount: at.itemCount, versionSum: at.versionSum };
    const lacking = lackingIn(at, held);
    // The version of exactly one lacking item is the difference of the sums; of several it is unknown.
    const one = lacking.itemCount === 1 ? [{ id: null, version: lacking.versionSum }] : [];
    const named = [...this.unlisted, ...one];
    const unlisted = this.unlisted.map(({ id }) => id);
    this.options.emit('missing', { expected, held, unlisted, lacking, named });
  }

  /** After catching up: sends this device's changes, and reads devices and bins, which are not part of the stream. */
  private async settled(version: number, complete: boolean | null): Promise<void> {
    const { store, outbox, sender, emit } = this.options;
    const { reset, ...cursor } = await store.cursor();
    if (reset === true) {
      // Again after each: meanwhile the user may have moved an item on top of one that is dropped.
      for (let gone = await outbox.outdated(); gone.length > 0; gone = await outbox.outdated())
        await sender.abandon(gone);
      await outbox.rebase();
      const ids = await unversioned(store);
      if (ids.length > 0) emit('orphaned', { ids });
      // Last: a program that ends before this does all of it again.
      await store.apply({ cursor });
    }
    this.begunAnew = false;
    sender.release('reset');
    emit('caught_up', { version, complete });
    this.wake();
    this.waiting = undefined;
    this.options.refresh().catch((error: unknown) => {
      if (!this.closed) this.options.emit('problem', { error: asError(error) });
    });
  }

  /**
   * Lists all items from 0. Versions only rise, so a row that changes during the listing appears again on a later
   * page: together the pages are the state at the last page's head.
   */
  private async refetch(mending = false): Promise<void> {
    const { since: known, epoch } = await this.options.replica.listing();
    const repaired: Listed[] = [];
    let count = 0;
    const listed = new Set<string>();
    /** Deletes of items that this device knows. */
    const deleted = new Set<string>();
    for (let since = 0, more = true; more;) {
      const page = await this.options.api.page({ since, epoch });
      // A listing that starts over would have no end.
      if ((epoch !== null && page.epoch !== epoch) || (page.reset && since > 0))
        throw new ProtocolError('the epoch changed during a listing', { code: 'epoch_changed' });
      for (const { id, kind } of page.items) {
        const known = kind === 'delete' ? deleted : listed;
        if (known.has(id)) this.options.replica.bounds.countUseless();
        // A server may send any number of deletes of other items: those without a valid tag are counted as they are applied.
        else if (kind !== 'delete' || (await this.options.store.get(id)) !== undefined) known.add(id);
      }
      if (mending) await this.options.replica.mend(page.items);
      const newer = await this.options.replica.applyListed(page.items, page.hasMore ? null : page.nextSince);
      // Rows above the cursor are new, not missing.
      const lacked = newer.filter(({ version }) => version <= known);
      count += lacked.length;
      repaired.push(...lacked.slice(0, NAMED_MAX - repaired.length));
      if (page.hasMore && page.nextSince <= since) throw new ProtocolError('a listing does not advance');
      since = page.nextSince;
      more = page.hasMore;
      if (!more) this.unlisted = await this.options.replica.dropUnlisted(listed, since);
    }
    // Told at once: they do not count from now on, and the next `caught_up` may come in a later run of the program.
    const held = await this.options.store.held();
    if (this.unlisted.length > 0) this.missing(held, held);
    this.options.replica.bounds.end();
    if (count > 0) this.options.emit('repaired', { count, items: repaired });
  }
}

/** What the server counts and the store does not have; negative: the store has more. */
export const lackingIn = (at: Held, held: Held): Held => ({
  itemCount: at.itemCount - held.itemCount,
  versionSum: at.versionSum - held.versionSum,
});

/**
 * Compares the server's count with that of the store at the same version; `complete`: they are equal. `catchUp` reads
 * what the server has beyond the cursor. Null where the server does not report its count, or its history changes too
 * fast.
 */
export async function compareCounts(of: {
  readonly store: Pick<Store, 'cursor' | 'held'>;
  readonly me: () => Promise<Me>;
  readonly catchUp: () => Promise<unknown>;
}) {
  for (let tries = 0; tries < COMPARE_MAX; tries++) {
    const { headVersion, versionSum, epoch, itemCount } = (await of.me()).server;
    // These fields may be absent.
    if (headVersion === null || versionSum === null || epoch === null) return null;
    const at = { version: headVersion, epoch, itemCount, versionSum };
    const cursor = await of.store.cursor();
    if (cursor.since === at.version && cursor.epoch === epoch) {
      const held = await of.store.held();
      return { at, held, complete: sameHeld(held, at) };
    }
    await of.catchUp();
  }
  return null;
}
