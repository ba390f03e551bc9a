/** Uploads: a source is encrypted and sent in parts, and resumed where the store has it, also in a later run. */
import { discard } from '../../protocol/bytes.js';
import { asError } from '../../protocol/error-code.js';
import { AEAD_TAG_BYTES, UPLOAD_PART_BYTES } from '../../protocol/limits.js';
import { SEALED_CHUNK_BYTES, sealedBlobSize } from '../../crypto/blob-stream.js';
import { draftBlob, type BlobDraft } from '../../crypto/item.js';
import type { Core } from '../core.js';
import { ApiError, ClientError, isTransient, NetworkError, ProtocolError } from '../errors.js';
import { refusalOf } from '../http.js';
import { abortable } from '../platform.js';
import type { UploadPart, UploadState } from '../replies.js';
import type { Begun, BegunUploads } from './begun.js';
import {
  blobAddress,
  Exchange,
  type ExchangePorts,
  throwIfEnded,
  isExpiring,
  isRefusedAddress,
  Retries,
  uploadHeaders,
} from './exchange.js';
import { SealedBlocks } from './sealed-blocks.js';
import type { BlobSource, SourceIdentity, TransferOptions } from './source.js';

/** The dependencies of an upload. */
export type UploadPorts = ExchangePorts &
  Pick<Core, 'sodium' | 'clockOffset'> & {
    readonly api: Pick<Core['api'], 'beginUpload' | 'continueUpload' | 'endUpload'>;
    readonly begun: BegunUploads;
  };

/** A stored blob that no item names yet. The owner must erase `draft.key` after use. */
export interface UploadedBlob {
  readonly ref: string;
  readonly draft: BlobDraft;
}

/** The parameters of an upload. */
export interface Uploading extends Pick<BlobDraft, 'type'> {
  /** The item's time, ms, which encrypts the blob: called once the server has replied, which tells its own time. */
  readonly ts: () => number;
  /** Id of the item that will name the blob, under which a later run finds the upload. */
  readonly id: string;
  readonly source: BlobSource;
  /** True where an upload begun with this `ts` can be continued. Absent: none can. */
  readonly fits?: (ts: number) => boolean;
}

/** The declared media type of all blobs; the real one is in the encrypted payload. */
const CONTENT_TYPE = 'application/octet-stream';
/** Largest part accepted, because a part is held in memory. A server requests 5 MiB, and more above 50 GB. */
const PART_MAX = 16 * 1024 * 1024;
/** Time for the store to make a part durable, ms. */
const ANSWER_MS = 120_000;
/** Additional time per KiB of a part, ms, because there is no progress report while a part is sent. */
const UNHEARD_MS_PER_KIB = 125;
/** Most restarts of an upload that the server no longer knows. */
const BEGINNINGS_MAX = 3;
/** Less than this does not count as progress, so that a server that accepts single bytes or keeps going back fails. */
const PROGRESS_MIN = 256 * 1024;
/** How often a server may lose accepted bytes: with progress in between, a device could otherwise send for ever. */
const LOSSES_MAX = 10;

/**
 * Uploads a source, or continues the upload of an earlier run for the same source, type and item, with the same bytes.
 * Throws `ApiError` (`blob_too_large`, `storage_cap_exceeded`, ...), `NetworkError`, `ProtocolError` `bad_url`,
 * `bad_upload`, and `ClientError` `source_changed`, `cancelled`, `closed`, `revoked`. After a failure a later call
 * continues where the source has an identity, unless the source changed.
 */
export const uploadBlob = (ports: UploadPorts, blob: Uploading, options: TransferOptions = {}): Promise<UploadedBlob> =>
  ports.begun.run(blob.id, (alone) => uploaded(ports, { ...blob, size: blob.source.size, alone }, options));

interface Alone extends Uploading {
  /** Bytes of plaintext. */
  readonly size: number;
  readonly alone: boolean;
}

async function uploaded(ports: UploadPorts, blob: Alone, options: TransferOptions): Promise<UploadedBlob> {
  const { identity } = blob.source;
  // A blob that fits into one part is never continued, so nothing of it is stored.
  const keepable = blob.alone && identity !== undefined && sealedBlobSize(blob.size) > UPLOAD_PART_BYTES;
  const kept = keepable ? await resumable(ports, blob, identity) : undefined;
  let transfer = kept === undefined ? undefined : new Transfer(ports, { begun: kept, blob, keepable }, options);
  for (let beginnings = 0; ; beginnings++) {
    try {
      transfer ??= await Transfer.begin(ports, { blob, keepable }, options);
      return await transfer.run();
    } catch (error) {
      if (!(error instanceof Gone) || beginnings >= BEGINNINGS_MAX) throw error instanceof Gone ? error.told : error;
      // Starts over with a fresh key, because it is unknown which bytes were sent under the old one.
      transfer = undefined;
    }
  }
}

