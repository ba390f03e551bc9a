/**
 * Writes the records of an export into a vault. The result for an item depends only on the record and on the item's
 * present state, so that an interrupted import can be repeated and continues where it stopped.
 */
import { CryptoRefusal } from '../../crypto/refusal.js';
import type { Sodium } from '../../crypto/sodium.js';
import { type Clock, delay } from '../../protocol/clock.js';
import { asError, errorCode } from '../../protocol/error-code.js';
import type { ContentType } from '../../protocol/item.js';
import { BINS_MAX, SERVICE_NAME } from '../../protocol/limits.js';
import { concat, lengthPrefixed } from '../../protocol/bytes.js';
import { portionsOf, type BlobSource } from '../blobs/source.js';
import type { Device } from '../device.js';
import { ApiError, ClientError, isConflict, isDamaged, NetworkError, QueuedError } from '../errors.js';
import type { BinView, ItemView } from '../events.js';
import { holdsFile, PAYLOAD_MAX } from '../payloads/shapes.js';
import { FINAL_REFUSALS } from '../refusals.js';
import { randomPart, timePart } from '../ulid.js';
import { contentOf } from './content-parts.js';
import { ArchiveError } from './records.js';
import type { ArchivedBin, ArchivedItem, ArchiveManifest, ArchiveRecord } from './records.js';

/** The content of an export, after one complete read. */
export interface Survey {
  readonly manifest: ArchiveManifest;
  /** By id; undefined for bins without a record, which only items refer to. */
  readonly bins: ReadonlyMap<string, ArchivedBin | undefined>;
  readonly items: number;
  readonly types: ReadonlyMap<ContentType, number>;
}

/** Reads all records: only the end proves that an export is complete and intact. Throws `ArchiveError`. */
export async function surveyOf(records: AsyncIterable<ArchiveRecord>): Promise<Survey> {
  let manifest: ArchiveManifest | undefined;
  const bins = new Map<string, ArchivedBin | undefined>();
  const types = new Map<ContentType, number>();
  let items = 0;
  for await (const record of records) {
    if (record.record === 'manifest') manifest = record;
    if (record.record === 'bin') bins.set(record.id, record);
    if (record.record === 'item') {
      items++;
      types.set(record.type, (types.get(record.type) ?? 0) + 1);
      if (!bins.has(record.bin)) bins.set(record.bin, undefined);
    }
    if (bins.size > BINS_MAX) throw new ArchiveError('bad_record', 'it has too many bins');
  }
  if (manifest === undefined) throw new ArchiveError('bad_record', 'it does not say which vault it is of');
  return { manifest, bins, items, types };
}

