/** The parameters of the commit functions (sql/0002_commit.sql): one byte string, and arrays of the small columns. */
import { FIXED_BYTES } from '../../tenant/packed.js';
import type { Change } from '../../tenant/ports.js';

const placeholders = (count: number): string => Array.from({ length: count }, (_, i) => `$${i + 1}`).join(',');

export const INSERT_SQL = `SELECT * FROM insert_changes(${placeholders(17)})`;
export const COMMIT_SQL = `SELECT * FROM commit_changes(${placeholders(20)})`;

/**
 * Settings of a lane's connection. The functions' plans are made once, maybe while the tables are still empty, and kept:
 * they must look rows up by their keys, however small the tables were at that moment. Planning anew would cost
 * more than a small batch.
 */
export const LANE_SETTINGS = `
  SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
  SET enable_mergejoin = off; SET work_mem = '32MB'`;

// Array literals are text. Ids are quoted where they might be read as NULL: a bin may be called so.
const list = (values: readonly (number | string | boolean)[]): string => `{${values.join(',')}}`;
const nullable = (values: readonly (number | null)[]): string => `{${values.map((v) => v ?? 'NULL').join(',')}}`;
const quoted = (values: readonly string[]): string => `{"${values.join('","')}"}`;
const texts = (values: readonly (string | null)[]): string =>
  `{${values.map((v) => (v === null ? 'NULL' : `"${v}"`)).join(',')}}`;

/** Bytes a change takes in a batch. */
export const changeBytes = (change: Change): number => change.packed.bytes.length;

/** All changes' bytes one behind the other, and where each begins. */
function gather(changes: readonly Change[]): { readonly bytes: Buffer; readonly offsets: readonly number[] } {
  const offsets: number[] = [];
  let total = 0;
  for (const { packed } of changes) {
    offsets.push(total);
    total += packed.bytes.length;
  }
  return {
    bytes: Buffer.concat(
      changes.map(({ packed }) => packed.bytes),
      total,
    ),
    offsets,
  };
}

/** Parameters of `commit_changes`, in this order. Every text in a change was checked to be an id or a known word. */
export function batchParameters(changes: readonly Change[], { now, cap }: { now: number; cap: number }): unknown[] {
  const tenants = new Map<string, number>();
  for (const { tenantId } of changes) if (!tenants.has(tenantId)) tenants.set(tenantId, tenants.size + 1);
  const { bytes, offsets } = gather(changes);
  return [
    list([...tenants.keys()]),
    now,
    cap,
    list(changes.map((change) => tenants.get(change.tenantId) ?? 0)),
    list(changes.map((change) => change.generation)),
    list(changes.map((change) => change.kind[0] ?? '')),
    list(changes.map((change) => change.id)),
    list(changes.map((change) => change.deviceId)),
    texts(changes.map((change) => change.binId)),
    texts(changes.map((change) => change.type)),
    nullable(changes.map((change) => change.write?.ts ?? null)),
    nullable(changes.map((change) => change.ifVersion)),
    list(changes.map(({ refused, refusedForBin }) => (refused ? (refusedForBin ? 1 : 2) : 0))),
    texts(changes.map((change) => change.packed.blobRef)),
    list(changes.map((change) => change.packed.has)),
    list(offsets),
    list(changes.map((change) => change.packed.ctBytes)),
    list(changes.map((change) => change.packed.keysBytes)),
    list(changes.map((change) => change.packed.blobKeysBytes)),
    bytes,
  ];
}

/** Whether a change can be a plain insert, as far as can be told without looking at what is stored. */
export const mayInsert = ({ kind, refused, ifVersion, packed }: Change): boolean =>
  kind === 'write' &&
  !refused &&
  (ifVersion ?? 0) === 0 &&
  packed.blobRef === null &&
  packed.bytes.length > FIXED_BYTES;

/** A tenant's changes in a batch. All were checked against the same generation. */
export interface TenantChanges {
  readonly tenantId: string;
  readonly generation: number;
  readonly changes: readonly Change[];
}

/** Parameters of `insert_changes`, in this order; tenants in the order of their ids. */
export function insertParameters(tenants: readonly TenantChanges[], cap: number): unknown[] {
  const changes = tenants.flatMap((tenant) => tenant.changes);
  const { bytes, offsets } = gather(changes);
  return [
    cap,
    list(tenants.map(({ tenantId }) => tenantId)),
    list(tenants.map(({ generation }) => generation)),
    list(tenants.map((tenant) => tenant.changes.length)),
    list(tenants.map((tenant) => tenant.changes.reduce((sum, { packed }) => sum + packed.counted, 0))),
    list(tenants.flatMap((tenant, i) => tenant.changes.map(() => i + 1))),
    list(tenants.flatMap((tenant) => tenant.changes.map((_, i) => i + 1))),
    list(changes.map((change) => change.id)),
    list(changes.map((change) => change.deviceId)),
    quoted(changes.map((change) => change.binId ?? '')),
    list(changes.map((change) => change.type ?? '')),
    list(changes.map((change) => change.write?.ts ?? 0)),
    list(changes.map((change) => change.packed.has)),
    list(offsets),
    list(changes.map((change) => change.packed.ctBytes)),
    list(changes.map((change) => change.packed.keysBytes)),
    bytes,
  ];
}
