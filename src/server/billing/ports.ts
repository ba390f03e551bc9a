/** What billing needs from outside: PostgreSQL and the payment provider. Times are milliseconds since 1970. */

/** What an event says of a subscription: paid, not paid, over, or only whose it is. */
export type FactKind = 'good' | 'failed' | 'ended' | 'seen';

/** One event of the payment provider, as far as it concerns us. */
export interface Fact {
  readonly eventId: string;
  /** The tenant that the event names; null: it names none, and the customer tells. */
  readonly tenantId: string | null;
  readonly customerId: string;
  readonly subscriptionId: string;
  readonly kind: FactKind;
  /** When it happened, by the provider's clock. */
  readonly at: number;
  /** Until when this payment pays; null: it does not say, or is none. */
  readonly paidUntil: number | null;
}

/**
 * What came of an event: the tenant's state changed, or not, or the event was applied before, or it is of a customer
 * that is nobody's here (yet).
 */
export type Verdict = 'changed' | 'same' | 'repeated' | 'unknown';

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
  /** How that subscription stands: there is none, it waits for its first payment, it runs, it is over. */
  readonly subscription: 'none' | 'waiting' | 'running' | 'over';
}

/** Every call is one statement, and one transaction; each throws `unavailable` while the database is down. */
export interface BillingStore {
  /** Durable when it resolves. */
  apply(fact: Fact, graceMs: number, now: number): Promise<{ verdict: Verdict; tenantId: string | null }>;
  /** Ends graces and suspensions whose time is over, at most `limit`; gives the tenants whose state changed. */
  sweep(graceMs: number, limit: number, now: number): Promise<readonly string[]>;
  account(tenantId: string): Promise<Account | undefined>;
  /** The tenant of a return token, by its SHA-256. */
  returning(returnHash: Uint8Array): Promise<Account | undefined>;
  noteCheckout(tenantId: string, checkoutId: string): Promise<void>;
}

/** A checkout to be made. */
export interface CheckoutOrder {
  readonly tenantId: string;
  /** A customer the provider knows, or the mail address of a new one. */
  readonly customer: { readonly id: string } | { readonly email: string | null };
  readonly successUrl: string;
  readonly cancelUrl: string;
  /** When it can be paid no more, ms; null: whenever the provider ends it, which is after a day. */
  readonly expiresAt: number | null;
  /** The same order under the same key makes one checkout, however often it is sent. */
  readonly key: string;
}

/** A checkout at the provider. */
export interface CheckoutSession {
  readonly id: string;
  readonly status: 'open' | 'complete' | 'expired';
  /** Where the customer pays; null once that is over. */
  readonly url: string | null;
}

/**
 * The payment provider. Each call throws `unavailable` while it is out of reach, too busy or broken, and `internal`
 * where it refuses us; causes carry no key.
 */
export interface Payments {
  checkout(order: CheckoutOrder): Promise<CheckoutSession>;
  /** Undefined: the provider does not know it (any more), as after a change of the merchant's account. */
  checkoutOf(checkoutId: string): Promise<CheckoutSession | undefined>;
  /** The page where a customer manages the subscription; short-lived. */
  portal(customerId: string, returnUrl: string): Promise<string>;
  /** The event in a webhook's body, once its signature holds at `now`. Throws `webhook_invalid`. */
  event(body: Uint8Array, signature: string, now: number): unknown;
}
