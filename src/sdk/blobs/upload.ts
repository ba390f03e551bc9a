/** Uploads: a source is encrypted and sent in parts, and goes on where the store has it, in a later run too. */
import { asError } from '../../protocol/error-code.js';
import { AEAD_TAG_BYTES, UPLOAD_PART_BYTES } from '../../protocol/limits.js';
import { SEALED_CHUNK_BYTES, sealedBlobSize } from '../../crypto/blob-stream.js';
import { draftBlob, type BlobDraft } from '../../crypto/item.js';
import type { Core } from '../core.js';
import { ApiError, ClientError, isPassing, NetworkError, ProtocolError } from '../errors.js';
import { refusalOf } from '../http.js';
import { abortable } from '../platform.js';
import type { UploadPart, UploadState } from '../replies.js';
import type { Begun, BegunUploads } from './begun.js';
import {
  blobAddress,
  endOf,
  Exchange,
  type ExchangePorts,
  expectNoRedirect,
  isExpiring,
  isRefusedAddress,
  Retries,
  UNNAMED,
  uploadHeaders,
} from './exchange.js';
import { SealedBlocks } from './sealed-blocks.js';
import type { BlobSource, SourceIdentity, TransferOptions } from './source.js';

/** What an upload uses of its device. */
export type UploadPorts = ExchangePorts &
  Pick<Core, 'sodium' | 'clockOffset'> & {
    readonly api: Pick<Core['api'], 'beginUpload' | 'continueUpload' | 'endUpload'>;
    readonly begun: BegunUploads;
  };

/** A stored blob that no item names yet. The owner must erase `draft.key` in the end. */
export interface UploadedBlob {
  readonly ref: string;
  readonly draft: BlobDraft;
}

/** What is uploaded. */
export interface Uploading extends Pick<BlobDraft, 'type' | 'ts'> {
  /** Of the item to be: under it the upload is kept, and found by a later run. */
  readonly id: string;
  readonly source: BlobSource;
  /** Whether an upload that was begun with this `ts` will do. Absent: none will, it is a new one. */
  readonly fits?: (ts: number) => boolean;
}

/** The declared media type of all blobs; the real one is in the encrypted payload. */
const CONTENT_TYPE = 'application/octet-stream';
/** Largest part that is sent: it is held. A server asks for 5 MiB, and for more above 50 GB. */
const PART_MAX = 16 * 1024 * 1024;
/** Time for the store to make a part durable, ms. */
const ANSWER_MS = 120_000;
/** Nothing is heard while a part is sent: ms for each KiB. */
const UNHEARD_MS_PER_KIB = 125;
/** New beginnings, of an upload that the server does not know any more. */
const BEGINNINGS_MAX = 3;
/** Less than this is no progress: a server that takes a byte a part, or goes back again and again, is given up. */
const PROGRESS_MIN = 256 * 1024;
/** Times that a server may have less than it took. With progress each time it would make a device send for ever. */
const LOSSES_MAX = 10;

/**
 * Uploads a source, or goes on with the upload of an earlier run: the same source, type and item, by the same bytes.
 * Throws `ApiError` (`blob_too_large`, `storage_cap_exceeded`, ...), `NetworkError`, `ProtocolError` `bad_url`,
 * `bad_upload`, and `ClientError` `source_changed`, `cancelled`, `closed`. What was sent stays for a later call where
 * the source has an identity, unless it changed.
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
  // What fits into one part is never continued: nothing is kept of it.
  const keepable = blob.alone && identity !== undefined && sealedBlobSize(blob.size) > UPLOAD_PART_BYTES;
  const kept = keepable ? await resumable(ports, blob, identity) : undefined;
  let transfer = kept === undefined ? undefined : new Transfer(ports, { begun: kept, blob, keepable }, options);
  for (let beginnings = 0; ; beginnings++) {
    try {
      transfer ??= await Transfer.begin(ports, { blob, keepable }, options);
      return await transfer.run();
    } catch (error) {
      if (!(error instanceof Gone) || beginnings >= BEGINNINGS_MAX) throw error instanceof Gone ? error.told : error;
      // Under a fresh key: what of the old one was sent is not known any more.
      transfer = undefined;
    }
  }
}

/** The upload of an earlier run, if it is of this source and item; another one of the item is given up. */
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

/** Frees the room of an upload, and forgets it. A server that cannot be reached frees it by itself, in a day. */
async function giveUp(
  ports: Pick<UploadPorts, 'api' | 'begun'>,
  { begun, keepable }: Pick<Transferring, 'begun' | 'keepable'>,
): Promise<void> {
  if (keepable) await ports.begun.forget(begun.id);
  await endWithServer(ports, begun.ref).catch((error: unknown) => {
    if (!isPassing(error)) throw error;
  });
}

