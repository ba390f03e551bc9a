/** Tenants by name, in PostgreSQL (sql/0006_hosting.sql, sql/0011_signups.sql). */
import { UNCLAIMED_MS } from '../../protocol/limits.js';
import type { NewDevice } from '../../protocol/request-fields.js';
import { byColumn, deviceOf, Store, type Joined } from '../storage/query.js';

/** Stored as the mail address. Signup accepts only addresses with an `@`, so no tenant that was signed up has this. */
export const TEST_TENANT = 'test-tenant';
/** Written out, so that their partial index serves it (sql/0026_tenant_lookups.sql). */
const IS_TEST = `email = '${TEST_TENANT}'`;

/** A change of a host name: the tenant it belongs to from now on, or null where it is free again. */
export interface HostChange {
  readonly slug: string;
  readonly tenantId: string | null;
}

/** Changes, at most one of a name, and the position from which the next read continues. */
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
  /**
   * SHA-256 of the token in the address that the checkout returns to: the tenant is pending until it is paid for. Null:
   * there is no checkout, and it is active at once.
   */
  readonly returnHash: Uint8Array | null;
  /** Where it was signed up from: an IPv4 /16 or an IPv6 /32. Null: the operator made it, and no network counts it. */
  readonly network: string | null;
  /** The most unclaimed tenants in all, and from this network. */
  readonly unclaimedMax: number;
  readonly networkMax: number;
  readonly now: number;
}

/** A position is the xmin of the read's snapshot: every transaction below it has ended, and its changes were read. */
const POSITION = 'pg_snapshot_xmin(pg_current_snapshot())::text AS position';

/** Names of tenants. Every call is one statement; each throws `unavailable` while the database is down. */
export class HostingStore extends Store {
  /** All names. */
  all(): Promise<HostChanges> {
    const text = `SELECT ${POSITION}, (SELECT coalesce(json_agg(json_build_object('slug', t.slug, 'tenantId', t.id)), '[]')
      FROM tenants t WHERE t.slug IS NOT NULL) AS changes`;
    return this.one(text, [], { readOnly: true });
  }

  /**
   * The names that changed since a position, as they are now. The changes themselves could not be put in order: one
   * transaction may free a name and sign it up again, and a later transaction may commit before an earlier one.
   */
  since(position: string): Promise<HostChanges> {
    const text = `SELECT ${POSITION}, (SELECT coalesce(json_agg(json_build_object('slug', h.slug, 'tenantId', t.id)), '[]')
      FROM (SELECT DISTINCT slug FROM host_changes WHERE xid >= $1::xid8) h LEFT JOIN tenants t ON t.slug = h.slug) AS changes`;
    return this.one(text, [position], { name: 'host_changes', readOnly: true });
  }

  /** Frees what was unclaimed for too long first. `unavailable`: too many tenants are unclaimed; `rate_limited`: too many from this network. */
  async signUp(tenant: NewTenant): Promise<'ok' | 'slug_taken' | 'unavailable' | 'rate_limited'> {
    const { id, slug, email, claimHash, returnHash, network, now } = tenant;
    const state = returnHash === null ? 'active' : 'pending';
    const limits = [tenant.unclaimedMax, tenant.networkMax, now - UNCLAIMED_MS, now];
    // Not the tenant first: each is a new one, and would have turns of its own, though all wait for one lock.
    const { verdict } = await this.one<{ verdict: 'ok' | 'slug_taken' | 'unavailable' | 'rate_limited' }>(
      'SELECT sign_up($2, $1, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS verdict',
      [slug, id, email, claimHash, returnHash, state, network, ...limits],
    );
    return verdict;
  }

  /** Names of test tenants and when they were made, oldest first: at most `limit`. */
  testTenants(limit: number): Promise<{ slug: string; createdAt: number }[]> {
    const text = `SELECT slug, created_at AS "createdAt" FROM tenants
      WHERE ${IS_TEST} AND slug IS NOT NULL ORDER BY created_at, slug LIMIT $1`;
    return this.rows(text, [limit]);
  }

  /** How many test tenants there are. */
  async countTestTenants(): Promise<number> {
    return (await this.one<{ count: number }>(`SELECT count(*) FROM tenants WHERE ${IS_TEST}`)).count;
  }

  /** The id of a test tenant; undefined for the name of any other tenant. */
  async testTenantOf(slug: string): Promise<string | undefined> {
    return (await this.first<{ id: string }>(`SELECT id FROM tenants WHERE slug = $1 AND ${IS_TEST}`, [slug]))?.id;
  }

  /**
   * Claims a test tenant with its first device and adds the others. One verdict and token epoch for each device, in
   * their order.
   */
  async claimTestTenant(
    { tenantId, claimHash }: { readonly tenantId: string; readonly claimHash: Uint8Array },
    [first, ...others]: readonly NewDevice[],
    maxDevices: number,
    now: number,
  ): Promise<Joined[]> {
    if (first === undefined) return [];
    const { name, glyph } = first;
    const given = [tenantId, true, claimHash, ...deviceOf(first)];
    const claimed = await this.call<Joined>('claim_tenant', ...given, null, maxDevices, now);
    if (others.length === 0 || claimed.verdict !== 'ok') return [claimed];
    const added = await this.rows<Joined>(
      `SELECT a.verdict, a.epoch
        FROM unnest($2::text[], $3::bytea[], $4::bytea[]) WITH ORDINALITY AS d(id, pubkey, cert, place),
          LATERAL add_device($1, d.id, $5, $6, d.pubkey, d.cert, $7, $8) a
        ORDER BY d.place`,
      [tenantId, ...byColumn(others, 'id', 'pubkey', 'cert'), name, glyph, maxDevices, now],
    );
    return [claimed, ...added];
  }

  /** Removes at most `limit` items of a tenant; `gone` once it has none: then the tenant is removed too. */
  removeSome(tenantId: string, limit: number, now: number): Promise<'gone' | 'more' | 'tenant_not_found'> {
    return this.value('delete_tenant', tenantId, limit, now);
  }

  /** Undoes a signup whose checkout could not be made; the name is free again. */
  async undoSignUp(tenantId: string, now: number): Promise<void> {
    await this.call('undo_sign_up', tenantId, now);
  }
}
