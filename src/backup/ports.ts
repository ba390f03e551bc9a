/** What a backup is made of, and what it gives back. */
import type { Readable } from 'node:stream';

/** A blob that goes into the backup. */
export interface BlobContent {
  /** `<tenant>/<ref>`. */
  readonly name: string;
  /** Bytes. */
  readonly size: number;
  /** Its bytes, all of them. */
  readonly bytes: AsyncIterable<Uint8Array>;
}

/** A blob in the backup. */
export interface BlobPart {
  readonly name: string;
  readonly bytes: number;
  /** Hex. */
  readonly sha256: string;
}

/** Where a backup's rows and blobs come from. */
export interface BackupSource {
  /** Tables in the order in which they are restored. */
  readonly tables: readonly string[];
  /** Rows of a table, in PostgreSQL's COPY text format. */
  read(table: string): Promise<{ readonly columns: readonly string[]; readonly rows: Readable }>;
  /** About how many bytes there are, for progress. */
  readonly bytes: number;
  /** Milliseconds since 1970. */
  readonly createdAt: number;
  /** The server's version. */
  readonly version: string;
  /** Number of the last migration. */
  readonly schema: number;
  readonly postgres: string;
  /** Left out: blobs are elsewhere. Asked for after the rows: what they name is there, and what is newer does no harm. */
  readonly blobs?: AsyncIterable<BlobContent>;
}

/** A piece of a table. */
export interface Part {
  readonly name: string;
  readonly table: string;
  readonly bytes: number;
  /** Hex. */
  readonly sha256: string;
}

/** What the file says of itself. */
export interface Manifest extends Pick<BackupSource, 'createdAt' | 'version' | 'schema' | 'postgres'> {
  readonly format: number;
  readonly tables: Readonly<Record<string, { readonly columns: readonly string[] }>>;
  readonly parts: readonly Part[];
  /** Left out: blobs are not in this backup. */
  readonly blobs?: readonly BlobPart[];
}

/** A table out of a backup. */
export interface TableRows {
  readonly table: string;
  readonly columns: readonly string[];
  readonly rows: Readable;
}
