/** The list of objects of a backup beside the bucket as it is: what is gone since, and what is another object now. */
import type { ListedObject, Listing } from './ports.js';

/** An object of the list that is not in the bucket. */
export interface LostObject extends ListedObject {
  /** The restored item that names it; null: none does. */
  readonly itemId: string | null;
}

/** Those that are lost: how many, how many of them an item names, and the first of them. */
export interface Lost {
  readonly count: number;
  readonly named: number;
  readonly examples: readonly LostObject[];
}

/** The list of the backup, held by the database while the bucket is listed: it may be longer than the memory is large. */
export interface ObjectLedger {
  /** A piece of the list. */
  add(objects: readonly ListedObject[]): Promise<void>;
  /** Those of these objects that the list has, as the list has them. Each is given once and is in the list no more. */
  take(page: readonly ListedObject[]): Promise<readonly ListedObject[]>;
  /** What was not taken; those first that an item names. */
  left(examples: number): Promise<Lost>;
}

/** How an object differs from the list. `missing`: it is gone. */
export type Difference = 'missing' | 'size' | 'checksum';

/** An object that differs, for a person to look at. */
export interface DifferingObject {
  readonly tenantId: string;
  readonly ref: string;
  readonly difference: Difference;
  /** Size and checksums in the list. */
  readonly listed: string;
  /** The same in the bucket; empty where it is missing. */
  readonly found: string;
  /** Of what is missing, the item that names it; null: none, or not missing. */
  readonly itemId: string | null;
}

/** What a comparison found. */
export interface ObjectComparison {
  /** Objects in the list. */
  readonly listed: number;
  /** Of these, those that are in the bucket with the size and a checksum of the list. */
  readonly same: number;
  readonly missing: number;
  /** Of the missing ones, those that an item names: the others are of no use to anybody. */
  readonly missingNamed: number;
  readonly otherSize: number;
  readonly otherChecksum: number;
  /** The size is the list's, and no checksum of the same kind is there to compare: an object that was copied in parts, or into another store. */
  readonly sizeOnly: number;
  /** In the bucket, and not in the list: written after it. */
  readonly added: number;
  /** The first objects of each kind of difference. */
  readonly examples: readonly DifferingObject[];
}

/** Of each kind of difference. */
const EXAMPLES = 10;
/** An ETag of an object that came in parts is a sum of sums, and says with how many parts it was made. */
const IN_PARTS = /-\d+$/;

/** True, false, or undefined where they have no checksum of one kind. */
export function sameChecksum(one: ListedObject['checksum'], other: ListedObject['checksum']): boolean | undefined {
  const kinds = Object.entries(one ?? {}).flatMap(([name, sum]) => {
    const against = Object.hasOwn(other ?? {}, name) ? other?.[name] : undefined;
    if (against === undefined) return [];
    if (name === 'etag' && IN_PARTS.exec(sum)?.[0] !== IN_PARTS.exec(against)?.[0]) return [];
    return [sum === against];
  });
  return kinds.length === 0 ? undefined : kinds.every((same) => same);
}

/** Compares the list with the bucket; memory holds a page of each. `onPage` is told how many objects the bucket gave so far. */
export async function compareObjects(
  list: AsyncIterable<readonly ListedObject[]>,
  bucket: Listing,
  ledger: ObjectLedger,
  onPage: (objects: number) => void,
): Promise<ObjectComparison> {
  let listed = 0;
  for await (const objects of list) {
    listed += objects.length;
    await ledger.add(objects);
  }
  const found = { same: 0, otherSize: 0, otherChecksum: 0, sizeOnly: 0, added: 0 };
  const examples: DifferingObject[] = [];
  let seen = 0;
  for await (const page of bucket) {
    const there = new Map(page.map((object) => [keyOf(object), object]));
    const known = await ledger.take(page);
    found.added += there.size - known.length;
    for (const wanted of known) {
      const object = there.get(keyOf(wanted));
      if (object === undefined) continue;
      const kind = kindOf(wanted, object);
      if (kind === 'otherSize' || kind === 'otherChecksum') {
        const difference = kind === 'otherSize' ? 'size' : 'checksum';
        if (found[kind] < EXAMPLES) examples.push({ ...shown(wanted), difference, found: told(object), itemId: null });
      }
      found[kind]++;
    }
    onPage((seen += page.length));
  }
  const lost = await ledger.left(EXAMPLES);
  const missing = lost.examples.map((object) => ({
    ...shown(object),
    ...{ difference: 'missing' as const, found: '', itemId: object.itemId },
  }));
  const { count, named } = lost;
  return { listed, ...found, missing: count, missingNamed: named, examples: [...missing, ...examples] };
}

const keyOf = ({ tenantId, ref }: ListedObject): string => `${tenantId}/${ref}`;

function kindOf(wanted: ListedObject, object: ListedObject): 'same' | 'otherSize' | 'otherChecksum' | 'sizeOnly' {
  if (wanted.size !== object.size) return 'otherSize';
  const same = sameChecksum(wanted.checksum, object.checksum);
  if (same === undefined) return 'sizeOnly';
  return same ? 'same' : 'otherChecksum';
}

const shown = (object: ListedObject): Pick<DifferingObject, 'tenantId' | 'ref' | 'listed'> => ({
  tenantId: object.tenantId,
  ref: object.ref,
  listed: told(object),
});

const told = ({ size, checksum }: ListedObject): string =>
  [`${size} bytes`, ...Object.entries(checksum ?? {}).map(([name, sum]) => `${name} ${sum}`)].join(', ');
