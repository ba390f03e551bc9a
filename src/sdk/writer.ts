/**
 * Makes this device's changes: seals and tags them, determines the version they are based on, and submits them to the
 * sender. Changes are prepared one after the other, so that each sees the previous one.
 */
import type { ListedDevice } from '../crypto/device.js';
import { makeDeleteTag } from '../crypto/item-tag.js';
import { moveTag, openItem, type PlainPayload, rewrapItem, sealBlobItem, sealItem } from '../crypto/item.js';
import { payloadObject, type JsonObject } from '../crypto/payload.js';
import { CryptoRefusal, orRefusal } from '../crypto/refusal.js';
import type { ContentType, LiveItem } from '../protocol/item.js';
import { BATCH_WRITES_MAX } from '../protocol/limits.js';
import { Serial } from '../protocol/serial.js';
import type { BegunUploads } from './blobs/begun.js';
import type { Blobs } from './blobs/download.js';
import { bytesSource, type BlobSource, type TransferOptions } from './blobs/source.js';
import type { UploadedBlob } from './blobs/upload.js';
import { ApiError, ClientError, isConflict } from './errors.js';
import type { RewrapProgress } from './events.js';
import {
  cutPayload,
  wholePayload,
  checkedPayload,
  expectType,
  fieldsOf,
  holdsFile,
  PAYLOAD_INLINE_MAX,
} from './payloads/shapes.js';
import type { Stored } from './replies.js';
import type { DeviceList } from './device-list.js';
import { stateMet, type StateMet } from './refusals.js';
import type { Seen } from './outbox.js';
import type { OnRefused, Sender, Submitted } from './sender.js';
import type { Entry } from './store/store.js';
import { ulid } from './ulid.js';
import type { Core } from './core.js';

/** A new item, or new content of one. The transfer options are those of its upload, if there is one. */
export interface PutRequest extends TransferOptions {
  /** Absent: a new id is drawn. */
  readonly id?: string;
  readonly binId: string;
  readonly type: ContentType;
  /**
   * Stored in a blob if it is too large for an item, up to 16 MiB; not possible for `image`, `file`, `audio`, `video`.
   */
  readonly payload: PlainPayload;
  /** The bytes of the file that `payload` describes: for `image`, `file`, `audio` and `video` only. */
  readonly content?: BlobSource;
  /** Time of the content, ms; default: now. An import keeps the original times. */
  readonly ts?: number;
  /**
   * True: the payload is written unchecked. For payloads that a device of the user wrote before (an import); new ones
   * are checked against the shape of their type, so that every device can show them.
   */
  readonly asIs?: boolean;
  /** If another device changed the item concurrently: `fail` (default) with `conflict`, or overwrite its change. */
  readonly onConflict?: 'fail' | 'overwrite';
  readonly onKept?: OnKept;
  /**
   * Called when the change is dropped, because it was refused while this `put` waited, which then rejects. The store
   * keeps the change until the promise is fulfilled, so that a program that stores it elsewhere loses it at no moment.
   */
  readonly onRefused?: OnRefused;
}

/** Called when the change is stored durably on this device, which sends it next: as event `kept`, and for this one only. */
type OnKept = () => void;

/** The parameters of `rewrapMissing`. */
interface RewrapOptions {
  /** Ends the run between two batches. */
  readonly signal?: AbortSignal;
  /** Awaited between two batches, so that the rate limit leaves room for the user's own writes. */
  readonly pause?: () => Promise<void>;
  readonly onProgress?: (progress: RewrapProgress) => void;
}

/** An uploaded blob, and the `ts` of the item when the upload began. */
interface Attached extends UploadedBlob {
  readonly seen: number;
}

/** A `put` under way: what it writes, over which conflict, with which blob. */
interface Put {
  readonly id: string;
  readonly request: PutRequest;
  over: StateMet | null;
  attached: Attached | null;
}

/** The current state of an item: the entry of the stream, or the pending change on top of it. */
interface Latest {
  /** The version a change is based on; 0: the item does not exist; null: not acknowledged yet. */
  readonly base: number | null;
  readonly deleted: boolean;
  /** Of an item that does not verify: its last good state. */
  readonly row: LiveItem | null;
  readonly hidden?: boolean;
}

