/**
 * Writes the records of an export into a vault. The result for an item depends only on the record and on the item's
 * present state, so that an interrupted import can be repeated and continues where it stopped.
 */
import { asError, errorCode } from '../protocol/error-code.js';
import { BINS_MAX, DEFAULT_BIN } from '../protocol/limits.js';
import { ID_TRIES, OF_ONE_ITEM, payloadIn, renewedId, unwritten } from '../sdk/archive/import-rules.js';
import type { ArchivedBin, ArchivedItem } from '../sdk/archive/records.js';
import type { BlobSource } from '../sdk/blobs/source.js';
import { holdsFile } from '../sdk/payloads/shapes.js';
import { ApiError, ClientError, isPassing, NetworkError, QueuedError } from '../sdk/errors.js';
import type { ItemView } from '../sdk/events.js';
import { delay } from '../protocol/clock.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { Context, OpenDevice } from './context.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

/** Number of items by outcome. */
const noCounts = () => ({
  /** Stored by the server. */
  written: 0,
  /** Part of `written` and `same`: under a new id, since the old one is deleted in this vault. */
  renamed: 0,
  /** Present already. */
  same: 0,
  /** Left unchanged, since the present item is newer. */
  newer: 0,
  /** Left out: files whose content is not in the export. */
  blobs: 0,
  /** Queued in the outbox. */
  waiting: 0,
  /** Refused permanently, by code. */
  refused: new Map<string, number>(),
  bins: 0,
});

/** Number of items by outcome, and of bins that were created. */
export type ImportCounts = ReturnType<typeof noCounts>;

type Outcome = 'written' | 'same' | 'newer';

/** Writes in flight: two full batches, one on its way and one being filled. */
const WINDOW = 200;
/** Writes in flight without a server, which only go into the outbox. */
const WINDOW_OFFLINE = 5_000;
/** How long a rate-limited import waits for progress before the rest is left in the outbox. */
const STALL_MS = 2 * 60_000;
const UNREACHABLE = [
  'The server cannot be reached.',
  'Run the same command again when it is back: it goes on where it stopped.',
] as const;
/** Slugs tried for a bin whose own slug is taken. */
const SLUG_TRIES = 20;

/** One import. */
export class Importer {
  readonly counts = noCounts();
  private readonly underWay = new Set<Promise<void>>();
  /** Ids whose write waits in the outbox. */
  private readonly queued = new Set<string>();
  private stopped: Error | undefined;
  private offline = false;
  private rateLimited: Promise<void> | undefined;
  private readonly movers: (() => void)[] = [];
  private readonly ends: readonly (() => void)[];

  constructor(
    private readonly context: Context,
    private readonly open: OpenDevice,
    private readonly overwrite: boolean,
  ) {
    this.ends = [
      open.device.on('sent', ({ id }) => this.settled(id, undefined)),
      open.device.on('rejected', ({ id, error }) => this.settled(id, error)),
    ];
  }

  /** Creates the missing bins. Throws `CommandError` where that is not possible now; nothing was written then. */
  async bins(wanted: ReadonlyMap<string, ArchivedBin | undefined>): Promise<void> {
    const { bins } = this.open.device;
    const existing = await bins.list().catch((error: unknown) => {
      if (!isPassing(error)) throw error;
      return undefined;
    });
    if (existing === undefined) return this.expectKnown([...wanted.keys()]);
    const missing = [...wanted].filter(([id]) => existing.every((bin) => bin.id !== id));
    if (existing.length + missing.length > BINS_MAX)
      throw new CommandError(EXIT.refused, `There would be more than ${BINS_MAX} bins.`, 'Remove some and try again.');
    for (const [id, bin] of missing) {
      await this.createBin(id, bin);
      this.counts.bins++;
    }
    for (const bin of existing) {
      const label = wanted.get(bin.id)?.label ?? null;
      if (bin.label === null && bin.readable && label !== null) await bins.rename(bin.id, label);
    }
  }

  /**
   * Writes an item, with its content where `wants` returned true; the content is in use until this resolves. Resolves when
   * there is room for the next item. Throws errors that end the whole import.
   */
  async take(item: ArchivedItem, content?: BlobSource): Promise<void> {
    const { terminal } = this.context;
    if (item.blob && item.content === null) {
      this.counts.blobs++;
      return;
    }
    await this.rateLimited;
    const room = (): boolean => this.underWay.size < (this.offline ? WINDOW_OFFLINE : WINDOW);
    while (!room() && this.stopped === undefined) await Promise.race(this.underWay);
    if (this.stopped !== undefined) throw this.stopped;
    if (terminal.interrupted.aborted)
      throw new CommandError(EXIT.interrupted, 'Interrupted.', 'Run the same command again to go on.');
    const work: Promise<void> = this.put(item, content)
      .catch((error: unknown) => this.failed(asError(error)))
      .finally(() => this.underWay.delete(work));
    this.underWay.add(work);
    if (item.blob) await work;
  }

  /** Waits for writes in flight, and for the outbox while it shrinks. Throws errors that end the import. */
  async finish(): Promise<void> {
    await Promise.all(this.underWay);
    for (let moves = !this.offline; moves && this.queued.size > 0;) moves = await this.untilMoved();
    this.counts.waiting = this.queued.size;
    if (this.stopped !== undefined) throw this.stopped;
  }

