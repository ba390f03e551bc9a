/** What hosting needs from outside: PostgreSQL in the server. */

/** A host name's change: the tenant it leads to from now on, or null where it is free again. */
export interface HostChange {
  readonly slug: string;
  readonly tenantId: string | null;
}

/** Changes in the order they were committed, and where to read on from. */
export interface HostChanges {
  readonly changes: readonly HostChange[];
  /** Opaque. Reading on from it may bring some changes again, and misses none. */
  readonly position: string;
}

/** A tenant that is to be. Times are milliseconds since 1970. */
export interface NewTenant {
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
  /** Unclaimed tenants at most. */
  readonly unclaimedMax: number;
  /** Unclaimed tenants from this network at most. */
  readonly networkMax: number;
  /** Whoever is unclaimed since before this moment is freed first. */
  readonly freeBefore: number;
  readonly now: number;
}

/** `unavailable`: too many tenants are unclaimed; `rate_limited`: too many from this network. */
export type SignupVerdict = 'ok' | 'slug_taken' | 'unavailable' | 'rate_limited';

/** Tenants by name. Every call is one statement; each throws `unavailable` while the database is down. */
export interface HostingStore {
  /** Every name there is. */
  all(): Promise<HostChanges>;
  since(position: string): Promise<HostChanges>;
  signUp(tenant: NewTenant): Promise<SignupVerdict>;
  /** Takes back a signup whose checkout could not be made; the name is free again. */
  undoSignUp(tenantId: string, now: number): Promise<void>;
}

/** The checkout that signup passes through where it costs something (src/server/billing/checkout.ts). */
export interface SignupCheckout {
  /** The claim token that the page after checkout will show. */
  claimTokenOf(tenantId: string, returnToken: string): string;
  /** Throws `unavailable` and `internal`; then nothing can be paid for. */
  begin(order: { tenantId: string; email: string; returnToken: string }): Promise<{ checkoutUrl: string }>;
}
