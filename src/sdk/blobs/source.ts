/** Sources of blobs: bytes that are read on demand, so that a file is never in memory as a whole. */

/** Bytes of known size, for exactly which the server reserves storage. */
export interface BlobSource {
  /** Bytes. */
  readonly size: number;
  /** Starts at the first byte at each call: to continue an upload, sent bytes are read again and compared. */
  open(): AsyncIterable<Uint8Array> | ReadableStream<Uint8Array>;
  /** True where the bytes may have changed: they are then re-read and compared before the item is written. */
  isTouched?(): Promise<boolean>;
  /** Absent: an upload of this source cannot be continued by another run of the program. */
  readonly identity?: SourceIdentity;
}

/** Identifies a source in another run of the program. Stored, encrypted, until its item is written. */
export interface SourceIdentity {
  /** The name that the user sees: a path, or a file name; at most 4,096 characters. */
  readonly name: string;
  /** Changes with the bytes, like a modification time, and then restarts an upload; at most 256 characters. */
  readonly state: string;
}

/** Progress of a transfer, in bytes of plaintext; `total` null: the server did not report a size. */
export interface BlobProgress {
  readonly done: number;
  readonly total: number | null;
}

/** Options of a transfer. */
export interface TransferOptions {
  /** Ends the transfer with `ClientError` `cancelled`. */
  readonly signal?: AbortSignal;
  /** Progress decreases where a store lost bytes, and returns to 0 where an upload starts over. */
  readonly onProgress?: (progress: BlobProgress) => void;
}

/** Options of reading a blob. */
export interface BlobReadOptions extends TransferOptions {
  /**
   * Skips the plaintext before this byte, by default 0; progress counts it as done. At or beyond the end nothing is
   * returned. The skipped bytes are not verified; the end of the blob is.
   */
  readonly from?: number;
}

/** A source of bytes in memory. */
export const bytesSource = (bytes: Uint8Array): BlobSource => ({
  size: bytes.length,
  async *open() {
    await Promise.resolve();
    yield bytes;
  },
});

/** A source of a browser's `Blob` or `File`. A `File` is identified by its name and modification time. */
export const fileSource = (file: globalThis.Blob): BlobSource => ({
  size: file.size,
  open: () => file.stream(),
  ...(file instanceof File ? { identity: { name: file.name, state: String(file.lastModified) } } : {}),
});

/** The bytes of a source; cancels the stream if its reader stops early. */
export async function* portionsOf(source: BlobSource): AsyncGenerator<Uint8Array, void, undefined> {
  const opened = source.open();
  yield* 'getReader' in opened ? chunksOf(opened) : opened;
}

/** The chunks of a stream, which is cancelled if its reader stops early. Not every browser's streams are iterables. */
export async function* chunksOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = stream.getReader();
  let ended = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      ended = done;
      if (done) return;
      yield value;
    }
  } finally {
    if (!ended) await reader.cancel();
  }
}
