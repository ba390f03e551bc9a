/**
 * The heads that this instance published in the last seconds. Another instance's subscription arrives a little after
 * the tenant's first socket was opened; changes published in between were not sent there, so their heads are sent then.
 */
import type { Hint } from './notice.js';
import { bucketOf } from './peers.js';

const KEPT_MS = 20_000;
const TENANTS_MAX = 50_000;

interface RecentHead {
  readonly hint: Hint;
  readonly bucket: number;
  readonly at: number;
}

export class RecentHeads {
  /** Ordered by the last change. */
  private readonly heads = new Map<string, RecentHead>();
  /** Every head published after this time, ms, is present. */
  private completeSince = -Infinity;

  /** Notes a head. Returns the bucket of its tenant. */
  note(hint: Hint, now: number): number {
    const [tenantId] = hint;
    const bucket = this.heads.get(tenantId)?.bucket ?? bucketOf(tenantId);
    this.heads.delete(tenantId);
    this.heads.set(tenantId, { hint, bucket, at: now });
    this.evict(now);
    return bucket;
  }

  private evict(now: number): void {
    for (const [id, { at }] of this.heads) {
      if (at > now - KEPT_MS && this.heads.size <= TENANTS_MAX) break;
      this.heads.delete(id);
      this.completeSince = Math.max(this.completeSince, at);
    }
  }

  /** Whether every head published after this time, ms, is present. */
  reaches(since: number): boolean {
    return since >= this.completeSince;
  }

  all(now: number): Iterable<{ readonly hint: Hint; readonly bucket: number }> {
    this.evict(now);
    return this.heads.values();
  }
}
