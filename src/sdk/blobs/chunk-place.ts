/** Where a download is kept chunk by chunk, so that a later run can go on with it. */

/** A chunk as it was authenticated: its plaintext and the tag of its ciphertext. */
export interface KeptChunk {
  readonly plain: Uint8Array;
  readonly tag: Uint8Array;
}

/** A place for the chunks of one blob. What it gives back is not trusted: it is compared with its tag again. */
export interface ChunkPlace {
  /** Chunk number `at` of an earlier run; undefined: there is none. Asked in order, from 0 on. */
  kept(at: number): Promise<KeptChunk | undefined>;
  /** Drops all but the first `chunks`; `add` follows them. */
  begin(chunks: number): Promise<void>;
  /** The next bytes of plaintext, authenticated. Of a blob in chunks they are one chunk, and `tag` is its tag. */
  add(plain: Uint8Array, tag: Uint8Array): Promise<void>;
}
