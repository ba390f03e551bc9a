/** Uploads: a source is encrypted and sent chunk by chunk, with a new key and URL at each attempt. */
import { asError } from '../../protocol/error-code.js';
import { sealedBlobSize } from '../../crypto/blob-stream.js';
import { blobEncryptor, draftBlob, type BlobDraft } from '../../crypto/item.js';
import type { Core } from '../core.js';
import { ClientError } from '../errors.js';
import { refusalOf } from '../http.js';
import type { Fetch, SendBody } from '../platform.js';
import {
  blobAddress,
  Exchange,
  type ExchangePorts,
  expectNoRedirect,
  Retries,
  UNNAMED,
  uploadHeaders,
} from './exchange.js';
import { portionsOf, type BlobSource, type TransferOptions } from './source.js';

/** What an upload uses of its device. */
export type UploadPorts = ExchangePorts &
  Pick<Core, 'sodium' | 'sendBody'> & { readonly api: Pick<Core['api'], 'uploadUrl'> };

/** A stored blob that no item names yet. The owner must erase `draft.key` in the end. */
export interface UploadedBlob {
  readonly ref: string;
  readonly draft: BlobDraft;
}

/** The declared media type of all blobs; the real one is in the encrypted payload. */
const CONTENT_TYPE = 'application/octet-stream';
/** Time for the store to make the blob durable, ms. */
const ANSWER_MS = 120_000;
/** Where the platform takes the whole body at once, nothing is heard during the transfer: ms for each KiB. */
const UNHEARD_MS_PER_KIB = 125;

/**
 * Uploads a source. `head` becomes type and ts of the item, to which the bytes are bound. Throws `ApiError`
 * (`blob_too_large`, `storage_cap_exceeded`, ...), `NetworkError`, `ProtocolError` `bad_url`, and `ClientError`
 * `source_changed`, `cancelled`, `closed`; then no item can name what was uploaded.
 */
export async function uploadBlob(
  ports: UploadPorts,
  blob: { readonly head: Pick<BlobDraft, 'type' | 'ts'>; readonly source: BlobSource },
  options: TransferOptions = {},
): Promise<UploadedBlob> {
  const size = sealedBlobSize(blob.source.size);
  const retries = new Retries(ports, options.signal);
  for (;;) {
    expectWanted(options.signal);
    const { blobRef, url, headers } = await ports.api.uploadUrl({ contentLength: size, contentType: CONTENT_TYPE });
    const address = blobAddress(url, ports.baseUrl);
    const target = { url: address.href, headers: uploadHeaders(headers, { url: address, size }), size };
    const draft = draftBlob(ports.sodium, blob.head);
    try {
      await send(ports, { draft, source: blob.source, target }, options);
      return { ref: blobRef, draft };
    } catch (error) {
      ports.sodium.memzero(draft.key);
      await retries.waitAfter(asError(error));
    }
  }
}

function expectWanted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw new ClientError('cancelled', 'the transfer was cancelled');
}

interface Sending {
  readonly draft: BlobDraft;
  readonly source: BlobSource;
  readonly target: { readonly url: string; readonly headers: Record<string, string>; readonly size: number };
}

async function send(ports: UploadPorts, sending: Sending, options: TransferOptions): Promise<void> {
  const exchange = new Exchange(ports, options.signal);
  const put = ports.sendBody ?? gathered(ports.fetch);
  const unheard = ports.sendBody === undefined ? (sending.target.size / 1024) * UNHEARD_MS_PER_KIB : 0;
  const body = sealed(ports, { ...sending, exchange, unheard }, options);
  exchange.pace.wait();
  try {
    const response = await put({ ...sending.target, body, signal: exchange.signal });
    expectNoRedirect(response);
    if (!response.ok) throw await refusalOf(response);
    await response.body?.cancel();
  } catch (error) {
    throw exchange.meaning(error);
  } finally {
    exchange.end();
    // Not awaited: the source that it reads from may never answer, and its errors were reported.
    body.return().catch(() => undefined);
  }
}

/** The ciphertext, encrypted as fast as it is taken. */
async function* sealed(
  { sodium }: UploadPorts,
  { draft, source, exchange, unheard }: Sending & { readonly exchange: Exchange; readonly unheard: number },
  { onProgress }: TransferOptions,
): AsyncGenerator<Uint8Array, void, undefined> {
  const encryptor = blobEncryptor(sodium, draft);
  const { pace } = exchange;
  let done = 0;
  try {
    pace.got(0);
    onProgress?.({ done, total: source.size });
    for await (const portion of portionsOf(source)) {
      done += portion.length;
      if (done > source.size) throw sourceChanged();
      for (const chunk of encryptor.push(portion)) {
        pace.wait();
        yield chunk;
        pace.got(chunk.length);
      }
      onProgress?.({ done, total: source.size });
    }
    if (done < source.size) throw sourceChanged();
    const last = encryptor.finish();
    pace.wait(ANSWER_MS);
    yield last;
    pace.got(last.length);
    pace.wait(ANSWER_MS + unheard);
  } catch (error) {
    exchange.fail(asError(error));
    throw error;
  } finally {
    encryptor.end();
  }
}

const sourceChanged = (): ClientError =>
  new ClientError('source_changed', 'the source has another size than it had at first: it was changed meanwhile');

/** Bytes of ciphertext handed to the platform at a time. */
const PIECE_BYTES = 4 * 1024 * 1024;

/**
 * Sends a body where requests cannot be streamed: browsers stream over HTTP/2 only, and without a length, which stores
 * refuse. The ciphertext is given to the browser in `Blob`s, which it keeps outside of the script's memory (on disk,
 * if large), so that the script holds one piece. Progress is that of the encryption.
 */
const gathered =
  (fetch: Fetch): SendBody =>
  async ({ url, headers, body, signal }) => {
    const pieces: globalThis.Blob[] = [];
    let waiting: Uint8Array<ArrayBuffer>[] = [];
    let length = 0;
    for await (const chunk of body) {
      waiting.push(new Uint8Array(chunk));
      length += chunk.length;
      if (length < PIECE_BYTES) continue;
      pieces.push(new globalThis.Blob(waiting));
      waiting = [];
      length = 0;
      signal.throwIfAborted();
    }
    const whole = new globalThis.Blob([...pieces, ...waiting]);
    return fetch(url, { ...UNNAMED, method: 'PUT', headers, body: whole, signal });
  };
