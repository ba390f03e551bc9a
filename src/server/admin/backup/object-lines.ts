/** The list of a bucket's objects, as it lies in a backup: one object a line, as JSON. */
import { BLOB_REF, ULID } from '../../../protocol/ids.js';
import type { ListedObject, Listing } from './ports.js';

/** Of a backup's file, which anybody may have written. */
const CHECKSUMS_MAX = 8;
const CHECKSUM_MAX = 128;

/** Lines of a listing, a page at a time; `onPage` is told of each. */
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

/** The objects of a piece; undefined: it is no list of objects. */
export function objectsOf(bytes: Buffer): ListedObject[] | undefined {
  const lines = bytes.toString('utf8').split('\n');
  // Every line ends with a line break, so behind the last one there is nothing.
  if (lines.pop() !== '') return undefined;
  const objects: ListedObject[] = [];
  for (const line of lines) {
    const object = objectOf(line);
    if (object === undefined) return undefined;
    objects.push(object);
  }
  return objects;
}

function objectOf(line: string): ListedObject | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined;
  }
  if (typeof value !== 'object' || value === null) return undefined;
  const { tenant, ref, size, checksum } = value as Readonly<Record<string, unknown>>;
  if (typeof tenant !== 'string' || !ULID.test(tenant) || typeof ref !== 'string' || !BLOB_REF.test(ref)) {
    return undefined;
  }
  if (typeof size !== 'number' || !Number.isSafeInteger(size) || size < 0) return undefined;
  if (checksum === undefined) return { tenantId: tenant, ref, size };
  return isChecksum(checksum) ? { tenantId: tenant, ref, size, checksum } : undefined;
}

function isChecksum(value: unknown): value is Readonly<Record<string, string>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const entries = Object.entries(value);
  const fine = entries.every(([, sum]) => typeof sum === 'string' && sum.length <= CHECKSUM_MAX);
  return entries.length <= CHECKSUMS_MAX && fine;
}