const isGone = (error: unknown): error is ApiError => error instanceof ApiError && error.status === 404;

/** Ends an upload with the server, where it has not ended there already. Throws `ApiError`, `NetworkError`. */
export async function endWithServer({ api }: Pick<UploadPorts, 'api'>, ref: string): Promise<void> {
  await api.endUpload(ref).catch((error: unknown) => {
    if (!isGone(error)) throw error;
  });
}

/** The server does not know the upload any more, or says that it has what was never sent: it begins again. */
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
  /** The reply by which it began. */
  readonly first?: UploadState;
}

/** One upload on its way. */
class Transfer {
  private readonly retries: Retries;
  private readonly blocks: SealedBlocks;
  /** Bytes that the server has, and those it had at the last progress. */
  private offset = 0;
  private highest = 0;
  /** Bytes that a store said to have at best, by its answers to parts. */
  private reached = 0;
  private losses = 0;
  /** Whether parts were taken since the server was asked, none of them refused or cut. */
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

  /** Reserves room for a new upload. */
  static async begin(
    ports: UploadPorts,
    { blob, keepable }: Pick<Transferring, 'blob' | 'keepable'>,
    options: TransferOptions,
  ): Promise<Transfer> {
    const { id, source, size } = blob;
    expectWanted(ports, options);
    const contentLength = sealedBlobSize(size);
    const first = await ports.api.beginUpload({ contentLength, contentType: CONTENT_TYPE });
    const begunAt = ports.clock.now();
    const begun: Begun = {
      ...{ id, ref: first.blobRef, draft: draftBlob(ports.sodium, blob), size },
      ...{ source: source.identity ?? { name: '', state: '' }, hashes: [], sent: 0, begunAt },
    };
    return new Transfer(ports, { begun, blob, keepable, first }, options);
  }

  /** Sends what the server does not have yet. On failure the key is erased, here; the store has its copy. */
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
      // Nothing of it can be used: another source needs another key.
      if (error instanceof ClientError && error.code === 'source_changed') await giveUp(this.ports, this.of);
      throw error;
    } finally {
      this.blocks.end();
    }
  }

  /** Where the upload stands. */
  private async ask(): Promise<UploadState> {
    for (;;) {
      expectWanted(this.ports, this.options);
      try {
        return await this.ports.api.continueUpload(this.of.begun.ref);
      } catch (error) {
        if (isGone(error)) throw new Gone(error);
        if (!isPassing(error)) throw error;
        await this.retries.waitAfter(error);
      }
    }
  }

  /** Throws `ProtocolError` `bad_upload` for an answer that no server gives, and `Gone`. */
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

  /** A server that took parts and has none of them is one that refused them. */
  private async expectProgress({ offset }: UploadState): Promise<void> {
    const { taken } = this;
    this.taken = false;
    if (offset < this.offset && ++this.losses > LOSSES_MAX) throw badUpload('less than it took, again and again');
    if (offset >= this.highest + PROGRESS_MIN) {
      this.retries.reset();
      this.highest = offset;
    } else if (taken) await this.retries.waitAfter(new NetworkError('network', 'the server lost what was sent'));
  }

  /** Sends the parts, in order. True: the server has all bytes; false: it has to be asked where the upload stands. */
  private async sent({ parts, expiresAt }: UploadState): Promise<boolean> {
    for (const [at, part] of parts.entries()) {
      // The first one is used in any case: this clock may be wrong.
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
      // A failure further on is none of those before; each byte counts as reached once, whatever is lost again.
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
      const response = await ports.fetch(address.href, {
        ...UNNAMED,
        method: 'PUT',
        headers,
        body,
        signal: exchange.signal,
      });
      expectNoRedirect(response);
      if (!response.ok) throw await refusalOf(response);
      await response.body?.cancel();
    } catch (error) {
      throw exchange.meaning(error);
    } finally {
      exchange.end();
    }
  }

  /** The result, unless the caller or the device ends the transfer first: a source may never answer. */
  private wanted<T>(work: Promise<T>): Promise<T> {
    const { ports, options } = this;
    return abortable(work, [options.signal, ports.lifetime], () => expectWanted(ports, options));
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

/** A session that a store has forgotten (404, 410) is one that the server knows more of. */
const isDoubtful = (error: Error): boolean =>
  isRefusedAddress(error) || (error instanceof ApiError && [404, 410].includes(error.status));

function expectWanted({ lifetime }: UploadPorts, { signal }: TransferOptions): void {
  const ended = endOf(signal, lifetime);
  if (ended !== undefined) throw ended;
}