/** Attempts to overwrite an item that another device keeps changing with a blob that has to be uploaded again for each. */
const OVERWRITES_MAX = 3;

/** Makes all changes of this device. */
export class Writer {
  private readonly preparing = new Serial();

  constructor(
    private readonly options: Pick<
      Core,
      'identity' | 'store' | 'outbox' | 'sodium' | 'reader' | 'clock' | 'admissible'
    > & {
      readonly sender: Sender;
      readonly deviceList: DeviceList;
      readonly blobs: Pick<Blobs, 'upload'>;
      readonly begun: Pick<BegunUploads, 'learned'>;
    },
  ) {}

  /**
   * Creates or replaces an item. Resolves when the server has stored it durably. Throws `PayloadError` and
   * `UncertifiedDeviceError` (nothing was written), `ApiError`, `ClientError`, or `QueuedError` where it waits in the
   * outbox.
   *
   * A blob is uploaded first, which needs the server: nothing is queued while it is unreachable, and after an error of
   * `uploadBlob` nothing was written. If the source has an identity, the next `put` of that item and source continues
   * the upload, also in another run of the program. After any other error the upload is complete but the item was
   * refused, and the server removes the blob within a day or two. A queued change must be sent before that. One that
   * overwrites may be uploaded again for that; where the program ends meanwhile, event `rejected` reports it to the next.
   */
  async put(given: PutRequest): Promise<Stored> {
    // No await before the turn is taken: changes of one item are made in the order of the calls.
    const request = checked(given);
    const id = request.id ?? ulid(this.options.clock.now(), (length) => this.options.sodium.random(length));
    const source = sourceOf(request);
    const put: Put = { id, request, over: null, attached: null };
    // The store keeps what was refused until it is queued again, or the caller has kept it.
    const refused: { readonly why: Error; readonly release: (kept?: Promise<void>) => void }[] = [];
    const isRepeated = source !== null && request.onConflict === 'overwrite';
    const untilReleased: OnRefused = (why) => new Promise((release) => refused.push({ why, release }));
    const onRefused = isRepeated ? untilReleased : request.onRefused;
    try {
      for (let attempt = 0; ; attempt++) {
        if (source !== null) put.attached = await this.attach(source, put);
        try {
          return await this.changing(async () => {
            const submitted = await this.prepare(put, onRefused);
            for (const { release } of refused.splice(0)) release();
            return { outcome: this.learned(put, submitted.outcome) };
          }, request.onKept);
        } catch (error) {
          put.over = this.obstacle(request, attempt, error);
        }
      }
    } catch (error) {
      for (const { why, release } of refused) release(request.onRefused?.(why));
      throw error;
    } finally {
      if (put.attached !== null) this.options.sodium.memzero(put.attached.draft.key);
    }
  }

  /** The outcome; its begun upload is forgotten once the caller learns of it, which is not when the device is closed. */
  private async learned({ id, request, attached }: Put, outcome: Promise<Stored>): Promise<Stored> {
    const isClosed = (error: unknown): boolean => error instanceof ClientError && error.code === 'closed';
    const unheard = await outcome.then(() => false, isClosed);
    if (attached !== null && request.content?.identity !== undefined && !unheard)
      // Where it stays, the next run is told of an item that its user knows.
      await this.options.begun.learned({ id, ref: attached.ref }).catch(() => undefined);
    return outcome;
  }

  /** Throws `PayloadError` for a field that neither the type defines nor the current item has. */
  private expectFields(request: PutRequest, { row }: Latest): void {
    const { type, payload, asIs } = request;
    if (asIs === true || foreignFields(request).length === 0) return;
    const current = row && orRefusal(() => openItem(this.options.sodium, row, this.options.reader));
    const others = current === null || current instanceof CryptoRefusal ? [] : Object.keys(current);
    checkedPayload(type, objectOf(payload), others);
  }

  /** The state to overwrite after a conflict; throws `error` where it must not be overwritten. */
  private obstacle(request: PutRequest, attempt: number, error: unknown): StateMet {
    const wanted = request.onConflict === 'overwrite' && attempt < OVERWRITES_MAX;
    const over = wanted ? stateMet(error, this.options.clock.now()) : null;
    if (over === null) throw error;
    return over;
  }