/** The upload of an earlier run, if it matches source and item; a different upload of the item is abandoned. */
async function resumable(ports: UploadPorts, blob: Alone, identity: SourceIdentity): Promise<Begun | undefined> {
  const begun = await ports.begun.find(blob.id);
  if (begun === undefined) return undefined;
  const { draft, source, size } = begun;
  const same = source.name === identity.name && source.state === identity.state && size === blob.size;
  if (same && draft.type === blob.type && blob.fits?.(draft.ts) === true) return begun;
  ports.sodium.memzero(draft.key);
  await giveUp(ports, { begun, keepable: true });
  return undefined;
}

/** Abandons an upload, here and on the server. An unreachable server frees its storage by itself after a day. */
async function giveUp(
  ports: Pick<UploadPorts, 'api' | 'begun'>,
  { begun, keepable }: Pick<Transferring, 'begun' | 'keepable'>,
): Promise<void> {
  if (keepable) await ports.begun.forget(begun.id);
  await endWithServer(ports, begun.ref).catch((error: unknown) => {
    if (!isTransient(error)) throw error;
  });
}

const isGone = (error: unknown): error is ApiError => error instanceof ApiError && error.status === 404;

/** Ends an upload on the server; no-op if it has already ended there. Throws `ApiError`, `NetworkError`. */
export async function endWithServer({ api }: Pick<UploadPorts, 'api'>, ref: string): Promise<void> {
  await api.endUpload(ref).catch((error: unknown) => {
    if (!isGone(error)) throw error;
  });
}

/** The server no longer knows the upload, or claims bytes that were never sent: the upload starts over. */
class Gone extends Error {
  constructor(readonly told: Error) {
    super(told.message);
  }
}

const badUpload = (what: string): ProtocolError =>
  new ProtocolError(`the server answers about an upload with ${what}`, { code: 'bad_upload' });

interface Transferring {
  readonly begun: Begun;
  readonly blob: Alone;
  readonly keepable: boolean;
  /** The reply to `beginUpload`, for a new upload. */
  readonly first?: UploadState;
}

/** One upload in progress. */
class Transfer {
  private readonly retries: Retries;
  private readonly blocks: SealedBlocks;
  /** Bytes that the server has, and those it had at the last progress. */
  private offset = 0;
  private highest = 0;
  /** Highest offset that counted as progress by accepted parts. */
  private reached = 0;
  private losses = 0;
  /** True if parts were accepted, and none failed, since the last query of the state. */
  private taken = false;

  constructor(
    private readonly ports: UploadPorts,
    private readonly of: Transferring,
    private readonly options: TransferOptions,
  ) {
    const { begun, blob } = of;
    this.retries = new Retries(ports, options.signal);
    const keep = (hashes: readonly Uint8Array[]): Promise<void> =>
      of.keepable ? ports.begun.keep({ ...begun, hashes, sent: this.plainBefore(this.offset) }) : Promise.resolve();
    this.blocks = new SealedBlocks(ports.sodium, {
      draft: begun.draft,
      source: blob.source,
      plainSize: begun.size,
      hashes: begun.hashes,
      keep,
    });
  }

  /** Reserves storage for a new upload. */
  static async begin(
    ports: UploadPorts,
    { blob, keepable }: Pick<Transferring, 'blob' | 'keepable'>,
    options: TransferOptions,
  ): Promise<Transfer> {
    const { id, type, ts, source, size } = blob;
    throwIfEnded(ports, options.signal);
    const contentLength = sealedBlobSize(size);
    const first = await ports.api.beginUpload({ contentLength, contentType: CONTENT_TYPE });
    const begunAt = ports.clock.now();
    const draft = draftBlob(ports.sodium, { type, ts: ts() });
    const begun: Begun = {
      ...{ id, ref: first.blobRef, draft, size },
      ...{ source: source.identity ?? { name: '', state: '' }, hashes: [], sent: 0, begunAt },
    };
    return new Transfer(ports, { begun, blob, keepable, first }, options);
  }

  /** Sends the missing bytes. On failure the key in memory is erased; the device's store has an encrypted copy. */
  async run(): Promise<UploadedBlob> {
    const { begun } = this.of;
    try {
      for (let state = this.of.first ?? (await this.ask()); ; state = await this.ask()) {
        this.expectSound(state);
        await this.expectProgress(state);
        this.offset = state.offset;
        this.tell();
        if (await this.sent(state)) break;
      }
      await this.wanted(this.blocks.verify());
      return { ref: begun.ref, draft: begun.draft };
    } catch (error) {
      this.blocks.end();
      this.ports.sodium.memzero(begun.draft.key);
      if (error instanceof Gone && this.of.keepable) await this.ports.begun.forget(begun.id);
      // The upload is useless: other bytes need another key.
      if (error instanceof ClientError && error.code === 'source_changed') await giveUp(this.ports, this.of);
      throw error;
    } finally {
      this.blocks.end();
    }
  }

