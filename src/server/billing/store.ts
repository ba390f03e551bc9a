/** Subscriptions as the payment provider has reported them, in PostgreSQL (sql/0009_billing.sql). */
import { Store } from '../storage/query.js';
import type { Fact } from './rules.js';

/** A tenant as billing sees it. */
export interface Account {
  readonly tenantId: string;
  readonly slug: string;
  readonly email: string | null;
  readonly state: string;
  readonly createdAt: number;
  readonly claimedAt: number | null;
  /** SHA-256 of the claim token; null: it is claimed. */
  readonly claimHash: Uint8Array | null;
  /** The last checkout made for it. */
  readonly checkoutId: string | null;
  /** The provider's customer of the tenant's best subscription; null: it has none. */
  readonly customerId: string | null;
  /** State of that subscription: there is none, it waits for its first payment, it runs, it is over. */
  readonly subscription: 'none' | 'waiting' | 'running' | 'over';
}

/** The outcome of an event; `unknown`: its customer belongs to no tenant (yet). */
interface Applied {
  readonly verdict: 'changed' | 'same' | 'repeated' | 'unknown';
  readonly tenantId: string | null;
}

/** A tenant with the customer who pays for it: that of the subscription that runs, else of the last one. */
const ACCOUNT = `
  SELECT t.id AS "tenantId", t.slug, t.email, t.state, t.created_at AS "createdAt", t.claimed_at AS "claimedAt",
    t.claim_token_hash AS "claimHash", t.checkout_id AS "checkoutId", s.customer_id AS "customerId",
    CASE WHEN s.id IS NULL THEN 'none' WHEN s.ended_at IS NOT NULL THEN 'over'
      WHEN s.good_at IS NULL THEN 'waiting' ELSE 'running' END AS subscription
  FROM tenants t LEFT JOIN LATERAL (
    SELECT u.id, u.customer_id, u.good_at, u.ended_at FROM subscriptions u WHERE u.tenant_id = t.id
    ORDER BY u.good_at IS NOT NULL AND u.ended_at IS NULL DESC, u.ended_at IS NULL DESC, u.good_at DESC NULLS LAST, u.id
    LIMIT 1
  ) s ON true
  WHERE t.slug IS NOT NULL AND `;

/** Every call is one statement, and one transaction; each throws `unavailable` while the database is down. */
export class BillingStore extends Store {
  /** Applies an event, once. Durable when it resolves. */
  apply(fact: Fact, graceMs: number, now: number): Promise<Applied> {
    const { eventId, tenantId, customerId, subscriptionId, kind, at, paidUntil } = fact;
    const event = [eventId, tenantId, customerId, subscriptionId, kind, at, paidUntil];
    const text = 'SELECT verdict, tenant AS "tenantId" FROM apply_webhook($1, $2, $3, $4, $5, $6, $7, $8, $9)';
    return this.one(text, [...event, graceMs, now]);
  }

  /** Ends graces and suspensions whose time is over, at most `limit`; returns the tenants whose state changed. */
  async sweep(graceMs: number, limit: number, now: number): Promise<readonly string[]> {
    const text = 'SELECT tenant FROM sweep_billing($1, $2, $3) tenant';
    const rows = await this.rows<{ tenant: string }>(text, [graceMs, limit, now]);
    return rows.map(({ tenant }) => tenant);
  }

  /** The tenant; undefined for an unknown one. */
  account(tenantId: string): Promise<Account | undefined> {
    return this.first<Account>(`${ACCOUNT} t.id = $1`, [tenantId], { readOnly: true });
  }

  /** The tenant of a return token, by its SHA-256. */
  returning(returnHash: Uint8Array): Promise<Account | undefined> {
    return this.first<Account>(`${ACCOUNT} t.return_hash = $1`, [returnHash], { readOnly: true });
  }

  /** Stores the last checkout of a tenant. */
  async noteCheckout(tenantId: string, checkoutId: string): Promise<void> {
    await this.rows('UPDATE tenants SET checkout_id = $2 WHERE id = $1', [tenantId, checkoutId]);
  }
}