  /** Uploads, or keeps an earlier upload if its `ts` is still late enough: the blob is bound to it. */
  private async attach(source: BlobSource, { id, request, over, attached: before }: Put): Promise<Attached> {
    // Checks before the upload, so that errors that prevent the write are found first.
    await this.options.deviceList.sealFor();
    const latest = await this.preparing.run(() => this.writable(id, (found) => found));
    this.expectFields(request, latest);
    const seen = latest.row?.ts ?? 0;
    const last = Math.max(seen, over?.ts ?? 0);
    if (before !== null) {
      if (before.draft.ts > last) return { ...before, seen };
      this.options.sodium.memzero(before.draft.key);
    }
    const ts = (): number => this.laterThan(request, latest, over);
    const fits = (begun: number): boolean =>
      begun > last && (request.ts ?? begun) === begun && this.options.admissible(begun) === begun;
    const uploaded = await this.options.blobs.upload({ id, type: request.type, ts, source, fits }, request);
    return { ...uploaded, seen };
  }

  /** Deletes an item, with the tag that distinguishes this from a delete by the server. Throws as `put`. */
  async delete(id: string, onKept?: OnKept): Promise<Stored> {
    const sig = makeDeleteTag(this.options.sodium, this.options.reader.masterKey, id);
    const prepare = (): Promise<Submitted> =>
      this.latest(id, ({ base }) => {
        if (base === 0) throw new ClientError('unknown_item', `there is no item ${id}`);
        return this.options.sender.submit({ kind: 'delete', id, sig, base });
      });
    return this.changing(prepare, onKept);
  }

  /**
   * Withdraws a delete that is still in the outbox, which restores the item. False where there is none, or where it is
   * being sent or was acknowledged and is therefore final. A delete whose reply was lost is still in the outbox and may
   * have taken effect; the stream then deletes the item here too.
   */
  async withdraw(id: string): Promise<boolean> {
    return this.preparing.run(() => this.options.sender.withdraw(id));
  }

  /** Moves an item to another bin, under a new tag. Throws as `put`, and `ClientError` `unknown_item` for a hidden one. */
  async move(id: string, binId: string, onKept?: OnKept): Promise<Stored> {
    const { sodium, reader, sender } = this.options;
    const prepare = (): Promise<Submitted> =>
      this.writable(id, ({ row, base, hidden }) => {
        // The server would move another state than the one whose tag this makes.
        if (row === null || hidden === true) throw new ClientError('unknown_item', `there is no item ${id}`);
        const sig = moveTag(sodium, row, { binId, masterKey: reader.masterKey });
        return sender.submit({ kind: 'move', id, base, row: { ...row, binId, sig } });
      });
    return this.changing(prepare, onKept);
  }

  /** Writes an item that the server's new history does not have again, with keys for the current devices. */
  async republish(id: string, onKept?: OnKept): Promise<Stored> {
    return this.changing(async () => {
      const { sodium, reader, deviceList, sender, identity } = this.options;
      const devices = await deviceList.recipients();
      return this.writable(id, ({ row, base }) => {
        if (row === null || base !== 0)
          throw new ClientError('unknown_item', `${id} is not an item that the server lost`);
        const payload = rewrapItem(sodium, row, { ...reader, devices });
        const again = { ...row, ...payload, senderDevice: identity.deviceId, version: 0 };
        return sender.submit({ kind: 'write', id, base, row: again, rewrap: false });
      });
    }, onKept);
  }

  /** Drops an item that the server's new history does not have: the alternative to `republish`. */
  async discard(id: string): Promise<void> {
    await this.preparing.run(async () => {
      const { store, outbox } = this.options;
      const { entry, own } = await outbox.look(id);
      if (entry === undefined || entry.version !== 0 || own !== undefined)
        throw new ClientError('unknown_item', `${id} is not an item that the server lost`);
      await store.apply({ entries: [{ id, version: 0, state: 'deleted', tagged: true, kept: null }] });
      outbox.dirty.mark([id]);
    });
  }