  /** Removes the listeners. Called in every case. */
  close(): void {
    for (const end of this.ends) end();
  }

  private async put(item: ArchivedItem, content: BlobSource | undefined): Promise<void> {
    const { device } = this.open;
    const { sodium } = this.context.platform;
    for (let round = 0; round < ID_TRIES; round++) {
      const id = round === 0 ? item.id : renewedId(sodium, item.id, round);
      const renamed = round > 0 ? 1 : 0;
      try {
        const outcome = await this.putAs(id, { item, content }, await device.get(id));
        this.counts[outcome]++;
        this.counts.renamed += outcome === 'newer' ? 0 : renamed;
        return;
      } catch (error) {
        if (error instanceof QueuedError) {
          this.counts.renamed += renamed;
          this.wait(error);
          return;
        }
        if (!(error instanceof ClientError && error.code === 'deleted_item')) throw error;
      }
    }
    this.refused('deleted_item');
  }

  private async putAs(
    id: string,
    { item, content }: { readonly item: ArchivedItem; readonly content: BlobSource | undefined },
    here: ItemView | undefined,
  ): Promise<Outcome> {
    const outcome = unwritten(item, here, this.overwrite);
    if (outcome !== undefined) return outcome;
    // It was present when `wants` was called, and has been removed since: the next run imports it.
    if (item.blob && content === undefined) return 'same';
    const { bin: binId, type, ts } = item;
    const what =
      content === undefined || holdsFile(type)
        ? { payload: item.payload ?? {}, content }
        : { payload: await payloadIn(content) };
    const signal = this.context.terminal.interrupted;
    await this.open.device.put({ id, binId, type, ts, ...what, signal, asIs: true });
    return 'written';
  }

  /** True where the item will be written, and so needs its content. */
  async wants(item: ArchivedItem): Promise<boolean> {
    return item.content !== null && unwritten(item, await this.open.device.get(item.id), this.overwrite) === undefined;
  }

  /** The write is queued. A server that limits the rate is waited for, one that cannot be reached is not. */
  private wait({ id, cause }: QueuedError): void {
    this.queued.add(id);
    this.offline = cause instanceof NetworkError;
    if (this.offline || this.rateLimited !== undefined) return;
    this.context.terminal.note('The server asks for patience. Waiting.');
    this.rateLimited = this.untilMoved().then(() => {
      this.rateLimited = undefined;
    });
  }

  /** A change has left the outbox: sent, or refused permanently. */
  private settled(id: string, error: Error | undefined): void {
    this.offline = false;
    for (const moved of this.movers.splice(0)) moved();
    if (!this.queued.delete(id)) return;
    if (error === undefined) this.counts.written++;
    else this.refused(errorCode(error) || error.name);
  }

  /** True at the next change that leaves the outbox; false after `STALL_MS`, or when the user interrupts. */
  private untilMoved(): Promise<boolean> {
    const { terminal, platform } = this.context;
    const stop = new AbortController();
    const limits = AbortSignal.any([stop.signal, terminal.interrupted]);
    const moved = new Promise<boolean>((resolve) => this.movers.push(() => resolve(true)));
    const late = delay(platform.clock, STALL_MS, limits).then(
      () => false,
      () => false,
    );
    return Promise.race([moved, late]).finally(() => stop.abort());
  }

  private failed(error: Error): void {
    if (error instanceof ApiError && OF_ONE_ITEM.has(error.code)) this.refused(error.code);
    else if (error instanceof CryptoRefusal && error.reason === 'too_large') this.refused('item_too_large');
    else if (error instanceof RangeError) this.refused('validation');
    else
      this.stopped ??= isPassing(error) ? new CommandError(EXIT.unavailable, ...UNREACHABLE, { cause: error }) : error;
  }

  private refused(code: string): void {
    this.counts.refused.set(code, (this.counts.refused.get(code) ?? 0) + 1);
  }

  private async createBin(id: string, bin: ArchivedBin | undefined): Promise<void> {
    const slug =
      bin?.slug ??
      id
        .toLowerCase()
        .replace(/[^a-z0-9-]+/g, '-')
        .replace(/^-+/, '')
        .slice(0, 63);
    const label = bin?.label ?? { name: id };
    for (let attempt = 1; ; attempt++) {
      const tried = attempt === 1 ? slug : `${slug.slice(0, 59)}-${attempt}`;
      try {
        await this.open.device.bins.create(id, label, tried === '' ? undefined : tried);
        return;
      } catch (error) {
        // Another bin has the slug. Items refer to the id and users see the name, so the slug may change.
        if (!(error instanceof ApiError && error.code === 'conflict') || attempt >= SLUG_TRIES) throw error;
      }
    }
  }

  /** Without a server no bin can be created, and items of a missing bin would be refused later, unnoticed. */
  private async expectKnown(wanted: readonly string[]): Promise<void> {
    const known = new Set([DEFAULT_BIN]);
    for await (const entry of this.open.store.entries()) if (entry.state === 'live') known.add(entry.row.binId);
    const missing = wanted.filter((id) => !known.has(id));
    if (missing.length === 0) return;
    throw new CommandError(
      EXIT.unavailable,
      `The server cannot be reached, and ${missing.length} of the bins are not known here. Nothing was written.`,
      'Run the command again when the server is back.',
    );
  }
}
