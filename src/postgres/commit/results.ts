/**
 * What the commit functions answer (sql/0002_commit.sql), checked before anything of it is believed: a change that is
 * acknowledged by another one's row would be lost, and one without a row would never be answered.
 */
import type { Summary } from '../../protocol/item.js';
import type { ItemRow, Verdict } from '../../tenant/change.js';
import { readRows } from '../packing.js';

/** What `commit_changes` decided of one change. `alone`: ask again without others of its tenant. */
export interface Decided {
  readonly verdict: Verdict | 'alone';
  readonly version: number | null;
  readonly ts: number | null;
  readonly stored: ItemRow | null;
  /** Where the tenant stood after it. */
  readonly summary: Summary;
  readonly generation: number;
}

/** Verdicts of changes that are stored, so that they have a version. */
const STORED: ReadonlySet<unknown> = new Set(['same', 'insert', 'replace', 'rewrap', 'delete', 'move']);
const OTHERS: ReadonlySet<unknown> = new Set(['stale', 'conflict', 'missing', 'refused', 'no_blob', 'cap', 'alone']);

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isCountOrNull = (value: unknown): value is number | null => value === null || isCount(value);

/** One for each change, in their order. Throws where that is not what the rows are. */
export function readDecided(rows: unknown, changes: number): Decided[] {
  const given = rowsOf(rows, changes);
  return given.map((row, at) => {
    if (row[0] !== at + 1) throw new Error(`row ${at + 1} is about change ${String(row[0])}`);
    return decidedOf(row);
  });
}

function decidedOf(row: readonly unknown[]): Decided {
  const [, verdict, version, ts, head, itemCount, versionSum, generation, stored] = row;
  if (!isVerdict(verdict)) throw new Error('a verdict that there is not');
  if (!isCountOrNull(version) || !isCountOrNull(ts)) throw new Error('a version or time that is none');
  if (STORED.has(verdict) && (version === null || version === 0)) throw new Error(`${verdict} without a version`);
  // Of a tenant that is gone there is nothing to say but that the check is stale.
  const standing = verdict === 'stale' && head === null ? [0, 0, 0, 0] : [head, itemCount, versionSum, generation];
  if (!areCounts(standing)) throw new Error('a standing that is none');
  if (stored !== null && !Buffer.isBuffer(stored)) throw new Error('a stored row that is none');
  const [at, items, sum, current] = standing;
  return {
    ...{ verdict, version, ts, stored: stored === null ? null : (readRows(stored)[0] ?? null) },
    ...{ summary: { version: at, itemCount: items, versionSum: sum }, generation: current },
  };
}

/** Where each tenant stands after `insert_changes`, in their order; null where nothing was done. Throws as above. */
export function readInserted(rows: unknown, tenants: number): (Summary | null)[] {
  const [columns] = rowsOf(rows, 1);
  const [heads, itemCounts, versionSums] = (columns ?? []).map((column) => rowsOf(column, tenants, isCountOrNull));
  if (heads === undefined || itemCounts === undefined || versionSums === undefined)
    throw new Error('a column is missing');
  return heads.map((version, at) => {
    if (version === null) return null;
    const [itemCount, versionSum] = [itemCounts[at], versionSums[at]];
    if (!isCount(itemCount) || !isCount(versionSum)) throw new Error('a sum is missing');
    return { version, itemCount, versionSum };
  });
}

/** A list of so many, each as it should be: rows unless said otherwise. */
function rowsOf<T = readonly unknown[]>(
  given: unknown,
  count: number,
  fits: (value: unknown) => value is T = Array.isArray as unknown as (value: unknown) => value is T,
): T[] {
  if (!Array.isArray(given) || given.length !== count) throw new Error(`not a list of ${count}`);
  const list: unknown[] = given;
  if (!list.every(fits)) throw new Error('a list with something else in it');
  return list;
}

const isVerdict = (value: unknown): value is Decided['verdict'] => STORED.has(value) || OTHERS.has(value);
const areCounts = (values: readonly unknown[]): values is [number, number, number, number] => values.every(isCount);
