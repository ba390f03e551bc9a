/** Comparison of the list of objects in a backup with the bucket: which objects are missing or have changed since. */
import { blobPath } from '../../../protocol/ids.js';
import { byColumn, TemporaryTable } from '../../storage/query.js';
import type { ListedObject, Listing } from './manifest.js';

type Checksum = ListedObject['checksum'] | null;

/** An object of the list, as read from the temporary table; a missing one with the restored item that names it. */
type Recorded = Omit<ListedObject, 'checksum'> & { readonly checksum?: Checksum; readonly itemId?: string | null };

/** The list, kept in a temporary table while the bucket is listed because it may exceed the memory. */
export class ObjectLedger extends TemporaryTable {
  /** Holds a connection until closed; `url` leads past a pooler. Throws `unavailable`. */
  static async open(url: string): Promise<ObjectLedger> {
    return new ObjectLedger(await TemporaryTable.create(url, 'recorded', 'size bigint, checksum json'));
  }

  /** Adds a part of the list. */
  async add(objects: readonly ListedObject[]): Promise<void> {
    await this.rows(
      `INSERT INTO recorded SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::json[])
       ON CONFLICT DO NOTHING`,
      [
        ...byColumn(objects, 'tenantId', 'ref', 'size'),
        objects.map(({ checksum }) => (checksum === undefined ? null : JSON.stringify(checksum))),
      ],
    );
  }

  /** Removes the objects of this page from the list, and returns those that it contained, as listed. */
  take(page: readonly ListedObject[]): Promise<readonly Recorded[]> {
    return this.rows<Recorded>(
      `DELETE FROM recorded r USING unnest($1::text[], $2::text[]) AS p (tenant_id, ref)
       WHERE r.tenant_id = p.tenant_id AND r.ref = p.ref
       RETURNING r.tenant_id AS "tenantId", r.ref, r.size, r.checksum`,
      byColumn(page, 'tenantId', 'ref'),
    );
  }

  /** The objects not taken: how many, how many of them an item names, and examples, those that an item names first. */
  async left(limit: number): Promise<{ count: number; named: number; examples: readonly Recorded[] }> {
    const withItems = `recorded r
      LEFT JOIN blobs b ON b.tenant_id = r.tenant_id AND b.ref = r.ref AND b.state = 'ready'
      LEFT JOIN items i ON i.tenant_id = b.tenant_id AND i.id = b.item_id AND i.blob_ref = b.ref`;
    const counts = await this.one<{ readonly count: number; readonly named: number }>(
      `SELECT count(*) AS count, count(i.id) AS named FROM ${withItems}`,
    );
    const examples = await this.rows<Recorded>(
      `SELECT r.tenant_id AS "tenantId", r.ref, r.size, r.checksum, i.id AS "itemId" FROM ${withItems}
       ORDER BY i.id IS NULL, r.tenant_id, r.ref LIMIT $1`,
      [limit],
    );
    return { ...counts, examples };
  }
}

/**
 * What a comparison found. Of the objects listed, `same` are those whose size and checksum match, `sizeOnly` those with
 * the size, but no checksum of the same kind: copied in parts, or into another store. `missingNamed`: the missing ones
 * that an item names, since nothing needs the others. `added`: in the bucket, and not in the list: written after it.
 * `examples`: the first objects of each kind of difference.
 */
export type ObjectComparison = Awaited<ReturnType<typeof compareObjects>>;

/** Examples of each kind of difference. */
const EXAMPLES = 10;
/** The ETag of an object that was uploaded in parts is a hash of hashes, with the number of parts. */
const IN_PARTS = /-\d+$/;

/** Undefined: they have no checksum of the same kind. */
export function sameChecksum(one: Checksum, other: Checksum): boolean | undefined {
  const kinds = Object.entries(one ?? {}).flatMap(([name, sum]) => {
    const against = Object.hasOwn(other ?? {}, name) ? other?.[name] : undefined;
    if (against === undefined) return [];
    if (name === 'etag' && IN_PARTS.exec(sum)?.[0] !== IN_PARTS.exec(against)?.[0]) return [];
    return [sum === against];
  });
  return kinds.length === 0 ? undefined : kinds.every((same) => same);
}

/** Compares the list with the bucket page by page. `onPage` gets the number of the bucket's objects seen so far. */
export async function compareObjects(
  list: AsyncIterable<readonly ListedObject[]>,
  bucket: Listing,
  ledger: ObjectLedger,
  onPage: (objects: number) => void,
) {
  let listed = 0;
  for await (const objects of list) {
    listed += objects.length;
    await ledger.add(objects);
  }
  const found = { same: 0, otherSize: 0, otherChecksum: 0, sizeOnly: 0, added: 0 };
  const examples: ReturnType<typeof exampleOf>[] = [];
  let seen = 0;
  for await (const page of bucket) {
    const there = new Map(page.map((object) => [blobPath(object), object]));
    const known = await ledger.take(page);
    found.added += there.size - known.length;
    for (const wanted of known) {
      const object = there.get(blobPath(wanted));
      if (object === undefined) continue;
      const kind = kindOf(wanted, object);
      if (kind === 'otherSize' || kind === 'otherChecksum') {
        const difference = kind === 'otherSize' ? 'size' : 'checksum';
        if (found[kind] < EXAMPLES) examples.push(exampleOf(wanted, difference, described(object)));
      }
      found[kind]++;
    }
    onPage((seen += page.length));
  }
  const { count, named, examples: lost } = await ledger.left(EXAMPLES);
  examples.unshift(...lost.map((object) => exampleOf(object, 'missing')));
  return { listed, ...found, missing: count, missingNamed: named, examples };
}

function kindOf(wanted: Recorded, object: ListedObject): 'same' | 'otherSize' | 'otherChecksum' | 'sizeOnly' {
  if (wanted.size !== object.size) return 'otherSize';
  const same = sameChecksum(wanted.checksum, object.checksum);
  if (same === undefined) return 'sizeOnly';
  return same ? 'same' : 'otherChecksum';
}

/** An object that differs, for a person to look at; `found`: size and checksums in the bucket, empty if it is missing. */
const exampleOf = (object: Recorded, difference: 'missing' | 'size' | 'checksum', found = '') => ({
  ...{ tenantId: object.tenantId, ref: object.ref, listed: described(object), difference, found },
  /** The restored item that names a missing object; null: none does, or it is not missing. */
  itemId: object.itemId ?? null,
});

const described = ({ size, checksum }: Recorded): string =>
  [`${size} bytes`, ...Object.entries(checksum ?? {}).map(([name, sum]) => `${name} ${sum}`)].join(', ');