/** Number of items by outcome. */
const noCounts = () => ({
  /** Stored by the server. */
  written: 0,
  /** Under a new id, since the old one is deleted in this vault: written now, waiting, or here already. */
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

/** Most writes in flight: two full batches, one being sent and one being filled. */
const WINDOW = 200;
/** Most writes in flight while offline, which are only put into the outbox. */
const WINDOW_OFFLINE = 5_000;
/** How long a rate-limited import waits for progress before the rest is left in the outbox. */
const STALL_MS = 2 * 60_000;
/** Most slugs tried for a bin whose own slug is taken. */
const SLUG_TRIES = 20;

/** Content that is stored temporarily while its item is written. */
export interface Spooled extends BlobSource {
  close(): Promise<void>;
}

/** The parameters of an import. */
interface ImporterOptions {
  readonly sodium: Sodium;
  readonly clock: Clock;
  /** Replaces items that differ, even newer ones. */
  readonly overwrite: boolean;
  /** Reads the content of one item to its end and keeps it. */
  readonly spool: (content: AsyncIterable<Uint8Array>) => Promise<Spooled>;
  /** Called when the import starts to wait because the server limits the rate. */
  readonly onPatience?: () => void;
  /** Ends transfers and waits. */
  readonly signal: AbortSignal;
}

/** One import. */
export class Importer {
  readonly counts = noCounts();
  private readonly underWay = new Set<Promise<void>>();
  /** Ids of the items that do not verify here: they are replaced, whatever time the server gives them. */
  private hidden: ReadonlySet<string> = new Set();
  /** Ids whose write waits in the outbox. */
  private readonly queued = new Set<string>();
  private stopped: Error | undefined;
  /** Writes go into the outbox only and are not awaited: the server is unreachable, or accepted nothing for long. */
  private offline = false;
  private rateLimited: Promise<void> | undefined;
  private stalled = false;
  private readonly movers: (() => void)[] = [];
  private readonly ends: readonly (() => void)[];

  constructor(
    private readonly device: Device,
    private readonly options: ImporterOptions,
  ) {
    this.ends = [
      device.on('sent', ({ id }) => this.settled(id, undefined)),
      device.on('rejected', ({ id, error }) => this.settled(id, error)),
    ];
  }

  /**
   * Creates the bins that are missing in the server's list `existing`, and names those without a name. Throws
   * `ClientError` `too_many` before any is created.
   */
  async bins(wanted: Survey['bins'], existing: readonly BinView[]): Promise<void> {
    const missing = [...wanted].filter(([id]) => existing.every((bin) => bin.id !== id));
    if (existing.length + missing.length > BINS_MAX)
      throw new ClientError('too_many', `there would be more than ${BINS_MAX} bins`);
    for (const [id, bin] of missing) {
      await this.createBin(id, bin);
      this.counts.bins++;
    }
    for (const bin of existing) {
      const label = wanted.get(bin.id)?.label ?? null;
      if (bin.label === null && bin.readable && label !== null) await this.device.bins.rename(bin.id, label);
    }
  }

  /**
   * Writes all items of the records, calling `onTaken` after each; `finish` awaits the writes still in flight when this
   * resolves. Throws as `onTaken`, and errors that end the whole import.
   */
  async items(records: AsyncGenerator<ArchiveRecord>, onTaken?: () => void): Promise<void> {
    this.hidden = new Set((await this.device.hidden()).map(({ id }) => id));
    // Not `for await`: the records that follow an item are read as its content.
    for (let next = await records.next(); next.done !== true; next = await records.next()) {
      const item = next.value;
      if (item.record !== 'item') continue;
      if (await this.wants(item)) {
        const content = await this.options.spool(contentOf(records, item.content ?? 0));
        try {
          await this.take(item, content);
        } finally {
          await content.close();
        }
      } else await this.take(item);
      onTaken?.();
    }
  }

  /** Starts the write of an item, after waiting for room. `content` is in use until this resolves. */
  private async take(item: ArchivedItem, content?: BlobSource): Promise<void> {
    if (item.blob && item.content === null) {
      this.counts.blobs++;
      return;
    }
    await this.rateLimited;
    const room = (): boolean => this.underWay.size < (this.offline ? WINDOW_OFFLINE : WINDOW);
    while (!room() && this.stopped === undefined) await Promise.race(this.underWay);
    if (this.stopped !== undefined) throw this.stopped;
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

  /** Removes the listeners. Must be called in every case. */
  close(): void {
    for (const end of this.ends) end();
  }

  private async put(item: ArchivedItem, content: BlobSource | undefined): Promise<void> {
    const { device } = this;
    for (let round = 0; round < ID_TRIES; round++) {
      const id = round === 0 ? item.id : renewedId(this.options.sodium, item.id, round);
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
    const outcome = unwritten(item, here, this.options.overwrite);
    if (outcome !== undefined) return outcome;
    // The item was present when `wants` was called and was removed since: the next run imports it.
    if (item.blob && content === undefined) return 'same';
    const { bin: binId, type, ts } = item;
    const what =
      content === undefined || holdsFile(type)
        ? { payload: item.payload ?? {}, content }
        : { payload: await payloadIn(content) };
    const { signal } = this.options;
    const onConflict = this.hidden.has(id) ? 'overwrite' : 'fail';
    await this.device.put({ id, binId, type, ts, ...what, signal, onConflict, asIs: true });
    return 'written';
  }

  /** True where the item will be written, and so needs its content. */
  private async wants(item: ArchivedItem): Promise<boolean> {
    if (item.content === null) return false;
    try {
      return unwritten(item, await this.device.get(item.id), this.options.overwrite) === undefined;
    } catch (error) {
      // `put` counts it.
      if (isDamaged(error)) return false;
      throw error;
    }
  }

  /** Records a queued write. The import waits for a server that limits the rate, not for an unreachable one. */
  private wait({ id, cause }: QueuedError): void {
    this.queued.add(id);
    this.offline = this.stalled || cause instanceof NetworkError;
    if (this.offline || this.rateLimited !== undefined) return;
    this.options.onPatience?.();
    this.rateLimited = this.untilMoved().then((moved) => {
      this.rateLimited = undefined;
      this.stalled = !moved;
    });
  }

  /** Handles a change that left the outbox: sent, or refused permanently. */
  private settled(id: string, error: Error | undefined): void {
    this.offline = false;
    this.stalled = false;
    for (const moved of this.movers.splice(0)) moved();
    if (!this.queued.delete(id)) return;
    if (error === undefined) this.counts.written++;
    else this.refused(errorCode(error) || error.name);
  }

  /** True at the next change that leaves the outbox; false after `STALL_MS`, or when the signal is aborted. */
  private untilMoved(): Promise<boolean> {
    const { clock, signal } = this.options;
    const stop = new AbortController();
    const limits = AbortSignal.any([stop.signal, signal]);
    const moved = new Promise<boolean>((resolve) => this.movers.push(() => resolve(true)));
    const late = delay(clock, STALL_MS, limits).then(
      () => false,
      () => false,
    );
    return Promise.race([moved, late]).finally(() => stop.abort());
  }

  private failed(error: Error): void {
    if (error instanceof ApiError && OF_ONE_ITEM.has(error.code)) this.refused(error.code);
    else if (error instanceof CryptoRefusal && error.reason === 'too_large') this.refused('item_too_large');
    else if (isDamaged(error)) this.refused('damaged_item');
    else if (error instanceof RangeError) this.refused('validation');
    else this.stopped ??= error;
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
        await this.device.bins.create(id, label, tried === '' ? undefined : tried);
        return;
      } catch (error) {
        // Another bin has the slug. Items refer to the id and users see the name, so the slug may change.
        if (!isConflict(error) || attempt >= SLUG_TRIES) throw error;
      }
    }
  }
}

/** Refusals that concern one item only: the import continues. */
const OF_ONE_ITEM: ReadonlySet<string> = new Set([...FINAL_REFUSALS, 'blob_too_large']);

/** Most ids tried for an item that was deleted, imported and deleted again. */
const ID_TRIES = 50;

/** The new id of a deleted item: deterministic, and with the time part of the old one. */
export function renewedId(sodium: Sodium, id: string, round: number): string {
  const hash = sodium.blake2b(16, lengthPrefixed(`${SERVICE_NAME}-archive-id-v1`, id, String(round)));
  return timePart(id) + randomPart(hash);
}

/** JSON with sorted keys, so that equal content gives equal text. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  const fields = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonical(field)}`).join(',')}}`;
}

/** For a blob the time is compared too, because files of the same name and size may differ. */
const isSame = (item: ArchivedItem, here: ItemView): boolean =>
  item.bin === here.binId &&
  item.type === here.type &&
  item.blob === (here.blob !== null) &&
  (!item.blob || item.ts === here.ts) &&
  canonical(item.payload) === canonical(here.payload);

/** Why an item is not written; undefined: it is written. `overwrite`: newer items are replaced too. */
function unwritten(item: ArchivedItem, here: ItemView | undefined, overwrite: boolean): 'same' | 'newer' | undefined {
  if (here === undefined) return undefined;
  if (isSame(item, here)) return 'same';
  return !overwrite && here.ts >= item.ts ? 'newer' : undefined;
}

/** The JSON of a payload that was stored as a blob. */
async function payloadIn(content: BlobSource): Promise<Uint8Array> {
  if (content.size > PAYLOAD_MAX) throw new CryptoRefusal('too_large', `a payload may have ${PAYLOAD_MAX} bytes`);
  const parts: Uint8Array[] = [];
  for await (const part of portionsOf(content)) parts.push(part);
  return concat(parts);
}
