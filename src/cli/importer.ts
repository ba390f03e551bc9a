/**
 * Brings the records of an export into a vault. What it does to an item depends on the item's state here and on the
 * record alone, so that running it again after an interruption goes on where it stopped.
 */
import { asError, errorCode } from '../protocol/error-code.js';
import { BINS_MAX, DEFAULT_BIN, SERVICE_NAME } from '../protocol/limits.js';
import { concat, lengthPrefixed } from '../protocol/bytes.js';
import type { ArchivedBin, ArchivedItem } from '../sdk/archive/records.js';
import { portionsOf, type BlobSource } from '../sdk/blobs/source.js';
import { PAYLOAD_MAX, holdsFile } from '../sdk/payloads/shapes.js';
import { ApiError, ClientError, isPassing, NetworkError, QueuedError } from '../sdk/errors.js';
import type { ItemView } from '../sdk/events.js';
import { delay } from '../protocol/clock.js';
import { randomPart, timePart } from '../sdk/ulid.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import type { Context, OpenDevice } from './context.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

/** What became of the items, by number. */
const noCounts = () => ({
  /** With the server now. */
  written: 0,
  /** Of those, and of `same`: under a new id, since the old one was deleted here. */
  renamed: 0,
  /** Here already. */
  same: 0,
  /** Kept as it is here, since it is newer. */
  newer: 0,
  /** Left out: its content is a file that this export does not hold. */
  blobs: 0,
  /** In the outbox: sent when the server is back. */
  waiting: 0,
  /** Refused for good, by code. */
  refused: new Map<string, number>(),
  bins: 0,
});

/** See above. */
export type ImportCounts = ReturnType<typeof noCounts>;

type Outcome = 'written' | 'same' | 'newer';

/** Enough for two full batches: one under way, one gathering. */
const WINDOW = 200;
/** Without a server nothing is acknowledged, so there is no use in waiting for the first before the next. */
const WINDOW_OFFLINE = 5_000;
/** How long a server that asks for patience is waited for before the rest is left to the outbox. */
const PATIENCE_MS = 2 * 60_000;
const UNREACHABLE = [
  'The server cannot be reached.',
  'Run the same command again when it is back: it goes on where it stopped.',
] as const;
/** How often a deleted item may have come back and been deleted again. */
const ROUNDS = 50;
const SLUGS = 20;

/** Refusals of one item, which say nothing of the next. */
const OF_ONE_ITEM: ReadonlySet<string> = new Set([
  'validation',
  'unknown_type',
  'item_too_large',
  'payload_too_large',
  'item_not_found',
  'blob_not_found',
  'blob_too_large',
  'bin_not_found',
  'conflict',
]);

/** The id under which a deleted item comes back: the same at each run, with the old one's time. */
export function renewedId(sodium: Sodium, id: string, round: number): string {
  const hash = sodium.blake2b(16, lengthPrefixed(`${SERVICE_NAME}-archive-id-v1`, id, String(round)));
  return timePart(id) + randomPart(hash);
}

/** JSON with its keys in order: equal for equal content. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  const fields = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonical(field)}`).join(',')}}`;
}

/** Of a blob the time decides too: files of one name and size may differ. */
const isSame = (item: ArchivedItem, here: ItemView): boolean =>
  item.bin === here.binId &&
  item.type === here.type &&
  item.blob === (here.blob !== null) &&
  (!item.blob || item.ts === here.ts) &&
  canonical(item.payload) === canonical(here.payload);

/** One import; see above. */
export class Importer {
  readonly counts = noCounts();
  private readonly underWay = new Set<Promise<void>>();
  /** Ids whose write waits in the outbox. */
  private readonly queued = new Set<string>();
  private stopped: Error | undefined;
  private offline = false;
  private patience: Promise<void> | undefined;
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

  /** Makes the bins that are missing. Throws `CommandError` where they cannot be made now: then nothing was written. */
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
   * Takes an item, and its content where `wants` said so: that is used until this resolves. Resolves when there is room
   * for the next; throws what ends the whole import.
   */
  async take(item: ArchivedItem, content?: BlobSource): Promise<void> {
    const { terminal } = this.context;
    if (item.blob && item.content === null) {
      this.counts.blobs++;
      return;
    }
    await this.patience;
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

  /** Waits for what is under way, and for what the server will take in a while. Throws what ends the import. */
  async finish(): Promise<void> {
    await Promise.all(this.underWay);
    for (let moves = !this.offline; moves && this.queued.size > 0;) moves = await this.untilMoved();
    this.counts.waiting = this.queued.size;
    if (this.stopped !== undefined) throw this.stopped;
  }

  /** Ends the listening, in any case. */
  close(): void {
    for (const end of this.ends) end();
  }

  private async put(item: ArchivedItem, content: BlobSource | undefined): Promise<void> {
    const { device } = this.open;
    const { sodium } = this.context.platform;
    for (let round = 0; round < ROUNDS; round++) {
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
    const standing = this.standing(item, here);
    if (standing !== undefined) return standing;
    // It was here when its content was asked for, and is not any more: the next run brings it.
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

  /** What becomes of an item that is here already; undefined: it is written. */
  private standing(item: ArchivedItem, here: ItemView | undefined): Outcome | undefined {
    if (here === undefined) return undefined;
    if (isSame(item, here)) return 'same';
    return !this.overwrite && here.ts >= item.ts ? 'newer' : undefined;
  }

  /** True where an item's content will be needed: what is here already need not be put aside again. */
  async wants(item: ArchivedItem): Promise<boolean> {
    return item.content !== null && this.standing(item, await this.open.device.get(item.id)) === undefined;
  }

  /** It is in the outbox. A server that is there and asks for patience gets it; one that is not is not waited for. */
  private wait({ id, cause }: QueuedError): void {
    this.queued.add(id);
    this.offline = cause instanceof NetworkError;
    if (this.offline || this.patience !== undefined) return;
    this.context.terminal.note('The server asks for patience. Waiting.');
    this.patience = this.untilMoved().then(() => {
      this.patience = undefined;
    });
  }

  /** A change of the outbox is with the server, or was refused for good. */
  private settled(id: string, error: Error | undefined): void {
    this.offline = false;
    for (const moved of this.movers.splice(0)) moved();
    if (!this.queued.delete(id)) return;
    if (error === undefined) this.counts.written++;
    else this.refused(errorCode(error) || error.name);
  }

  /** True at the next change that leaves the outbox; false when none does for long, or the user has had enough. */
  private untilMoved(): Promise<boolean> {
    const { terminal, platform } = this.context;
    const stop = new AbortController();
    const limits = AbortSignal.any([stop.signal, terminal.interrupted]);
    const moved = new Promise<boolean>((resolve) => this.movers.push(() => resolve(true)));
    const late = delay(platform.clock, PATIENCE_MS, limits).then(
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
        // The slug is another bin's here: the name is what people see, and the id is what items name.
        if (!(error instanceof ApiError && error.code === 'conflict') || attempt >= SLUGS) throw error;
      }
    }
  }

  /** Without a server no bin can be made, and an item for a bin that is not there would be refused later, unseen. */
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

/** A payload that lay in a blob, as JSON. */
async function payloadIn(content: BlobSource): Promise<Uint8Array> {
  if (content.size > PAYLOAD_MAX) throw new CryptoRefusal('too_large', `a payload may have ${PAYLOAD_MAX} bytes`);
  const parts: Uint8Array[] = [];
  for await (const part of portionsOf(content)) parts.push(part);
  return concat(parts);
}
