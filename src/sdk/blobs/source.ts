/** What a blob is made of: bytes that are read when they are needed, so that a file of any size is never held. */

/** Bytes whose number is known before they are read: the server reserves room for exactly so many. */
export interface BlobSource {
  /** Bytes. */
  readonly size: number;
  /** Begins at the first byte, each time: an upload that failed begins again. */
  open(): AsyncIterable<Uint8Array> | ReadableStream<Uint8Array>;
}

/** How far a transfer is, in bytes of the plaintext; `total` null: the server did not tell. */
export interface BlobProgress {
  readonly done: number;
  readonly total: number | null;
}

/** How a transfer is followed and ended. */
export interface TransferOptions {
  /** Ends it: `ClientError` `cancelled`. */
  readonly signal?: AbortSignal;
  /** Begins again at 0 where an upload has to. */
  readonly onProgress?: (progress: BlobProgress) => void;
}

/** A source of bytes that are held already. */
export const bytesSource = (bytes: Uint8Array): BlobSource => ({
  size: bytes.length,
  async *open() {
    await Promise.resolve();
    yield bytes;
  },
});

/** A source of a `Blob` or `File`, as browsers give them. */
export const fileSource = (file: globalThis.Blob): BlobSource => ({ size: file.size, open: () => file.stream() });

/** The bytes of a source; gives the stream up where its reader stops early. */
export async function* portionsOf(source: BlobSource): AsyncGenerator<Uint8Array, void, undefined> {
  const opened = source.open();
  if (!('getReader' in opened)) {
    yield* opened;
    return;
  }
  // Not every browser's streams can be iterated.
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
