/** The payment provider, Stripe, through its own library; its one home. */
import Stripe from 'stripe';
import type { CheckoutOrder, CheckoutSession, Payments } from './ports.js';
import { TENANT_KEY } from './rules.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';

/** A webhook's signature counts for so long before and after the moment that it names, s. */
const TOLERANCE_S = 300;
/** A call that takes longer is given up, ms; somebody waits for it. */
const TIMEOUT_MS = 10_000;
/** The library sends a call again that was lost on the way, under its idempotency key. */
const RETRIES = 1;
const COME_BACK_S = 5;

/** What the client is made of. */
export interface StripeOptions {
  readonly secretKey: string;
  readonly webhookSecret: string;
  readonly priceId: string;
  /** Another server than Stripe's, for tests; null: Stripe. */
  readonly apiBase: string | null;
  /** Left out: ten seconds. */
  readonly timeoutMs?: number;
  /** Sent again so often; left out: once. */
  readonly retries?: number;
}

type Address = Pick<NonNullable<ConstructorParameters<typeof Stripe>[1]>, 'host' | 'port' | 'protocol'>;

function addressOf(apiBase: string | null): Address {
  if (apiBase === null) return {};
  const { hostname, port, protocol } = new URL(apiBase);
  const http = protocol === 'http:';
  return { host: hostname, port: port === '' ? (http ? 80 : 443) : Number(port), protocol: http ? 'http' : 'https' };
}

/** When a `Stripe-Signature` was made, s; Infinity where it does not say so, once. */
function signedAt(signature: string): number {
  const times = signature.split(',').filter((part) => /^\s*t\s*=/.test(part));
  const [, digits] = times.length === 1 ? (/^t=(\d{1,12})$/.exec(times[0] ?? '') ?? []) : [];
  return digits === undefined ? Infinity : Number(digits);
}

/** Calls Stripe; see the port. */
export class StripePayments implements Payments {
  private readonly stripe: Stripe;

  constructor(private readonly options: StripeOptions) {
    this.stripe = new Stripe(options.secretKey, {
      ...addressOf(options.apiBase),
      timeout: options.timeoutMs ?? TIMEOUT_MS,
      maxNetworkRetries: options.retries ?? RETRIES,
      telemetry: false,
    });
  }

  checkout(order: CheckoutOrder): Promise<CheckoutSession> {
    const { tenantId, customer, successUrl, cancelUrl, expiresAt, key } = order;
    const payer =
      'id' in customer ? { customer: customer.id } : customer.email === null ? {} : { customer_email: customer.email };
    const params: Stripe.Checkout.SessionCreateParams = {
      mode: 'subscription',
      line_items: [{ price: this.options.priceId, quantity: 1 }],
      client_reference_id: tenantId,
      // Every event of the subscription says whose it is, whichever comes first.
      subscription_data: { metadata: { [TENANT_KEY]: tenantId } },
      success_url: successUrl,
      cancel_url: cancelUrl,
      ...(expiresAt === null ? {} : { expires_at: Math.floor(expiresAt / 1_000) }),
      ...payer,
    };
    return asked(async () => sessionOf(await this.stripe.checkout.sessions.create(params, { idempotencyKey: key })));
  }

  checkoutOf(checkoutId: string): Promise<CheckoutSession | undefined> {
    return asked(async () => {
      try {
        return sessionOf(await this.stripe.checkout.sessions.retrieve(checkoutId));
      } catch (error) {
        if (error instanceof Stripe.errors.StripeError && error.statusCode === 404) return undefined;
        throw error;
      }
    });
  }

  portal(customerId: string, returnUrl: string): Promise<string> {
    const params = { customer: customerId, return_url: returnUrl };
    return asked(async () => (await this.stripe.billingPortal.sessions.create(params)).url);
  }

  event(body: Uint8Array, signature: string, now: number): unknown {
    // The library judges signatures that are too old; one from a time to come would be good until then and longer.
    if (signedAt(signature) > now / 1_000 + TOLERANCE_S) throw new ServiceError('webhook_invalid');
    try {
      return this.stripe.webhooks.constructEvent(
        body,
        signature,
        this.options.webhookSecret,
        TOLERANCE_S,
        undefined,
        now,
      );
    } catch {
      // The library's message quotes the body, and the reason would help nobody but a forger.
      throw new ServiceError('webhook_invalid');
    }
  }
}

const STATUSES: readonly CheckoutSession['status'][] = ['open', 'complete', 'expired'];

/** A status that is none of these leads nowhere, like one that is over. */
const sessionOf = ({ id, status, url }: Stripe.Checkout.Session): CheckoutSession => ({
  id,
  status: STATUSES.find((known) => known === status) ?? 'expired',
  url,
});

/**
 * What of an error may be known: its type, code, status and Stripe's id for the request. Its message can hold a part of
 * the key, and what the customer typed.
 */
function causeOf(error: unknown): Error {
  if (!(error instanceof Stripe.errors.StripeError)) {
    return new Error(`the payment library failed: ${error instanceof Error ? error.name : typeof error}`);
  }
  const { type, code, statusCode, requestId } = error;
  const told = [type, code, statusCode, requestId].filter((part) => part !== undefined && part !== '');
  return new Error(`the payment provider: ${told.join(' ')}`);
}

/** Is it over by itself, so that coming back helps? 409: the same call is under way. */
const passes = (error: unknown): boolean =>
  error instanceof Stripe.errors.StripeConnectionError ||
  error instanceof Stripe.errors.StripeRateLimitError ||
  (error instanceof Stripe.errors.StripeError && (error.statusCode === 409 || (error.statusCode ?? 0) >= 500));

async function asked<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    const refusal = passes(error)
      ? unavailable('the payment provider is out of reach', COME_BACK_S)
      : new ServiceError('internal');
    refusal.cause = causeOf(error);
    throw refusal;
  }
}