  /** Queries the state of the upload. Throws `Gone`. */
  private async ask(): Promise<UploadState> {
    for (;;) {
      throwIfEnded(this.ports, this.options.signal);
      try {
        return await this.ports.api.continueUpload(this.of.begun.ref);
      } catch (error) {
        if (isGone(error)) throw new Gone(error);
        if (!isTransient(error)) throw error;
        await this.retries.waitAfter(error);
      }
    }
  }

  /** Throws `ProtocolError` `bad_upload` for an invalid answer, and `Gone` for bytes that were never sent. */
  private expectSound({ blobRef, size, offset, parts }: UploadState): void {
    if (blobRef !== this.of.begun.ref || size !== this.blocks.size) throw badUpload('another upload');
    if (offset > size) throw badUpload('more than all bytes');
    if (offset > this.blocks.covered) throw new Gone(badUpload('bytes that were never sent'));
    let at = offset;
    for (const part of parts) {
      if (part.from !== at) throw badUpload('parts that do not follow each other');
      if (part.size < 1 || part.size > PART_MAX) throw badUpload('a part of another size than parts have');
      at += part.size;
    }
    if (at > size) throw badUpload('parts beyond the end');
    if (parts.length === 0 && offset < size) throw badUpload('no next part');
  }

  /** Checks for progress. Accepted parts that the server does not have count as a failed attempt. */
  private async expectProgress({ offset }: UploadState): Promise<void> {
    const { taken } = this;
    this.taken = false;
    if (offset < this.offset && ++this.losses > LOSSES_MAX) throw badUpload('less than it took, again and again');
    if (offset >= this.highest + PROGRESS_MIN) {
      this.retries.reset();
      this.highest = offset;
    } else if (taken) await this.retries.waitAfter(new NetworkError('network', 'the server lost what was sent'));
  }

  /** Sends the parts, in order. True: the server has all bytes; false: the state must be queried again. */
  private async sent({ parts, expiresAt }: UploadState): Promise<boolean> {
    for (const [at, part] of parts.entries()) {
      // The first URL is always used, because this clock may be wrong.
      if (at > 0 && isExpiring(this.ports, expiresAt)) break;
      const body = await this.wanted(this.blocks.range(part.from, part.from + part.size));
      try {
        await this.put(part, body);
      } catch (error) {
        this.taken = false;
        await this.retries.waitAfter(asError(error), isDoubtful);
        return false;
      }
      this.taken = true;
      this.offset = part.from + part.size;
      // Progress resets the failures; each byte counts only once, even if it is lost and sent again.
      if (this.offset >= this.reached + PROGRESS_MIN) {
        this.retries.reset();
        this.reached = this.offset;
      }
      this.tell();
    }
    return this.offset === this.blocks.size;
  }

  private async put(part: UploadPart, body: Uint8Array<ArrayBuffer>): Promise<void> {
    const { ports, options, blocks } = this;
    const address = blobAddress(part.url, ports.baseUrl);
    const headers = uploadHeaders(part.headers, { url: address, part, total: blocks.size });
    const exchange = new Exchange(ports, options.signal);
    exchange.pace.wait(ANSWER_MS + (part.size / 1024) * UNHEARD_MS_PER_KIB);
    try {
      const response = await exchange.request(address, { method: 'PUT', headers, body });
      if (!response.ok) throw await refusalOf(response);
      await response.body?.cancel();
    } catch (error) {
      throw exchange.meaning(error);
    } finally {
      exchange.end();
      discard(body.length);
    }
  }

  /** The result of `work`, unless the caller or the device ends the transfer: a source may never answer. */
  private wanted<T>(work: Promise<T>): Promise<T> {
    const { ports, options } = this;
    return abortable(work, [options.signal, ports.lifetime], () => throwIfEnded(ports, options.signal));
  }

  /** Bytes of plaintext in the first bytes of ciphertext. */
  private plainBefore(sealed: number): number {
    const tags = Math.ceil(sealed / SEALED_CHUNK_BYTES) * AEAD_TAG_BYTES;
    return Math.min(this.of.begun.size, Math.max(0, sealed - tags));
  }

  private tell(): void {
    this.options.onProgress?.({ done: this.plainBefore(this.offset), total: this.of.begun.size });
  }
}

/** Errors after which the state is queried again; a store that lost the session answers 404 or 410. */
const isDoubtful = (error: Error): boolean =>
  isRefusedAddress(error) || (error instanceof ApiError && [404, 410].includes(error.status));
