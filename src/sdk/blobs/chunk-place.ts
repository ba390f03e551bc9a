/** Storage for the chunks of a download, so that a later run can continue it. */

/** An authenticated chunk: its plaintext and the tag of its ciphertext. */
export interface KeptChunk {
  readonly plain: Uint8Array;
  readonly tag: Uint8Array;
}

/** A place for the chunks of one blob. Chunks read back are not trusted: they are verified against their tag again. */
export interface ChunkPlace {
  /** Chunk number `at` of an earlier run; undefined: there is none. Called in order, from 0 on. */
  kept(at: number): Promise<KeptChunk | undefined>;
  /** Drops all but the first `chunks`; `add` follows them. */
  begin(chunks: number): Promise<void>;
  /** Appends authenticated plaintext: for a blob in chunks, one chunk with its tag. */
  add(plain: Uint8Array, tag: Uint8Array): Promise<void>;
}
