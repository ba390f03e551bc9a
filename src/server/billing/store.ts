/** What the payment provider said, in PostgreSQL (sql/0009_billing.sql). */
import type { Account, BillingStore as BillingStorePort, Fact, Verdict } from './ports.js';
import { Store } from '../storage/ask.js';

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

/** Billing's statements; see the port. */
export class BillingStore extends Store implements BillingStorePort {
  apply(fact: Fact, graceMs: number, now: number): Promise<{ verdict: Verdict; tenantId: string | null }> {
    const { eventId, tenantId, customerId, subscriptionId, kind, at, paidUntil } = fact;
    const values = [eventId, tenantId, customerId, subscriptionId, kind, at, paidUntil, graceMs, now];
    return this.one(
      `SELECT verdict, tenant AS "tenantId" FROM apply_webhook($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
      values,
    );
  }

  async sweep(graceMs: number, limit: number, now: number): Promise<readonly string[]> {
    const text = 'SELECT tenant FROM sweep_billing($1, $2, $3) tenant';
    const rows = await this.rows<{ tenant: string }>(text, [graceMs, limit, now]);
    return rows.map(({ tenant }) => tenant);
  }

  async account(tenantId: string): Promise<Account | undefined> {
    return this.first<Account>(`${ACCOUNT} t.id = $1`, [tenantId], { readOnly: true });
  }

  async returning(returnHash: Uint8Array): Promise<Account | undefined> {
    const text = `${ACCOUNT} t.return_hash = $1`;
    return this.first<Account>(text, [returnHash], { readOnly: true });
  }

  async noteCheckout(tenantId: string, checkoutId: string): Promise<void> {
    await this.rows('UPDATE tenants SET checkout_id = $2 WHERE id = $1', [tenantId, checkoutId]);
  }
}
