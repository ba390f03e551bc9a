/** The operator's statements (sql/0008_operator.sql). */
import { ulid } from 'ulid';
import { CONNECTION_NAMES } from '../storage/database.js';
import { DATABASE_NOW, SEEN_MS, type InstanceStatus } from '../storage/registration.js';
import { Store } from '../storage/query.js';

/** A tenant in the operator's list. Times are milliseconds since 1970, sizes bytes. */
export interface TenantRow {
  readonly id: string;
  /** Null: the tenant of single mode. */
  readonly slug: string | null;
  readonly state: string;
  readonly email: string | null;
  readonly createdAt: number;
  readonly claimedAt: number | null;
  readonly devices: number;
  readonly items: number;
  readonly storageBytes: number;
}

/** A stored figure that differs from the rows. */
export interface Discrepancy {
  readonly tenantId: string;
  readonly what: string;
  readonly stored: number;
  readonly counted: number;
}

/** Rows in the database. `items`: those that are not deleted. */
export type Counts = Readonly<Record<'tenants' | 'devices' | 'items', number>>;

/** A running server process, as of its last heartbeat. Instances with the same machine and port share that port. */
export interface InstanceRow extends InstanceStatus {
  readonly id: string;
}

/** Result of a change: done, or a name of the error catalogue. */
type OperatorVerdict = 'ok' | 'tenant_not_found' | 'bootstrap_already_done';

/** Each statement throws `unavailable` while the database is down. */
export class OperatorStore extends Store {
  counts(): Promise<Counts> {
    return this.one(
      `SELECT (SELECT count(*) FROM tenants) AS tenants, (SELECT count(*) FROM devices WHERE revoked_at IS NULL) AS devices,
        (SELECT coalesce(sum(item_count), 0)::bigint FROM tenants) AS items`,
    );
  }

  /** Tenants in order of their names, at most `limit`, after the name `after` ('': from the start). */
  tenants(after: string, limit: number): Promise<TenantRow[]> {
    return this.rows<TenantRow>(
      `SELECT t.id, t.slug, t.state, t.email, t.created_at AS "createdAt", t.claimed_at AS "claimedAt",
          (SELECT count(*) FROM devices d WHERE d.tenant_id = t.id AND d.revoked_at IS NULL) AS devices,
          t.item_count AS items, t.storage_bytes AS "storageBytes"
        FROM tenants t WHERE coalesce(t.slug, '') >= $1 AND ($1 = '' OR t.slug > $1)
        ORDER BY coalesce(t.slug, ''), t.id LIMIT $2`,
      [after, limit],
    );
  }

  /** The id of the tenant with this name; without a name, of the tenant of single mode. Undefined if there is none. */
  async tenantOf(slug: string | undefined): Promise<string | undefined> {
    const text = 'SELECT id FROM tenants WHERE slug IS NOT DISTINCT FROM $1 ORDER BY created_at, id LIMIT 1';
    const row = await this.first<{ id: string }>(text, [slug ?? null]);
    return row?.id;
  }

  setState(tenantId: string, state: 'active' | 'suspended' | 'inactive'): Promise<OperatorVerdict> {
    return this.value('set_tenant_state', tenantId, state);
  }

  /** `claimHash`: SHA-256 of the new token. */
  renewClaimToken(tenantId: string, claimHash: Uint8Array): Promise<OperatorVerdict> {
    return this.value('renew_claim_token', tenantId, claimHash);
  }

  removePassword(tenantId: string): Promise<OperatorVerdict> {
    return this.value('remove_password', tenantId);
  }

  discrepancies(): Promise<Discrepancy[]> {
    return this.rows<Discrepancy>('SELECT tenant_id AS "tenantId", what, stored, counted FROM discrepancies()');
  }

  /**
   * Sets a new epoch: every device replays from the start, as required after a volume was copied. Terminates the
   * connections of all servers, since a server reads the epoch only when it connects.
   */
  async newEpoch(): Promise<string> {
    const epoch = ulid();
    await this.rows('UPDATE installation SET epoch = $1', [epoch]);
    await this.rows(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND application_name = ANY ($1)`,
      [[CONNECTION_NAMES.pool, CONNECTION_NAMES.commit]],
    );
    return epoch;
  }

  /** The instances that are up, ordered by machine. */
  instances(): Promise<InstanceRow[]> {
    return this.rows<InstanceRow>(
      `SELECT id, host, pid, port, version, sockets, draining, secrets FROM instances
        WHERE seen_at >= ${DATABASE_NOW} - ${SEEN_MS} ORDER BY host, port, pid, id`,
    );
  }

  /**
   * Orders instances to drain their sockets over `ms`; each reads the order with its next heartbeat. `alone`: other
   * processes on the same port continue.
   */
  async drain(ids: readonly string[], ms: number, alone: boolean): Promise<void> {
    await this.rows(
      `UPDATE instances SET drain_asked_at = ${DATABASE_NOW}, drain_ms = $2, drain_alone = $3 WHERE id = ANY ($1)`,
      [ids, ms, alone],
    );
  }
}
