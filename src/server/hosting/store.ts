/** Tenants by name, in PostgreSQL (sql/0006_hosting.sql, sql/0011_signups.sql). */
import { Store } from '../storage/query.js';

/** A change of a host name: the tenant it belongs to from now on, or null where it is free again. */
export interface HostChange {
  readonly slug: string;
  readonly tenantId: string | null;
}

/** Changes in the order they were committed, and the position from which the next read continues. */
export interface HostChanges {
  readonly changes: readonly HostChange[];
  /** Opaque. Reading from it may return some changes again, and misses none. */
  readonly position: string;
}

/** A tenant to be signed up. Times are milliseconds since 1970. */
interface NewTenant {
  readonly id: string;
  readonly slug: string;
  readonly email: string;
  /** SHA-256 of the claim token. */
  readonly claimHash: Uint8Array;
  /** SHA-256 of the token in the address that the checkout returns to; null: there is no checkout. */
  readonly returnHash: Uint8Array | null;
  readonly state: 'active' | 'pending';
  /** Where it was signed up from: an IPv4 /16 or an IPv6 /32. */
  readonly network: string;
  /** The most unclaimed tenants in all, and from this network. */
  readonly unclaimedMax: number;
  readonly networkMax: number;
  /** Tenants that have been unclaimed since before this time are freed first. */
  readonly freeBefore: number;
  readonly now: number;
}

interface Row {
  readonly position: string;
  readonly changes: readonly HostChange[] | null;
}

/** Positions are the xmin of the snapshot that read: every transaction below it is over, and was seen. */
const POSITION = 'pg_snapshot_xmin(pg_current_snapshot())::text AS position';

const changesOf = ({ position, changes }: Row): HostChanges => ({ position, changes: changes ?? [] });

/** Names of tenants. Every call is one statement; each throws `unavailable` while the database is down. */
export class HostingStore extends Store {
  /** Every name there is. */
  async all(): Promise<HostChanges> {
    const text = `SELECT ${POSITION}, (SELECT json_agg(json_build_object('slug', t.slug, 'tenantId', t.id))
      FROM tenants t WHERE t.slug IS NOT NULL) AS changes`;
    return changesOf(await this.one<Row>(text, [], { readOnly: true }));
  }

  /** The changes since a position. */
  async since(position: string): Promise<HostChanges> {
    const text = `SELECT ${POSITION}, (SELECT json_agg(json_build_object('slug', h.slug, 'tenantId', h.tenant_id) ORDER BY h.xid, h.at)
      FROM host_changes h WHERE h.xid >= $1::xid8) AS changes`;
    return changesOf(await this.one<Row>(text, [position], { name: 'host_changes', readOnly: true }));
  }

  /** `unavailable`: too many tenants are unclaimed; `rate_limited`: too many from this network. */
  signUp(tenant: NewTenant): Promise<'ok' | 'slug_taken' | 'unavailable' | 'rate_limited'> {
    const { id, slug, email, claimHash, returnHash, state, network } = tenant;
    const limits = [tenant.unclaimedMax, tenant.networkMax, tenant.freeBefore, tenant.now];
    const text = 'SELECT sign_up($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS verdict';
    return this.value(text, [id, slug, email, claimHash, returnHash, state, network, ...limits]);
  }

  /** Undoes a signup whose checkout could not be made; the name is free again. */
  async undoSignUp(tenantId: string, now: number): Promise<void> {
    await this.rows('SELECT undo_sign_up($1, $2)', [tenantId, now]);
  }
}
