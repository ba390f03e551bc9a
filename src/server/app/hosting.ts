/** Puts together what only a hosted service has: tenants by host name, signup, billing. */
import type { AddressLimits } from '../http/address-limits.js';
import { Checkout } from '../billing/checkout.js';
import { Webhooks } from '../billing/webhooks.js';
import { apexOf } from '../config/config.js';
import type { Billing } from '../billing/routes.js';
import type { Hosting } from '../hosting/routes.js';
import { Certificates, TenantHosts } from '../hosting/hosts.js';
import { Signup } from '../hosting/signup.js';
import { BillingStore } from '../billing/store.js';
import { HostingStore } from '../hosting/store.js';
import type { Parts } from './parts.js';
import type { TenantParts } from './tenants.js';

/** What only a hosted service has. */
export interface HostingParts {
  readonly hosts: TenantHosts;
  readonly service: Hosting;
  /** Undefined: PAYMENT_BILLING_ENABLED is false. */
  readonly billing: Billing | undefined;
}

/** Reads the table of names. Rejects with `unavailable`. */
export async function composeHosting(
  parts: Parts,
  tenants: TenantParts,
  addressLimits: Pick<AddressLimits, 'take'>,
): Promise<HostingParts> {
  const { config, clock, database, stops, onFault } = parts;
  const { registry, feed } = tenants;
  const apex = apexOf(config);
  const store = new HostingStore(database.pool);
  const hosts = new TenantHosts({
    ...{ store, baseDomain: apex, clock, onFault },
    onFreed: (tenant) => registry.forget(tenant),
  });
  await hosts.start();
  stops.push(() => hosts.close());
  tenants.onHint = (tenant) => hosts.hint(tenant);
  const { protocol, port } = new URL(config.publicUrl ?? `https://${apex}`);
  const hostUrl = (host: string): string => `${protocol}//${host}${port === '' ? '' : `:${port}`}`;
  const urlOf = (slug: string): string => hostUrl(`${slug}.${apex}`);
  const changed = (tenant: string): Promise<void> => registry.changed(tenant);
  const billing = await composeBilling(parts, { apexUrl: hostUrl(apex), urlOf, changed });
  const certificates = new Certificates({ hosts, take: () => addressLimits.take('certificate', 'all') });
  const announce = (tenant: string): void => feed.announce(tenant, 0, 0);
  const signup = new Signup({ store, hosts, clock, urlOf, announce, checkout: billing?.checkout, onFault });
  return {
    hosts,
    service: { isApex: (host) => hosts.isApex(host), certificates, signup },
    billing,
  };
}

/** What the configuration has checked (src/server/config/config.ts, billingConflicts). */
function given(value: string | null): string {
  if (value === null) throw new Error('billing is on without what it needs');
  return value;
}

interface BillingPlace {
  readonly apexUrl: string;
  /** Where a tenant of this name is reached. */
  readonly urlOf: (slug: string) => string;
  /** A tenant's state changed: reads it anew here and tells the other instances. */
  readonly changed: (tenantId: string) => Promise<void>;
}

async function composeBilling(
  { config, log, clock, database, secret, stops, onFault }: Parts,
  { apexUrl, urlOf, changed }: BillingPlace,
): Promise<Billing | undefined> {
  if (!config.paymentBillingEnabled) return undefined;
  const store = new BillingStore(database.pool);
  // Whoever bills nobody does without the library: it takes 20 MB and a tenth of a second.
  const { StripePayments } = await import('../billing/stripe.js');
  const payments = new StripePayments({
    secretKey: given(config.paymentSecretKey),
    webhookSecret: given(config.paymentWebhookSecret),
    priceId: given(config.paymentPriceId),
    apiBase: config.paymentApiBase,
  });
  const onUnknown = (event: object): void =>
    log.warn(event, 'a payment event of a customer who is no tenant here (yet)');
  const webhooks = new Webhooks({
    ...{ store, payments, clock, onUnknown, changed, onFault },
    graceMs: config.paymentGraceMs,
  });
  webhooks.start();
  stops.push(() => webhooks.close());
  const checkout = new Checkout({ store, payments, clock, secret, apexUrl, urlOf });
  return { webhooks, checkout };
}