  /**
   * Adds missing keys of devices that joined, and missing master wraps, to the stored items. Processes all items in
   * batches and keeps no state between two runs. Resolves with the number of re-wrapped items, when the server has
   * stored them all. Items that another device re-wraps first are skipped, and so are those whose key this device
   * cannot verify. Rejects with the signal's reason between two batches, and with the first failure that is not a
   * conflict; finished writes stay.
   */
  async rewrapMissing({ signal, pause, onProgress }: RewrapOptions = {}): Promise<number> {
    const devices = await this.options.deviceList.recipients();
    const ids: string[] = [];
    for await (const entry of this.options.store.entries()) if (lacksSomething(entry, devices)) ids.push(entry.id);
    const total = ids.length;
    let mended = 0;
    if (total > 0) onProgress?.({ done: 0, total });
    for (let done = 0; done < total;) {
      signal?.throwIfAborted();
      if (done > 0) await pause?.();
      const batch = ids.slice(done, done + BATCH_WRITES_MAX);
      mended += await this.rewrapBatch(batch, devices);
      done += batch.length;
      onProgress?.({ done, total });
    }
    return mended;
  }

  private async rewrapBatch(ids: readonly string[], devices: readonly ListedDevice[]): Promise<number> {
    const waiting: Promise<Stored>[] = [];
    try {
      for (const id of ids) {
        const submitted = await this.preparing.run(() => this.rewrapOne(id, devices));
        if (submitted !== undefined) waiting.push(submitted.outcome);
      }
    } finally {
      // Also where the store fails at one of them: the others are in the outbox, on top of what the stream brings.
      this.options.sender.kick();
    }
    const outcomes = await Promise.allSettled(waiting);
    const refused = outcomes.filter((outcome) => outcome.status === 'rejected');
    for (const { reason } of refused) if (!isConflict(reason)) throw reason;
    return outcomes.length - refused.length;
  }

  private rewrapOne(id: string, devices: readonly ListedDevice[]): Promise<Submitted | undefined> {
    const { outbox, sodium, reader, sender } = this.options;
    return outbox.basedOn(id, ({ entry, own }) => {
      if (entry?.state !== 'live' || own !== undefined || !lacksSomething(entry, devices)) return undefined;
      const payload = orRefusal(() => rewrapItem(sodium, entry.row, { ...reader, devices }));
      if (payload instanceof CryptoRefusal && payload.reason === 'uncertified_device') throw payload;
      // Any other refusal: this device cannot verify the item's key; a device that can will re-wrap the item.
      if (payload === null || payload instanceof CryptoRefusal) return undefined;
      const row = { ...entry.row, ...payload };
      return sender.submit({ kind: 'write', id, base: entry.version, row, rewrap: true }, { gather: true });
    });
  }

  /** Calls `use` with the current state of an item, pending changes included; see `Outbox.basedOn`. */
  private latest<T>(id: string, use: (latest: Latest) => T | Promise<T>): Promise<T> {
    return this.options.outbox.basedOn(id, (seen) => use(latestOf(seen)));
  }

  private async prepare({ id, request, over, attached }: Put, onRefused: OnRefused | undefined): Promise<Submitted> {
    const { sodium, reader, deviceList, sender, identity } = this.options;
    const devices = await deviceList.sealFor();
    return this.writable(id, (latest) => {
      this.expectFields(request, latest);
      const base = over?.version ?? latest.base;
      const { binId, type, payload } = request;
      const to = { masterKey: reader.masterKey, devices };
      const ts = attached?.draft.ts ?? this.laterThan(request, latest, over);
      let sealed: ReturnType<typeof sealItem>;
      if (attached === null) sealed = sealItem(sodium, { id, binId, type, ts, payload }, to);
      else {
        expectUnchanged(id, latest, attached);
        const { draft, ref } = attached;
        const metadata = holdsFile(type) ? payload : cutPayload(payload);
        sealed = sealBlobItem(sodium, { id, binId, draft, ref, metadata }, to);
      }
      const row = { id, binId, type, ts, ...sealed, senderDevice: identity.deviceId, version: 0, deletedAt: null };
      const how = { overwrites: request.onConflict === 'overwrite', onRefused };
      return sender.submit({ kind: 'write', id, base, row, rewrap: false }, how);
    });
  }

