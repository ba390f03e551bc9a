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

/** An object of a bucket, as its store lists it. */
export interface ListedObject {
  readonly tenantId: string;
  readonly ref: string;
  /** Bytes. */
  readonly size: number;
  /** The store's own checksums, by their names there; left out where it tells none. */
  readonly checksum?: Readonly<Record<string, string>>;
}

/** Pages of a listing: a bucket may hold more names than the memory. */
export type Listing = AsyncIterable<readonly ListedObject[]>;

/** Which bucket a list is of. `prefix` null: objects lie at its top. */
export interface BucketName {
  readonly store: 'gcs' | 's3';
  readonly bucket: string;
  readonly prefix: string | null;
}

/** A bucket whose list of objects goes into the backup. */
export interface ObjectsSource extends BucketName {
  readonly pages: Listing;
}

/** The list of a bucket's objects in the backup. */
export interface ObjectList extends BucketName {
  /** Objects in the list. */
  readonly count: number;
  /** Bytes of these objects, together. */
  readonly size: number;
  /** Pieces of the list, in order. Each holds whole lines, one object a line, as JSON. */
  readonly parts: readonly BlobPart[];
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
  /** Left out: blobs are in a folder, or no list is wanted. Asked for last, for the same reason. */
  readonly objects?: ObjectsSource;
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
  /** Left out: there is no list of a bucket's objects in this backup. */
  readonly objects?: ObjectList;
}

/** A table out of a backup. */
export interface TableRows {
  readonly table: string;
  readonly columns: readonly string[];
  readonly rows: Readable;
}
