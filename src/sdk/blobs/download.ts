/** Downloads: a blob is decrypted while it is received, and no byte is passed on before its chunk was authenticated. */
import {
  BLOB_CHUNK_BYTES,
  isStreamNonce,
  plainBlobSize,
  SEALED_CHUNK_BYTES,
  type BlobDecryptor,
} from '../../crypto/blob-stream.js';
import { concat, discard } from '../../protocol/bytes.js';
import { AEAD_TAG_BYTES } from '../../protocol/limits.js';
import type { Core } from '../core.js';
import { ApiError, NetworkError, ProtocolError, ClientError } from '../errors.js';
import { refusalOf } from '../http.js';
import type { DownloadUrl } from '../replies.js';
import { blobAddress, Exchange, type ExchangePorts, throwIfEnded, isExpiring, Retries } from './exchange.js';
import type { BlobProgress, BlobReadOptions, TransferOptions } from './source.js';
import { blobDecryptor } from '../../crypto/item.js';
import { payloadObject, type JsonObject } from '../../crypto/payload.js';
import { CryptoRefusal } from '../../crypto/refusal.js';
import type { Blob, LiveItem } from '../../protocol/item.js';
import { PAYLOAD_MAX, holdsFile } from '../payloads/shapes.js';
import type { ChunkPlace } from './chunk-place.js';
import { endWithServer, uploadBlob, type UploadedBlob, type Uploading, type UploadPorts } from './upload.js';

/** The dependencies of a download. */
export type DownloadPorts = ExchangePorts &
  Pick<Core, 'clockOffset'> & { readonly api: Pick<Core['api'], 'downloadUrl'> };

/** The download of one blob. */
class Download {
  private granted: DownloadUrl | undefined;
  /** Position in the plaintext up to which the blob was read; skipped chunks count as read. */
  private done = 0;
  private positioned = false;
  private readonly retries: Retries;

  constructor(
    private readonly ports: DownloadPorts,
    private readonly blob: { readonly ref: string; readonly decryptor: BlobDecryptor },
    private readonly options: BlobReadOptions,
  ) {
    this.retries = new Retries(ports, options.signal);
  }

  async *plaintext(): AsyncGenerator<Uint8Array, void, undefined> {
    const { decryptor } = this.blob;
    const { from = 0 } = this.options;
    try {
      if (!Number.isSafeInteger(from) || from < 0) throw new RangeError(`from must be 0 or more, got ${from}`);
      for (;;) {
        const grant = await this.grant();
        this.position(grant);
        const before = decryptor.offset;
        const exchange = new Exchange(this.ports, this.options.signal);
        try {
          yield* this.attempt(exchange, grant);
          return;
        } catch (error) {
          if (decryptor.offset > before) this.retries.reset();
          await this.prepareRetry(exchange.meaning(error));
        } finally {
          exchange.end();
        }
      }
    } finally {
      decryptor.end();
    }
  }

  /**
   * Starts at the chunk of the first requested byte, but at the last chunk at the latest, which proves that the blob
   * ends where the server says. Where the size is unknown, starts at the beginning.
   */
  private position(grant: DownloadUrl): void {
    if (this.positioned) return;
    this.positioned = true;
    const { decryptor } = this.blob;
    // The decryptor already took chunks of an earlier run.
    if (decryptor.offset > 0) {
      this.done = (decryptor.offset / SEALED_CHUNK_BYTES) * BLOB_CHUNK_BYTES;
      return;
    }
    const plain = plainSizeOf(decryptor, grant);
    if (plain === null || !decryptor.inChunks) return;
    const last = Math.max(0, Math.ceil(plain / BLOB_CHUNK_BYTES) - 1);
    const chunk = Math.min(last, Math.floor((this.options.from ?? 0) / BLOB_CHUNK_BYTES));
    decryptor.startAt(chunk);
    this.done = chunk * BLOB_CHUNK_BYTES;
  }

  /** Waits before the next attempt, which requests a new URL if this one was refused. Rethrows a permanent error. */
  private async prepareRetry(error: Error): Promise<void> {
    if (error instanceof ApiError && error.status < 500) this.granted = undefined;
    await this.retries.waitAfter(error);
    this.blob.decryptor.restart();
  }

  /** A URL with enough lifetime left. */
  private async grant(): Promise<DownloadUrl> {
    if (this.granted === undefined || isExpiring(this.ports, this.granted.expiresAt))
      this.granted = await this.ports.api.downloadUrl(this.blob.ref);
    return this.granted;
  }