  /**
   * A time later than the replaced state, even if this clock is behind: an earlier one is refused (RETRY-06). So is one
   * far ahead of the server's clock (ITEM-43).
   */
  private laterThan(request: PutRequest, latest: Latest, over: StateMet | null): number {
    const { clock, admissible } = this.options;
    return Math.max(admissible(request.ts ?? clock.now()), (latest.row?.ts ?? 0) + 1, (over?.ts ?? 0) + 1);
  }

  /** As `latest`. Throws `ClientError` `deleted_item`. */
  private writable<T>(id: string, use: (latest: Latest) => T | Promise<T>): Promise<T> {
    return this.latest(id, (latest) => {
      if (latest.deleted) throw new ClientError('deleted_item', `item ${id} is deleted, and there is no restore`);
      return use(latest);
    });
  }

  /** Prepares a change after those before it are in the outbox; resolves with its outcome. */
  private async changing(prepare: () => Promise<Submitted>, onKept?: OnKept): Promise<Stored> {
    const { outcome } = await this.preparing.run(prepare);
    onKept?.();
    return outcome;
  }
}

function latestOf({ entry, own }: Seen): Latest {
  if (own !== undefined) {
    const deleted = own.kind === 'delete';
    return { base: own.version, deleted, row: deleted ? null : own.row };
  }
  const deleted = entry?.state === 'deleted';
  const { version = 0 } = entry ?? {};
  const hidden = entry?.state === 'quarantined';
  const row = entry === undefined || deleted ? null : hidden ? entry.kept : entry.row;
  return { base: version, deleted: deleted && version > 0, row, hidden };
}

/** Throws `CryptoRefusal` for bytes that are no JSON. */
const objectOf = (payload: PlainPayload): JsonObject =>
  payload instanceof Uint8Array ? payloadObject(payload) : payload;

/** Fields of a payload that its type does not have. They are allowed if the item already has them. */
const foreignFields = ({ type, payload }: PutRequest): string[] => {
  const own = fieldsOf(type);
  const given: unknown = objectOf(payload);
  // A value that is not an object is refused elsewhere.
  return typeof given === 'object' && given !== null ? Object.keys(given).filter((name) => !own.includes(name)) : [];
};

/**
 * Checks type and payload of a request as far as possible without the item; foreign fields of an existing item are
 * checked later, in its turn. Throws `PayloadError`, and `CryptoRefusal` for bytes that are no JSON.
 */
function checked(request: PutRequest): PutRequest {
  const { id, payload, asIs } = request;
  const type = expectType(request.type);
  if (asIs === true) return request;
  const others = id === undefined ? [] : foreignFields(request);
  const defined = checkedPayload(type, objectOf(payload), others);
  // Bytes are written as they are.
  return payload instanceof Uint8Array ? request : { ...request, payload: defined };
}

/** The bytes to upload for a write; null: none, it fits into the item. Throws `RangeError`, `CryptoRefusal`. */
function sourceOf({ type, payload, content }: PutRequest): BlobSource | null {
  if (content !== undefined) {
    if (!holdsFile(type)) throw new RangeError(`content goes with image, file, audio and video, not with ${type}`);
    return content;
  }
  if (holdsFile(type)) return null;
  const whole = wholePayload(payload);
  return whole.length > PAYLOAD_INLINE_MAX ? bytesSource(whole) : null;
}

/** Throws `conflict` if the item changed during the upload, because the caller did not see that change. */
function expectUnchanged(id: string, { base, row }: Latest, { seen }: Attached): void {
  const ts = row?.ts ?? 0;
  if (ts === seen) return;
  const message = `item ${id} was changed while its content was being uploaded`;
  throw new ApiError({ code: 'conflict', status: 409, message, details: { version: base, ts } });
}

/** A cheap check, because it runs for all items: `rewrapItem` verifies a tag before anything else. */
function lacksSomething(entry: Entry, devices: readonly ListedDevice[]): boolean {
  if (entry.state !== 'live' || entry.version === 0) return false;
  const { master, inline, blob } = entry.row;
  return master === null || devices.some(({ id }) => inline?.keys.has(id) === false || blob?.keys.has(id) === false);
}
