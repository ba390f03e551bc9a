/** Changes as they wait in a commit lane, and how a batch of them falls into tenants. */
import type { Change, CommitSink } from '../../tenant/ports.js';
import { mayInsert, type TenantChanges } from './batch.js';

/** A change that waits for its batch. */
export interface Entry {
  readonly change: Change;
  readonly sink: CommitSink;
  readonly bytes: number;
  /** Rises from change to change of a lane. */
  readonly order: number;
  /** Judged without others of its tenant, because together they would pass the storage cap. */
  alone: boolean;
  /** Taken from the queue and not answered. */
  owed: boolean;
  /** When it came in, ms of the monotonic clock. */
  readonly since: number;
}

/** Changes of one tenant, and of one sink, in one batch. */
export interface TenantEntries extends TenantChanges {
  readonly entries: Entry[];
  readonly changes: Change[];
}

/** In the order in which they came in. */
export const inOrder = (one: Entry, other: Entry): number => one.order - other.order;

/** Changes by who submitted them. */
export function bySink(entries: readonly Entry[]): Map<CommitSink, Entry[]> {
  const found = new Map<CommitSink, Entry[]>();
  for (const entry of entries) {
    const before = found.get(entry.sink);
    if (before === undefined) found.set(entry.sink, [entry]);
    else before.push(entry);
  }
  return found;
}

/** The tenants whose every change may be a plain insert, by id; the changes of all others. */
export function byTenant(batch: readonly Entry[]): {
  readonly tenants: readonly TenantEntries[];
  readonly others: readonly Entry[];
} {
  const found = new Map<string, TenantEntries>();
  const mixed = new Set<string>();
  for (const entry of batch) {
    const { change, sink } = entry;
    const { tenantId, generation } = change;
    const tenant = found.get(tenantId) ?? { tenantId, generation, entries: [], changes: [] };
    found.set(tenantId, tenant);
    tenant.entries.push(entry);
    tenant.changes.push(change);
    // Two sinks: an actor was dropped and made anew with changes under way. They are answered each for itself.
    if (!mayInsert(change) || generation !== tenant.generation || sink !== tenant.entries[0]?.sink) mixed.add(tenantId);
  }
  const tenants = [...found.values()].filter(({ tenantId }) => !mixed.has(tenantId));
  // In the order of ids, as every transaction takes the locks of tenants.
  tenants.sort((one, other) => (one.tenantId < other.tenantId ? -1 : 1));
  return { tenants, others: batch.filter(({ change }) => mixed.has(change.tenantId)) };
}