  private async *attempt(exchange: Exchange, grant: DownloadUrl): AsyncGenerator<Uint8Array, void, undefined> {
    const { offset } = this.blob.decryptor;
    const address = blobAddress(grant.url, this.ports.baseUrl);
    exchange.pace.wait();
    const headers: Record<string, string> = offset === 0 ? {} : { range: `bytes=${offset}-` };
    const response = await exchange.request(address, { method: 'GET', headers });
    exchange.pace.got(0);
    // The store has no bytes after the received chunks. If the blob was cut there, `finish` finds its end missing.
    if (response.status === 416) {
      yield* this.finish();
      return;
    }
    if (!response.ok) {
      exchange.pace.wait();
      throw await refusalError(response);
    }
    yield* this.read(exchange, { response, grant, offset });
  }

  private async *read(
    { pace }: Exchange,
    from: { readonly response: Response; readonly grant: DownloadUrl; readonly offset: number },
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const reader = from.response.body?.getReader();
    if (reader === undefined) throw new NetworkError('network', 'the store sent nothing');
    let received = bodyOffset(from.response, from.offset);
    // A store without range requests starts at the beginning.
    let skip = from.offset - received;
    const { decryptor } = this.blob;
    const total = plainSizeOf(decryptor, from.grant);
    try {
      for (;;) {
        pace.wait();
        const { done, value } = await reader.read();
        pace.got(value?.length ?? 0);
        if (done) break;
        received += value.length;
        const skipped = Math.min(skip, value.length);
        skip -= skipped;
        for (const plain of decryptor.push(value.subarray(skipped))) yield* this.deliver(plain, total);
        discard(value.length);
      }
      // A body that is shorter than announced may be complete at the next attempt.
      if (received < (from.grant.size ?? 0) && !this.retries.exhausted)
        throw new NetworkError('network', 'the store sent less than it has');
      yield* this.finish();
    } finally {
      // Rejects for a finished or broken body, where there is nothing to cancel.
      await reader.cancel().catch(() => undefined);
    }
  }

  /** The last chunk. Throws `CryptoRefusal` if the end of the blob is missing. */
  private *finish(): Generator<Uint8Array> {
    const plain = this.blob.decryptor.finish();
    yield* this.deliver(plain, this.done + plain.length);
  }

  /** Counts a chunk as read, and yields the requested part of it. */
  private *deliver(plain: Uint8Array, total: BlobProgress['total']): Generator<Uint8Array> {
    const start = this.done;
    this.done += plain.length;
    this.options.onProgress?.({ done: this.done, total });
    const wanted = plain.subarray(Math.max(0, (this.options.from ?? 0) - start));
    if (wanted.length > 0) yield wanted;
  }
}

/** Plaintext size in bytes, from the size that the server reports; null: not reported, or no blob has that size. */
function plainSizeOf({ inChunks }: Pick<BlobDecryptor, 'inChunks'>, { size }: DownloadUrl): number | null {
  if (size === null) return null;
  return inChunks ? (plainBlobSize(size) ?? null) : Math.max(0, size - AEAD_TAG_BYTES);
}

/** The offset of a body according to the answer: the requested one, or 0. */
function bodyOffset(response: Response, requested: number): number {
  if (response.status !== 206) return 0;
  // Some stores hide the header from pages of another origin; then authentication of the chunks decides.
  const range = response.headers.get('content-range');
  if (range !== null && !range.startsWith(`bytes ${requested}-`))
    throw new ProtocolError('a store answers with another range than it was asked for');
  return requested;
}

async function refusalError(response: Response): Promise<ApiError> {
  const refusal = await refusalOf(response);
  if (response.status !== 404 && response.status !== 410) return refusal;
  return new ApiError({ code: 'blob_not_found', status: response.status, message: 'the blob is not in the store' });
}

/**
 * The plaintext of a blob, chunk by chunk, each authenticated; the blob is complete when the generator ends without an
 * error. Ends the decryptor. An expired or refused URL is replaced by a new one, and a broken connection is resumed at
 * the last chunk. Throws `CryptoRefusal` `bad_ct` where the bytes are not the blob's, `ApiError` `blob_not_found`
 * where the store has none, `NetworkError`, `ProtocolError` `bad_url`, `ClientError` `cancelled`, `RangeError` for a
 * bad `from`.
 */
