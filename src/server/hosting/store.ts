/** Tenants by name, in PostgreSQL (sql/0006_hosting.sql, sql/0011_signups.sql). */
import type { HostChange, HostChanges, HostingStore as HostingStorePort, NewTenant, SignupVerdict } from './ports.js';
import { Store } from '../storage/ask.js';

interface Row {
  readonly position: string;
  readonly changes: readonly HostChange[] | null;
}

/** Positions are the xmin of the snapshot that read: every transaction below it is over, and was seen. */
const POSITION = 'pg_snapshot_xmin(pg_current_snapshot())::text AS position';

const changesOf = ({ position, changes }: Row): HostChanges => ({ position, changes: changes ?? [] });

/** Names of tenants; see the port. */
export class HostingStore extends Store implements HostingStorePort {
  async all(): Promise<HostChanges> {
    const text = `SELECT ${POSITION}, (SELECT json_agg(json_build_object('slug', t.slug, 'tenantId', t.id))
      FROM tenants t WHERE t.slug IS NOT NULL) AS changes`;
    return changesOf(await this.one<Row>(text, [], { readOnly: true }));
  }

  async since(position: string): Promise<HostChanges> {
    const text = `SELECT ${POSITION}, (SELECT json_agg(json_build_object('slug', h.slug, 'tenantId', h.tenant_id) ORDER BY h.xid, h.at)
      FROM host_changes h WHERE h.xid >= $1::xid8) AS changes`;
    const row = await this.first<Row>(text, [position], { name: 'host_changes', readOnly: true });
    return row === undefined ? { position, changes: [] } : changesOf(row);
  }

  async signUp(tenant: NewTenant): Promise<SignupVerdict> {
    const { id, slug, email, claimHash, returnHash, state, network, unclaimedMax, networkMax, freeBefore, now } =
      tenant;
    const values = [id, slug, email, claimHash, returnHash, state, network, unclaimedMax, networkMax, freeBefore, now];
    return this.value<SignupVerdict>('SELECT sign_up($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS verdict', values);
  }

  async undoSignUp(tenantId: string, now: number): Promise<void> {
    await this.rows('SELECT undo_sign_up($1, $2)', [tenantId, now]);
  }
}
