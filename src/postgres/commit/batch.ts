/** The calls of the commit functions (sql/0002_commit.sql): their parameters, and what they answer. */
import { HAS, type Change } from '../../tenant/change.js';
import type { CommitSink } from '../../tenant/ports.js';
import type { Parameters } from './bind.js';

const placeholders = (count: number): string => Array.from({ length: count }, (_, i) => `$${i + 1}`).join(',');

export const INSERT = { name: 'insert', text: `SELECT * FROM insert_changes(${placeholders(17)})` } as const;
export const COMMIT = { name: 'commit', text: `SELECT * FROM commit_changes(${placeholders(20)})` } as const;

/**
 * Settings of a lane's connection. The functions' plans are made once, maybe while the tables are still empty, and kept:
 * they must look rows up by their keys, however small the tables were at that moment. Planning anew would cost
 * more than a small batch.
 */
export const LANE_SETTINGS = `
  SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
  SET enable_mergejoin = off; SET work_mem = '32MB'`;

/** Changes of one tenant, and of one sink, in one batch. All were judged by the same generation. */
export interface TenantChanges {
  readonly tenantId: string;
  readonly generation: number;
  readonly sink: CommitSink | null;
  readonly changes: Change[];
}

/** Whether a change can be a plain insert, as far as can be told without looking at what is stored. */
const mayInsert = ({ kind, refusal, ifVersion, blobRef, has }: Change): boolean =>
  kind === 'write' && refusal === null && (ifVersion ?? 0) === 0 && blobRef === null && (has & HAS.inline) !== 0;

/** The tenants whose every change may be a plain insert, by id; the changes of all others. */
export function byTenant(batch: readonly Change[]): {
  readonly tenants: readonly TenantChanges[];
  readonly others: readonly Change[];
} {
  const found = new Map<string, TenantChanges>();
  const mixed = new Set<string>();
  for (const change of batch) {
    const { tenantId, generation, sink } = change;
    let tenant = found.get(tenantId);
    if (tenant === undefined) found.set(tenantId, (tenant = { tenantId, generation, sink, changes: [] }));
    tenant.changes.push(change);
    // Two sinks: an actor was dropped and made anew with changes under way. They are answered each for itself.
    if (!mayInsert(change) || generation !== tenant.generation || sink !== tenant.sink) mixed.add(tenantId);
  }
  const all = [...found.values()];
  // In the order of ids, as every transaction takes the locks of tenants.
  const sorted = (one: TenantChanges, other: TenantChanges): number => (one.tenantId < other.tenantId ? -1 : 1);
  if (mixed.size === 0) return { tenants: all.sort(sorted), others: [] };
  return {
    tenants: all.filter(({ tenantId }) => !mixed.has(tenantId)).sort(sorted),
    others: batch.filter(({ tenantId }) => mixed.has(tenantId)),
  };
}

/** All changes' bytes in one piece, and where each begins in it. */
interface Gathered {
  readonly bytes: Buffer;
  readonly offsets: readonly number[];
}

/** What lies between the changes of a batch is sent along up to this share of it, rather than copying them. */
const GAPS_MAX = 0.5;

/** The piece of the arena in which they lie, mostly one behind the other; a copy where they are scattered. */
function gather(changes: readonly Change[]): Gathered {
  let [from, to, total] = [Infinity, 0, 0];
  const segment = changes[0]?.segment;
  let together = segment !== undefined;
  for (const change of changes) {
    if (change.segment !== segment) together = false;
    from = Math.min(from, change.at);
    to = Math.max(to, change.end);
    total += change.end - change.at;
  }
  if (together && segment !== undefined && to - from - total <= GAPS_MAX * (to - from)) {
    return { bytes: segment.bytes.subarray(from, to), offsets: changes.map(({ at }) => at - from) };
  }
  const bytes = Buffer.allocUnsafeSlow(total);
  let at = 0;
  const offsets = changes.map((change) => {
    const offset = at;
    at += change.bytes.copy(bytes, at, change.at, change.end);
    return offset;
  });
  return { bytes, offsets };
}

/** Parameters of `insert_changes`; tenants in the order of their ids. */
export function putInsert(into: Parameters, tenants: readonly TenantChanges[], cap: number): void {
  const changes: Change[] = [];
  const places: { readonly tenant: number; readonly rank: number }[] = [];
  for (const [n, tenant] of tenants.entries()) {
    for (const [rank, change] of tenant.changes.entries()) {
      changes.push(change);
      places.push({ tenant: n + 1, rank: rank + 1 });
    }
  }
  const { bytes, offsets } = gather(changes);
  into
    .begin(INSERT.name)
    .int8(cap)
    .texts(tenants, ({ tenantId }) => tenantId)
    .int8s(tenants, ({ generation }) => generation)
    .int4s(tenants, (tenant) => tenant.changes.length)
    .int8s(tenants, (tenant) => tenant.changes.reduce((sum, { counted }) => sum + counted, 0))
    .int4s(places, ({ tenant }) => tenant)
    .int4s(places, ({ rank }) => rank)
    .texts(changes, ({ id }) => id)
    .texts(changes, ({ deviceId }) => deviceId)
    .texts(changes, ({ binId }) => binId)
    .texts(changes, ({ type }) => type)
    .int8s(changes, ({ ts }) => ts)
    .int4s(changes, ({ has }) => has)
    .int4s(offsets, (offset) => offset)
    .int4s(changes, ({ ctBytes }) => ctBytes)
    .int4s(changes, ({ keysBytes }) => keysBytes)
    .bytea(bytes);
}

const KINDS = { write: 'w', delete: 'd', move: 'm' } as const;

/** Parameters of `commit_changes`. Every text in a change was checked to be an id or a known word. */
export function putCommit(
  into: Parameters,
  changes: readonly Change[],
  { now, cap }: { readonly now: number; readonly cap: number },
): void {
  const tenants = new Map<string, number>();
  for (const { tenantId } of changes) if (!tenants.has(tenantId)) tenants.set(tenantId, tenants.size + 1);
  const { bytes, offsets } = gather(changes);
  into
    .begin(COMMIT.name)
    .texts([...tenants.keys()], (tenantId) => tenantId)
    .int8(now)
    .int8(cap)
    .int4s(changes, ({ tenantId }) => tenants.get(tenantId) ?? 0)
    .int8s(changes, ({ generation }) => generation)
    .texts(changes, ({ kind }) => KINDS[kind])
    .texts(changes, ({ id }) => id)
    .texts(changes, ({ deviceId }) => deviceId)
    .texts(changes, ({ kind, binId }) => (kind === 'delete' ? null : binId))
    .texts(changes, ({ type }) => type)
    .int8s(changes, ({ ts }) => ts)
    .int8s(changes, ({ ifVersion }) => ifVersion)
    .int4s(changes, ({ refusal, refusedForBin }) => (refusal === null ? 0 : refusedForBin ? 1 : 2))
    .texts(changes, ({ blobRef }) => blobRef)
    .int4s(changes, ({ has }) => has)
    .int4s(offsets, (offset) => offset)
    .int4s(changes, ({ ctBytes }) => ctBytes)
    .int4s(changes, ({ keysBytes }) => keysBytes)
    .int4s(changes, ({ blobKeysBytes }) => blobKeysBytes)
    .bytea(bytes);
}

/** Bytes that a change takes in a batch. */
export const changeBytes = (change: Change): number => change.end - change.at;