export const downloadBlob = (
  ports: DownloadPorts,
  blob: { readonly ref: string; readonly decryptor: BlobDecryptor },
  options: BlobReadOptions = {},
): AsyncGenerator<Uint8Array, void, undefined> => new Download(ports, blob, options).plaintext();

/** Uploads and downloads of a device: file contents, and payloads too large for an item. */
export class Blobs {
  constructor(private readonly options: UploadPorts & DownloadPorts & Pick<Core, 'reader'>) {}

  /** See `uploadBlob`. */
  upload(blob: Uploading, options?: TransferOptions): Promise<UploadedBlob> {
    return uploadBlob(this.options, blob, options);
  }

  /** Abandons the unfinished upload of an item, here and on the server. Throws `ApiError`, `NetworkError`. */
  async giveUp(id: string): Promise<void> {
    const { begun, sodium } = this.options;
    await begun.ended(id);
    const found = await begun.find(id);
    if (found !== undefined) {
      sodium.memzero(found.draft.key);
      await endWithServer(this.options, found.ref);
    }
    // One that has begun meanwhile keeps its own, and learns of the end of this one from the server.
    if (!begun.isRunning(id)) await begun.forget(id);
  }

  /**
   * The plaintext of an item's blob, chunk by chunk. Throws `CryptoRefusal` of the item, `ClientError` `no_blob` for
   * an inline one, and as `downloadBlob`.
   */
  async *read(row: LiveItem, options?: BlobReadOptions): AsyncGenerator<Uint8Array, void, undefined> {
    const { ref } = blobOf(row);
    const decryptor = blobDecryptor(this.options.sodium, row, this.options.reader);
    yield* downloadBlob(this.options, { ref, decryptor }, options);
  }

  /**
   * Writes the plaintext of an item's blob into a place that may hold its first chunks from an earlier run. Those are
   * used only if they verify as chunks of this blob (`BlobDecryptor.takes`); the rest is downloaded. The place is
   * complete when this resolves. Throws as `read`.
   */
  async into(row: LiveItem, place: ChunkPlace, options?: TransferOptions): Promise<void> {
    const { ref } = blobOf(row);
    const decryptor = blobDecryptor(this.options.sodium, row, this.options.reader);
    try {
      let kept = 0;
      for (;;) {
        throwIfEnded(this.options, options?.signal);
        const chunk = await place.kept(kept);
        if (chunk === undefined || !decryptor.takes(chunk.plain, chunk.tag)) break;
        kept++;
      }
      await place.begin(kept);
      for await (const plain of downloadBlob(this.options, { ref, decryptor }, options))
        await place.add(plain, decryptor.tag);
    } finally {
      decryptor.end();
    }
  }

  /**
   * The whole payload of an item whose blob is its payload. Throws as `read`, `CryptoRefusal` `too_large` over 16 MiB
   * and `bad_payload`, and `ClientError` `no_blob` where the blob is a file.
   */
  async payload(row: LiveItem, options?: TransferOptions): Promise<JsonObject> {
    if (holdsFile(row.type)) throw new ClientError('no_blob', `the blob of ${row.id} is a file, not its payload`);
    const parts: Uint8Array[] = [];
    let length = 0;
    for await (const part of this.read(row, options)) {
      length += part.length;
      if (length > PAYLOAD_MAX) throw new CryptoRefusal('too_large', `the payload of ${row.id} is too large`);
      parts.push(part);
    }
    return payloadObject(concat(parts));
  }

  /** Plaintext size of an item's blob in bytes, as reported by the server; null: not reported. Throws as `read`. */
  async size(row: LiveItem): Promise<number | null> {
    const { ref, nonce } = blobOf(row);
    return plainSizeOf({ inChunks: isStreamNonce(nonce) }, await this.options.api.downloadUrl(ref));
  }

  /** A URL of the ciphertext that works without this device's token, for a few minutes. */
  async url(row: LiveItem): Promise<DownloadUrl> {
    const grant = await this.options.api.downloadUrl(blobOf(row).ref);
    return { ...grant, url: blobAddress(grant.url, this.options.baseUrl).href };
  }
}

function blobOf(row: LiveItem): Blob {
  if (row.blob === null) throw new ClientError('no_blob', `item ${row.id} has no blob`);
  return row.blob;
}
