/**
 * Payment: the checkout at signup, the page it returns to, and the page where a customer manages the subscription.
 *
 * The claim token never goes to the payment provider. The address that the checkout returns to carries a return token
 * instead; the claim token is a MAC over it under a secret of this server. So the page can show the claim link as often
 * as it is loaded, while the database holds hashes only, and shows it only once the tenant is paid for.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { type Clock, DAY_MS, HOUR_MS, MINUTE_MS } from '../../protocol/clock.js';
import { ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME, UNCLAIMED_MS } from '../../protocol/limits.js';
import type { Portal } from '../../protocol/replies.js';
import type { SignupCheckout, UnpaidTenant } from '../hosting/signup.js';
import { sha256 } from '../http/tokens.js';
import type { Account, BillingStore } from './store.js';
import type { CheckoutOrder, StripePayments } from './stripe.js';

/** The page after checkout is valid for this long after signup, ms. */
const RETURN_MS = 7 * DAY_MS;
/**
 * A checkout ends an hour before its unpaid tenant is freed: a payment whose event arrives later would be for nothing.
 */
const PAYABLE_MS = UNCLAIMED_MS - HOUR_MS;
/** The provider's minimum until a checkout ends, ms, with a minute for the difference of clocks. */
const CHECKOUT_MIN_MS = 31 * MINUTE_MS;
/** 32 bytes in base64url. */
const TOKEN = /^[A-Za-z0-9_-]{43}$/;

interface CheckoutOptions {
  readonly store: BillingStore;
  readonly payments: StripePayments;
  readonly clock: Clock;
  /** Key of the claim tokens' MAC; the same on every instance. */
  readonly secret: Uint8Array;
  /** The address of the apex, without a trailing slash. */
  readonly apexUrl: string;
  /** The address of a tenant. */
  readonly urlOf: (slug: string) => string;
}

/**
 * The content of the page after checkout. `unknown`: the address is invalid or has expired. `unpaid`: the payment is not
 * confirmed yet, or was not made. `renewed`: the operator has issued another claim token since.
 */
type Returned =
  | { readonly kind: 'unknown' }
  | { readonly kind: 'paid'; readonly url: string; readonly claimToken: string }
  | { readonly kind: 'unpaid' | 'claimed' | 'renewed'; readonly url: string };

type ReturnPages = Pick<CheckoutOrder, 'successUrl' | 'cancelUrl'>;

/** Checkouts and customer portals of all tenants. */
export class Checkout implements SignupCheckout {
  constructor(private readonly options: CheckoutOptions) {}

  /** The claim token that belongs to a tenant and its return token; 43 characters of base64url. */
  claimTokenOf(tenantId: string, returnToken: string): string {
    return createHmac('sha256', this.options.secret)
      .update(`${SERVICE_NAME}-claim-v1\0${tenantId}\0${returnToken}`, 'utf8')
      .digest('base64url');
  }

  /** The first checkout of a tenant that has just been signed up. Throws `unavailable`, `internal`. */
  async begin({ tenantId, email, returnToken }: UnpaidTenant): Promise<{ checkoutUrl: string }> {
    const expiresAt = this.options.clock.now() + PAYABLE_MS;
    const payer = { tenantId, customerId: null, email, ...this.pagesOf(returnToken) };
    return { checkoutUrl: await this.make({ ...payer, expiresAt, key: `checkout-${tenantId}` }) };
  }

  /** The content of the page after checkout, for a return token. */
  async returned(returnToken: string): Promise<Returned> {
    const account = await this.returning(returnToken);
    if (account === undefined) return { kind: 'unknown' };
    const { tenantId, slug, state, claimedAt, claimHash } = account;
    const url = this.options.urlOf(slug);
    if (claimedAt !== null || claimHash === null) return { kind: 'claimed', url };
    if (state === 'pending') return { kind: 'unpaid', url };
    const claimToken = this.claimTokenOf(tenantId, returnToken);
    const hash = sha256(claimToken);
    if (claimHash.length !== hash.length || !timingSafeEqual(claimHash, hash)) return { kind: 'renewed', url };
    return { kind: 'paid', url, claimToken };
  }

  /**
   * The URL where an abandoned checkout is continued: the same one while it is open, else a new one. Throws `not_found`
   * where there is nothing to pay for.
   */
  async resume(returnToken: string): Promise<string> {
    const account = await this.returning(returnToken);
    if (account?.state !== 'pending') throw new ServiceError('not_found', 'there is nothing to pay for');
    return this.pay(account, this.pagesOf(returnToken));
  }

  /**
   * The URL where the subscription is managed, or, without one, where it is bought. Throws `tenant_not_found`,
   * `unavailable`.
   */
  async portal(tenantId: string): Promise<Portal> {
    const { store, payments, urlOf, apexUrl } = this.options;
    const account = await store.account(tenantId);
    if (account === undefined) throw new ServiceError('tenant_not_found');
    const home = urlOf(account.slug);
    if (account.subscription === 'running' && account.customerId !== null)
      return { url: await payments.portal(account.customerId, home) };
    return { url: await this.pay(account, { successUrl: `${apexUrl}/signup/done`, cancelUrl: home }) };
  }

  private pagesOf(returnToken: string): ReturnPages {
    const page = `${this.options.apexUrl}/signup/done?return=${returnToken}`;
    return { successUrl: page, cancelUrl: page };
  }

  private async returning(returnToken: string): Promise<Account | undefined> {
    if (!TOKEN.test(returnToken)) return undefined;
    const account = await this.options.store.returning(sha256(returnToken));
    return account === undefined || this.options.clock.now() - account.createdAt > RETURN_MS ? undefined : account;
  }

  /** At most one checkout is open for a tenant: two that are paid would be two subscriptions. */
  private async pay(account: Account, pages: ReturnPages): Promise<string> {
    const { payments, clock } = this.options;
    const { tenantId, email, customerId, checkoutId, subscription, state, createdAt } = account;
    const last = checkoutId === null ? undefined : await payments.checkoutOf(checkoutId);
    if (last?.status === 'open' && last.url !== null) return last.url;
    // Paid; the webhook or the bank's confirmation has not arrived yet.
    if (last?.status === 'complete' && subscription !== 'over')
      throw new ServiceError('conflict', 'the payment is being confirmed');
    const expiresAt = state === 'pending' ? createdAt + PAYABLE_MS : null;
    if (expiresAt !== null && expiresAt - clock.now() < CHECKOUT_MIN_MS)
      throw new ServiceError('not_found', 'it is too late to pay: the name is about to be free again');
    // Concurrent calls share the key, and so the checkout. The hour is part of it because the provider repeats the
    // answer of a key, even if it was a failure.
    const hour = Math.floor(clock.now() / HOUR_MS);
    const key = `checkout-${tenantId}-${checkoutId ?? 'first'}-${hour}`;
    return this.make({ tenantId, customerId, email, ...pages, expiresAt, key });
  }

  /** Makes a checkout, stores it as the tenant's last one, and returns the URL where it is paid. */
  private async make(order: CheckoutOrder): Promise<string> {
    const { id, url } = await this.options.payments.checkout(order);
    await this.options.store.noteCheckout(order.tenantId, id);
    if (url === null || !/^https?:\/\//.test(url)) throw new ServiceError('internal', 'the checkout has no address');
    return url;
  }
}
