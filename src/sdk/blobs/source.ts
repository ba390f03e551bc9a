/** Sources of blobs: bytes that are read on demand, so that a file is never in memory as a whole. */

/** Bytes of known size: the server reserves room for exactly that. */
export interface BlobSource {
  /** Bytes. */
  readonly size: number;
  /** Starts at the first byte at each call: what was sent is read again, and compared, where an upload goes on. */
  open(): AsyncIterable<Uint8Array> | ReadableStream<Uint8Array>;
  /** True where its bytes may have changed since it was made: they are then read again, and compared, before its item is written. */
  isTouched?(): Promise<boolean>;
  /** Absent: an upload of it goes on within this program only. */
  readonly identity?: SourceIdentity;
}

/** By what a source is known in another run of the program. Kept, encrypted, until its item is written. */
export interface SourceIdentity {
  /** What a person knows it by: a path, or the name of a file; at most 4,096 characters. */
  readonly name: string;
  /** Changes where the bytes do: a time of change, say. Under another state an upload begins anew; at most 256. */
  readonly state: string;
}

/** Progress of a transfer, in bytes of plaintext; `total` null: the server did not say. */
export interface BlobProgress {
  readonly done: number;
  readonly total: number | null;
}

/** Options of a transfer. */
export interface TransferOptions {
  /** Ends it with `ClientError` `cancelled`. */
  readonly signal?: AbortSignal;
  /** Goes back where a store lost what it had, and to 0 where an upload begins anew. */
  readonly onProgress?: (progress: BlobProgress) => void;
}

/** Options of reading a blob. */
export interface BlobReadOptions extends TransferOptions {
  /**
   * Leaves out the plaintext before this byte, by default 0; progress counts it as done. At or beyond the end nothing
   * is given. Bytes before it are not known to be what was written; the end is.
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

/** A source of a `Blob` or `File`, as browsers give them. A `File` is known by its name and its time of change. */
export const fileSource = (file: globalThis.Blob): BlobSource => ({
  size: file.size,
  open: () => file.stream(),
  ...(file instanceof File ? { identity: { name: file.name, state: String(file.lastModified) } } : {}),
});

/** The bytes of a source; cancels the stream if its reader stops early. */
export async function* portionsOf(source: BlobSource): AsyncGenerator<Uint8Array, void, undefined> {
  const opened = source.open();
  if (!('getReader' in opened)) {
    yield* opened;
    return;
  }
  // Not every browser's streams are async iterables.
  const reader = opened.getReader();
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
