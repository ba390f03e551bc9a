/**
 * Everything that comes from the server, one after the other: frames are gathered into batches, applied, and what
 * follows from a `caught_up` or a `reset` is done before the next frame is looked at.
 */
import type { DeviceApi } from './api.js';
import type { Cursor } from './cursor.js';
import { ProtocolError } from './errors.js';
import { asError, type Emit } from './events.js';
import type { Outbox } from './outbox.js';
import type { Replica } from './replica.js';
import type { Sender } from './sender.js';
import type { Held } from './store.js';
import type { Change, Completeness, Frame } from './wire.js';

/** What the stream is applied to, and what it may ask for. */
export interface SyncOptions {
  readonly api: DeviceApi;
  readonly replica: Replica;
  readonly outbox: Outbox;
  readonly sender: Sender;
  readonly emit: Emit;
  /** Breaks the connection and connects anew: what was lost on the way comes again. */
  readonly reconnect: (reason: string) => void;
  /** Stops or resumes the reading of frames. */
  readonly flow: (reading: boolean) => void;
  /** Devices and bins are read again. */
  readonly refresh: () => Promise<void>;
}

/** Applied and stored in one step. */
const BATCH_MAX = 256;
/** Above this many frames in hand, reading stops until half of them are done. */
const QUEUE_MAX = 2_000;
/** A browser's socket cannot be stopped: with so many in hand they are let go, and come again from the cursor. */
const QUEUE_FULL = 4 * QUEUE_MAX;

type StreamFrame = Extract<Frame, { kind: 'change' | 'caught_up' | 'reset' }>;

/** Applies the stream; see above. */
export class Sync {
  private queue: StreamFrame[] = [];
  private tail: Promise<void> = Promise.resolve();
  private draining = false;
  /** Set by the first failure after a connection began: what is queued behind it is out of order. */
  private broken = false;
  private afterReset = false;
  /** From a reset to the next `caught_up` of the same connection. */
  private begunAnew = false;
  private refetched = false;
  private unlisted: readonly string[] = [];
  private waiting: { readonly caughtUp: Promise<void>; readonly resolve: () => void } | undefined;

  constructor(private readonly options: SyncOptions) {}

  /** A frame of the ordered stream. */
  receive(frame: StreamFrame): void {
    if (this.broken) return;
    if (this.queue.length >= QUEUE_FULL) {
      this.broken = true;
      this.queue = [];
      this.options.reconnect('frames come faster than they can be stored');
      return;
    }
    this.queue.push(frame);
    if (this.queue.length >= QUEUE_MAX) this.options.flow(false);
    if (this.draining) return;
    this.draining = true;
    void this.exclusive(() => this.drain());
  }

  /** A connection says `hello`: the cursor it starts from, once all frames of the one before are done with. */
  begin(): Promise<Cursor> {
    return this.exclusive(async () => {
      this.queue = [];
      this.broken = false;
      this.begunAnew = false;
      this.options.replica.replaying();
      const cursor = await this.options.replica.cursor();
      // A history with a name and nothing seen of it: a reset whose replay was cut off, perhaps by the end of the program.
      if (cursor.since === 0 && cursor.epoch !== null) this.resetting();
      return cursor;
    });
  }

  /** Resolves at the next `caught_up` that was dealt with. */
  caughtUp(): Promise<void> {
    if (this.waiting === undefined) {
      let resolve: () => void = () => undefined;
      const caughtUp = new Promise<void>((settled) => {
        resolve = settled;
      });
      this.waiting = { caughtUp, resolve };
    }
    return this.waiting.caughtUp;
  }

  /** Catches up over HTTP instead of a socket, from the cursor to the head. */
  pull(): Promise<void> {
    return this.exclusive(async () => {
      this.begunAnew = false;
      for (let resets = 0; ;) {
        const { since, epoch } = await this.options.replica.cursor();
        const page = await this.options.api.page({ since, epoch });
        const another = page.reset || (epoch !== null && page.epoch !== epoch);
        // A server that began anew on every page would be read for ever.
        if (another && ++resets > 1)
          throw new ProtocolError('the epoch changed more than once during a listing', { code: 'epoch_changed' });
        if (another) await this.reset(page.epoch);
        await this.options.replica.applyListed(page.items, page.nextSince);
        if (page.hasMore) continue;
        await this.options.replica.settlePulled({ version: page.nextSince, epoch: page.epoch });
        await this.settled(page.nextSince, null);
        return;
      }
    });
  }

