/** The manifest of a backup and its list of a bucket's objects, both validated when read: a file may hold anything. */
import type typiaLibrary from 'typia';
import type { tags } from 'typia';
import { parsedJson } from '../../../protocol/bytes.js';
import type { Count, Ulid } from '../../../protocol/requests.js';
import type { StoredObject } from '../../blobs/ports.js';

/** Its calls are replaced at build time: an import would load the library at every start, for nothing. */
declare const typia: typeof typiaLibrary;

/** A piece of a list, or a blob, in the backup. */
export interface BlobPart {
  readonly name: string;
  readonly bytes: number;
  /** Hex. */
  readonly sha256: string;
}

/** A piece of a table. */
export interface Part extends BlobPart {
  readonly table: string;
}

/** An object of a bucket, as its store lists it. */
export type ListedObject = Omit<StoredObject, 'modifiedAt'>;

/** Pages of a listing, which may be larger than the memory. */
export type Listing = AsyncIterable<readonly ListedObject[]>;

/** The bucket that a list describes. `prefix` null: objects lie at its top level. */
export interface BucketName {
  readonly store: 'gcs' | 's3';
  readonly bucket: string;
  readonly prefix: string | null;
}

/** The list of a bucket's objects in the backup. */
export interface ObjectList extends BucketName {
  /** Objects in the list. */
  readonly count: Count;
  /** The sum of their bytes. */
  readonly size: Count;
  /** Pieces of the list, in order. Each holds whole lines, one object a line, as JSON. */
  readonly parts: readonly BlobPart[];
}

type BlobRef = tags.Pattern<'^[0-7][0-9A-HJKMNP-TV-Z]{25}\\.bin$'>;
type BlobPath = tags.Pattern<'^[0-7][0-9A-HJKMNP-TV-Z]{25}/[0-7][0-9A-HJKMNP-TV-Z]{25}\\.bin$'>;

/** The manifest of a backup. */
export interface Manifest {
  readonly format: number;
  /** Milliseconds since 1970. */
  readonly createdAt: Count & tags.Maximum<8.64e15>;
  /** The server's version. */
  readonly version: string;
  /** Number of the last migration. */
  readonly schema: Count;
  readonly postgres: string;
  readonly tables: Readonly<Record<string, { readonly columns: readonly string[] & tags.MinItems<1> }>>;
  readonly parts: readonly Part[];
  /** Left out: blobs are not in this backup. */
  readonly blobs?: readonly (BlobPart & { readonly name: string & BlobPath })[];
  /** Left out: there is no list of a bucket's objects in this backup. */
  readonly objects?: ObjectList;
}

/** The size of these pieces together. */
export const bytesOf = (parts: readonly BlobPart[]): number => parts.reduce((sum, { bytes }) => sum + bytes, 0);

/** Facts of a backup. `createdAt`: ISO 8601; `bytes`: of all rows, uncompressed. */
export const aboutBackup = ({ createdAt, version, schema, postgres, parts }: Manifest) => ({
  createdAt: new Date(createdAt).toISOString(),
  ...{ version, schema, postgres, bytes: bytesOf(parts) },
});

/** Version of the file format. */
export const FORMAT = 1;

const isOfFormat = typia.createIs<{ readonly format: typeof FORMAT }>();
const isManifest = typia.createIs<Manifest>();

/** The file cannot be restored; the message says why. Nothing was changed. */
export class ArchiveError extends Error {
  override readonly name = 'ArchiveError';
}

/** Parses and validates a manifest. Throws `ArchiveError` if it has another format or is damaged. */
export function manifestOf(bytes: Buffer): Manifest {
  const refuse = (cause: unknown): Error => new ArchiveError('the manifest cannot be read', { cause });
  const value = parsedJson(bytes.toString('utf8'), refuse);
  if (!isOfFormat(value))
    throw new ArchiveError('this is not a backup in a format that this version knows; use the version that wrote it');
  if (!isManifest(value)) throw new ArchiveError('the manifest is damaged');
  return value;
}

/** A line of the list of objects. */
interface ObjectLine {
  readonly tenant: Ulid;
  readonly ref: string & BlobRef;
  readonly size: Count;
  readonly checksum?: Readonly<Record<string, string & tags.MaxLength<128>>>;
}

const CHECKSUMS_MAX = 8;
const isObjectLine = typia.createIs<ObjectLine>();

/** Lines of the list, a page at a time; `onPage` is called for each page. */
export async function* linesOf(
  pages: Listing,
  onPage: (page: readonly ListedObject[]) => void,
): AsyncGenerator<Buffer> {
  for await (const page of pages) {
    if (page.length === 0) continue;
    onPage(page);
    const lines = page.map(({ tenantId, ref, size, checksum }) =>
      JSON.stringify({ tenant: tenantId, ref, size, checksum }),
    );
    yield Buffer.from(`${lines.join('\n')}\n`);
  }
}

/** The objects of a part of the list. Throws `ArchiveError` if it is damaged. */
export function objectsOf(bytes: Buffer): ListedObject[] {
  const lines = bytes.toString('utf8').split('\n');
  try {
    // Every line ends with a line break, so the last element is empty.
    if (lines.pop() !== '') throw new Error('a line without its end');
    return lines.map((line) => objectOf(JSON.parse(line)));
  } catch (error) {
    throw new ArchiveError('the list of objects cannot be read', { cause: error });
  }
}

function objectOf(value: unknown): ListedObject {
  if (!isObjectLine(value)) throw new Error('a line that is not an object');
  const { tenant: tenantId, ref, size, checksum } = value;
  if (Object.keys(checksum ?? {}).length > CHECKSUMS_MAX) throw new Error('too many checksums');
  return { tenantId, ref, size, checksum };
}
