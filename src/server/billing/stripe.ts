/** The payment provider, Stripe, through its own library. */
import Stripe from 'stripe';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import { TENANT_KEY } from './rules.js';

/** A webhook's signature is valid for this long before and after the time that it names, s. */
const TOLERANCE_S = 300;
/** A call that takes longer is aborted, ms: a client waits for its answer. */
const TIMEOUT_MS = 10_000;
/** How often the library repeats a call that was lost in transit, under its idempotency key. */
const RETRIES = 1;
const COME_BACK_S = 5;

interface StripeOptions {
  readonly secretKey: string;
  readonly webhookSecret: string;
  readonly priceId: string;
  /** Another server than Stripe's, for tests; null: Stripe. */
  readonly apiBase: string | null;
  /** Default: ten seconds. */
  readonly timeoutMs?: number;
}

/** A checkout to be made. */
export interface CheckoutOrder {
  readonly tenantId: string;
  /** The provider's id of the customer; null: a new one, with this mail address. */
  readonly customerId: string | null;
  readonly email: string | null;
  readonly successUrl: string;
  readonly cancelUrl: string;
  /** Until when it can be paid, ms; null: until the provider ends it, which is after a day. */
  readonly expiresAt: number | null;
  /** Idempotency key: the same order under the same key makes one checkout, however often it is sent. */
  readonly key: string;
}

/** A checkout at the provider; `url` is where the customer pays, null once that is over. */
type CheckoutSession = Pick<Stripe.Checkout.Session, 'id' | 'status' | 'url'>;

function addressOf(apiBase: string | null): Stripe.StripeConfig {
  if (apiBase === null) return {};
  const { hostname, port, protocol } = new URL(apiBase);
  const http = protocol === 'http:';
  return { host: hostname, port: port === '' ? (http ? 80 : 443) : Number(port), protocol: http ? 'http' : 'https' };
}

/** When a `Stripe-Signature` was made, s; Infinity unless it names exactly one time. */
function signedAt(signature: string): number {
  const times = signature.split(',').filter((part) => /^\s*t\s*=/.test(part));
  const [, digits] = times.length === 1 ? (/^t=(\d{1,12})$/.exec(times[0] ?? '') ?? []) : [];
  return digits === undefined ? Infinity : Number(digits);
}

/**
 * Calls Stripe. Each call throws `unavailable` while it is out of reach, too busy or broken, and `internal` where it
 * refuses the call; causes carry no key.
 */
export class StripePayments {
  private readonly stripe: Stripe;

  constructor(private readonly options: StripeOptions) {
    this.stripe = new Stripe(options.secretKey, {
      ...addressOf(options.apiBase),
      timeout: options.timeoutMs ?? TIMEOUT_MS,
      maxNetworkRetries: RETRIES,
      telemetry: false,
    });
  }

  /** Makes a checkout; for a new customer, if the provider does not know the order's (any more). */
  checkout(order: CheckoutOrder): Promise<CheckoutSession> {
    return calling(async () => {
      try {
        return await this.order(order);
      } catch (error) {
        if (order.customerId === null || !isOfUnknownCustomer(error)) throw error;
        return await this.order({ ...order, customerId: null, key: `${order.key}-new` });
      }
    });
  }

  private order(order: CheckoutOrder): Promise<CheckoutSession> {
    const { tenantId, customerId, email, successUrl, cancelUrl, expiresAt, key } = order;
    const newcomer = email === null ? {} : { customer_email: email };
    const params: Stripe.Checkout.SessionCreateParams = {
      mode: 'subscription',
      line_items: [{ price: this.options.priceId, quantity: 1 }],
      // For people who look at the provider's pages; see `tenantIn`.
      client_reference_id: tenantId,
      // Every event of the checkout and its subscription names the tenant, whichever arrives first.
      metadata: { [TENANT_KEY]: tenantId },
      subscription_data: { metadata: { [TENANT_KEY]: tenantId } },
      success_url: successUrl,
      cancel_url: cancelUrl,
      ...(expiresAt === null ? {} : { expires_at: Math.floor(expiresAt / 1_000) }),
      ...(customerId === null ? newcomer : { customer: customerId }),
    };
    return this.stripe.checkout.sessions.create(params, { idempotencyKey: key });
  }

  /** A checkout; undefined: the provider does not know it (any more), as after a change of the merchant's account. */
  checkoutOf(checkoutId: string): Promise<CheckoutSession | undefined> {
    return calling(async () => {
      try {
        return await this.stripe.checkout.sessions.retrieve(checkoutId);
      } catch (error) {
        if (error instanceof Stripe.errors.StripeError && error.statusCode === 404) return undefined;
        throw error;
      }
    });
  }

  /** The URL of the page where a customer manages the subscription; short-lived. */
  portal(customerId: string, returnUrl: string): Promise<string> {
    const params = { customer: customerId, return_url: returnUrl };
    return calling(async () => (await this.stripe.billingPortal.sessions.create(params)).url);
  }

  /** The event in a webhook's body, unchecked, if its signature is valid at `now`. Throws `webhook_invalid`. */
  event(body: Uint8Array, signature: string, now: number): Stripe.Event {
    // The library refuses old signatures only; one dated in the future would stay valid until then.
    if (signedAt(signature) > now / 1_000 + TOLERANCE_S) throw new ServiceError('webhook_invalid');
    try {
      const { webhookSecret } = this.options;
      return this.stripe.webhooks.constructEvent(body, signature, webhookSecret, TOLERANCE_S, undefined, now);
    } catch {
      // The library's message quotes the body, and the reason would only help a forger.
      throw new ServiceError('webhook_invalid');
    }
  }
}

/**
 * The parts of an error that may be logged: its type, code, status and Stripe's id for the request. Its message can hold
 * a part of the key, and the customer's input.
 */
function causeOf(error: unknown): Error {
  if (!(error instanceof Stripe.errors.StripeError))
    return new Error(`the payment library failed: ${error instanceof Error ? error.name : typeof error}`);
  const { type, code, statusCode, requestId } = error;
  const parts = [type, code, statusCode, requestId].filter((part) => part !== undefined && part !== '');
  return new Error(`the payment provider: ${parts.join(' ')}`);
}

/** Whether a later attempt may succeed. 409: the same call is under way. */
const isTemporary = (error: unknown): boolean =>
  error instanceof Stripe.errors.StripeConnectionError ||
  error instanceof Stripe.errors.StripeRateLimitError ||
  (error instanceof Stripe.errors.StripeError && (error.statusCode === 409 || (error.statusCode ?? 0) >= 500));

/** A customer can be deleted at the provider, and another account of the merchant has none of the first one's. */
const isOfUnknownCustomer = (error: unknown): boolean =>
  error instanceof Stripe.errors.StripeError && error.code === 'resource_missing' && error.param === 'customer';

/** Runs a call. Throws its failure as a refusal. */
async function calling<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    const refusal = isTemporary(error)
      ? unavailable('the payment provider is out of reach', COME_BACK_S)
      : new ServiceError('internal');
    refusal.cause = causeOf(error);
    throw refusal;
  }
}