  /** Reads the whole history again and compares; for a user who does not trust what is shown. */
  async resync(): Promise<void> {
    this.refetched = false;
    await this.exclusive(() => this.refetch());
    this.options.reconnect('everything was read again');
  }

  /** Runs `work` alone: neither frames nor another listing are applied meanwhile. */
  private exclusive<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.tail.then(work);
    this.tail = turn.then(
      () => undefined,
      () => undefined,
    );
    return turn;
  }

  private async drain(): Promise<void> {
    try {
      while (this.queue.length > 0) {
        await this.next();
        if (this.queue.length <= QUEUE_MAX / 2) this.options.flow(true);
      }
    } catch (error) {
      this.broken = true;
      this.queue = [];
      this.options.flow(true);
      this.options.emit('problem', { error: asError(error) });
      this.options.reconnect('frames could not be applied');
    } finally {
      this.draining = false;
    }
  }

  /** The changes at the front of the queue as one batch, or the one frame there that is something else. */
  private async next(): Promise<void> {
    const changes: Change[] = [];
    for (const frame of this.queue) {
      if (frame.kind !== 'change' || changes.length >= BATCH_MAX) break;
      changes.push(frame.change);
    }
    if (changes.length > 0) {
      this.queue.splice(0, changes.length);
      await this.options.replica.apply(changes);
      return;
    }
    const frame = this.queue.shift();
    if (frame?.kind === 'reset') await this.reset(frame.epoch);
    if (frame?.kind === 'caught_up') await this.settle(frame.at);
  }

  private async reset(epoch: string): Promise<void> {
    // A reset goes over the whole store. After one comes its replay, never another.
    if (this.begunAnew) throw new ProtocolError('a reset within the replay of another', { code: 'epoch_changed' });
    this.begunAnew = true;
    this.resetting();
    await this.options.replica.reset(epoch);
  }

  private resetting(): void {
    this.afterReset = true;
    this.options.sender.hold();
  }

  private async settle(at: Completeness): Promise<void> {
    const outcome = await this.options.replica.settle(at);
    if (outcome === undefined) {
      await this.reset(at.epoch);
      throw new ProtocolError('caught_up names another epoch than the replay before it', { code: 'epoch_changed' });
    }
    const { complete, held } = outcome;
    if (!complete && !this.refetched) {
      await this.refetch();
      this.refetched = true;
      // Only another replay brings a count to compare with at exactly the version that is held then.
      this.options.reconnect('everything was read again: is it complete now?');
      return;
    }
    if (!complete || this.unlisted.length > 0) this.missing(at, held);
    if (complete) this.refetched = false;
    this.unlisted = [];
    await this.settled(at.version, complete);
  }

  private missing(at: Completeness, held: Held): void {
    const expected = { itemCount: at.itemCount, versionSum: at.versionSum };
    this.options.emit('missing', { expected, held, unlisted: this.unlisted });
  }

  /** What a history that is complete up to here makes possible: own changes go out, and the rest is read again. */
  private async settled(version: number, complete: boolean | null): Promise<void> {
    if (this.afterReset) {
      this.afterReset = false;
      this.options.sender.abandoned(await this.options.outbox.rebase());
      const ids = await this.options.replica.unversioned();
      if (ids.length > 0) this.options.emit('orphaned', { ids });
    }
    this.begunAnew = false;
    this.options.sender.release();
    this.options.emit('caught_up', { version, complete });
    this.waiting?.resolve();
    this.waiting = undefined;
    this.options.refresh().catch((error: unknown) => this.options.emit('problem', { error: asError(error) }));
  }

  /**
   * Every item from 0, by listing. Versions only rise, so a row that changes while the pages are read comes again on a
   * later page: together they are exactly the state at the last page's head.
   */
  private async refetch(): Promise<void> {
    const { epoch } = await this.options.replica.cursor();
    const listed = new Set<string>();
    for (let since = 0, more = true; more;) {
      const page = await this.options.api.page({ since, epoch });
      // A listing that begins anew would have no end.
      if ((epoch !== null && page.epoch !== epoch) || (page.reset && since > 0))
        throw new ProtocolError('the epoch changed during a listing', { code: 'epoch_changed' });
      for (const { id } of page.items) listed.add(id);
      await this.options.replica.applyListed(page.items, page.hasMore ? null : page.nextSince);
      since = page.nextSince;
      more = page.hasMore;
      if (!more) this.unlisted = await this.options.replica.dropUnlisted(listed, since);
    }
  }
}
