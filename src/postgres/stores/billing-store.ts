/** What the payment provider said, in PostgreSQL (sql/0009_billing.sql; contract 12). */
import type pg from 'pg';
import type { Account, BillingStore as BillingStorePort, Fact, Verdict } from '../../billing/ports.js';
import { ask, askOne } from '../ask.js';

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
export class BillingStore implements BillingStorePort {
  constructor(private readonly pool: pg.Pool) {}

  apply(fact: Fact, graceMs: number, now: number): Promise<{ verdict: Verdict; tenantId: string | null }> {
    const { eventId, tenantId, customerId, subscriptionId, kind, at, paidUntil } = fact;
    return askOne(this.pool, {
      text: `SELECT verdict, tenant AS "tenantId" FROM apply_webhook($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
      values: [eventId, tenantId, customerId, subscriptionId, kind, at, paidUntil, graceMs, now],
    });
  }

  async sweep(graceMs: number, limit: number, now: number): Promise<readonly string[]> {
    const text = 'SELECT tenant FROM sweep_billing($1, $2, $3) tenant';
    const rows = await ask<{ tenant: string }>(this.pool, { text, values: [graceMs, limit, now] });
    return rows.map(({ tenant }) => tenant);
  }

  async account(tenantId: string): Promise<Account | undefined> {
    const [row] = await ask<Account>(this.pool, { text: `${ACCOUNT} t.id = $1`, values: [tenantId], readOnly: true });
    return row;
  }

  async returning(returnHash: Uint8Array): Promise<Account | undefined> {
    const text = `${ACCOUNT} t.return_hash = $1`;
    const [row] = await ask<Account>(this.pool, { text, values: [returnHash], readOnly: true });
    return row;
  }

  async noteCheckout(tenantId: string, checkoutId: string): Promise<void> {
    await ask(this.pool, {
      text: 'UPDATE tenants SET checkout_id = $2 WHERE id = $1',
      values: [tenantId, checkoutId],
    });
  }
}
