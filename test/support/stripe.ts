/**
 * A stand-in for Stripe: a server that checks the key, keeps idempotency keys as Stripe does, makes checkouts and
 * portals, can be slow, broken or gone; and events as Stripe would send them, signed by its own library.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import { text as textOf } from 'node:stream/consumers';
import type Stripe from 'stripe';
import { LoopbackServer } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';
import type { Json, Reply, Wire } from './wire.js';

export const SECRET_KEY = 'sk_test_secret_key_of_the_tests';
export const WEBHOOK_SECRET = 'whsec_webhook_secret_of_the_tests';
export const PRICE = 'price_of_the_tests';

let signer: Stripe | undefined;
/** Signs only; it calls nobody. Loaded when it is needed: most hosted servers of tests bill nobody. */
const signerOf = (): Stripe =>
  (signer ??= new (createRequire(import.meta.url)('stripe') as typeof Stripe)('sk_test_unused'));

/** A call that the stand-in took. */
interface StripeCall {
  readonly method: string;
  readonly path: string;
  readonly form: Readonly<Record<string, string>>;
  readonly key: string;
}

interface StandInSession {
  id: string;
  object: 'checkout.session';
  status: string;
  url: string | null;
}

interface Answer {
  readonly status: number;
  readonly body: object;
}

const refusal = (status: number, type: string, message: string): Answer => ({
  status,
  body: { error: { type, message } },
});

const noCustomer = (customer: string): Answer => ({
  status: 400,
  body: {
    error: {
      ...{ type: 'invalid_request_error', code: 'resource_missing', param: 'customer' },
      message: `No such customer: '${customer}'`,
    },
  },
});

/** The provider's server. */
export class StripeStandIn extends LoopbackServer {
  readonly calls: StripeCall[] = [];
  readonly sessions = new Map<string, StandInSession>();
  /** Answers every call with this status; 0: works. `-1`: never answers. */
  failWith = 0;
  /** Customers that it does not have (any more). */
  readonly deleted = new Set<string>();
  private readonly kept = new Map<string, { form: string; answer: Answer }>();
  private made = 0;

  /** Listens until the test is over. */
  static start(t: WithTeardown): Promise<StripeStandIn> {
    return new StripeStandIn().listenFor(t);
  }

  /** Variables with which a server bills through this stand-in. */
  get env(): Record<string, string> {
    return {
      PAYMENT_BILLING_ENABLED: 'true',
      PAYMENT_SECRET_KEY: SECRET_KEY,
      PAYMENT_WEBHOOK_SECRET: WEBHOOK_SECRET,
      PAYMENT_PRICE_ID: PRICE,
      PAYMENT_API_BASE: this.url,
    };
  }

  /** The calls that made a checkout. */
  get checkouts(): readonly StripeCall[] {
    return this.calls.filter(({ method, path }) => method === 'POST' && path === '/v1/checkout/sessions');
  }

  protected async take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const text = await textOf(request);
    const key = String(request.headers['idempotency-key'] ?? '');
    const [path = ''] = (request.url ?? '').split('?');
    const method = request.method ?? '';
    this.calls.push({ method, path, form: Object.fromEntries(new URLSearchParams(text)), key });
    if (this.failWith === -1) return;
    const { status, body } = this.answer({ authorization: request.headers.authorization, key, method, path, text });
    response.writeHead(status, { 'content-type': 'application/json', 'request-id': 'req_stand_in' });
    response.end(JSON.stringify(body));
  }

  private answer(call: { authorization?: string; key: string; method: string; path: string; text: string }): Answer {
    if (call.authorization !== `Bearer ${SECRET_KEY}`)
      return refusal(401, 'invalid_request_error', `Invalid API Key provided: ${call.authorization ?? ''}`);
    if (this.failWith > 0) return refusal(this.failWith, 'api_error', `broken, said ${SECRET_KEY}`);
    const kept = this.kept.get(call.key);
    if (call.method === 'POST' && kept !== undefined)
      return kept.form === call.text ? kept.answer : refusal(400, 'idempotency_error', 'another call had this key');
    const answer = this.do(call);
    if (call.method === 'POST' && call.key !== '') this.kept.set(call.key, { form: call.text, answer });
    return answer;
  }

  private do({ method, path, text }: { method: string; path: string; text: string }): Answer {
    const form = new URLSearchParams(text);
    if (method === 'POST' && path === '/v1/checkout/sessions') {
      if (form.get('line_items[0][price]') !== PRICE || form.get('mode') !== 'subscription')
        return refusal(400, 'invalid_request_error', 'no such price');
      const customer = form.get('customer') ?? '';
      if (this.deleted.has(customer)) return noCustomer(customer);
      const id = `cs_test_${++this.made}`;
      const session: StandInSession = {
        ...{ id, object: 'checkout.session', status: 'open' },
        url: `https://checkout.stripe.test/c/${id}`,
      };
      this.sessions.set(id, session);
      return { status: 200, body: session };
    }
    const found = this.sessions.get(path.slice('/v1/checkout/sessions/'.length));
    if (method === 'GET' && found !== undefined) return { status: 200, body: found };
    if (method === 'POST' && path === '/v1/billing_portal/sessions')
      return { status: 200, body: { id: 'bps_1', url: `https://billing.stripe.test/p/${form.get('customer') ?? ''}` } };
    return refusal(404, 'invalid_request_error', 'no such thing');
  }
}

/** Whose an event is. */
export interface Payer {
  readonly tenant: string;
  readonly customer: string;
  readonly subscription: string;
}

/** A payer of his own for each tenant. */
export const payerOf = (tenant: string): Payer => ({
  tenant,
  customer: `cus_${tenant}`,
  subscription: `sub_${tenant}`,
});

let events = 0;

/** An event of the provider; `at` in ms, which travels as seconds. */
export const eventOf = (type: string, at: number, object: Json): Json => ({
  ...{
    id: `evt_${++events}`,
    object: 'event',
    type,
    created: Math.floor(at / 1_000),
    livemode: false,
    api_version: '2026-10-28.endive',
  },
  data: { object },
});

export const checkoutDone = ({ tenant, customer, subscription }: Payer, at: number, more: Json = {}): Json =>
  eventOf('checkout.session.completed', at, {
    ...{ id: `cs_of_${tenant}`, object: 'checkout.session', mode: 'subscription', payment_status: 'paid' },
    ...{ customer, subscription, client_reference_id: tenant, metadata: { tenant_id: tenant } },
    ...more,
  });

export const subscriptionIs = (
  change: 'created' | 'updated' | 'deleted',
  status: string,
  payer: Payer,
  at: number,
): Json =>
  eventOf(`customer.subscription.${change}`, at, {
    ...{ id: payer.subscription, object: 'subscription', status, customer: payer.customer },
    metadata: { tenant_id: payer.tenant },
  });

const DAY_S = 86_400;

export const invoiceIs = (outcome: 'paid' | 'payment_failed', payer: Payer, at: number): Json =>
  eventOf(`invoice.${outcome}`, at, {
    ...{ id: 'in_1', object: 'invoice', customer: payer.customer },
    parent: {
      type: 'subscription_details',
      subscription_details: { subscription: payer.subscription, metadata: { tenant_id: payer.tenant } },
    },
    lines: { data: [{ period: { start: Math.floor(at / 1_000), end: Math.floor(at / 1_000) + 30 * DAY_S } }] },
  });

/** How a webhook is signed: by default as the server expects. Times in ms. */
interface Signing {
  readonly secret?: string;
  readonly at?: number;
}

export const signed = (payload: string, { secret = WEBHOOK_SECRET, at = Date.now() }: Signing = {}): string =>
  signerOf().webhooks.generateTestHeaderString({ payload, secret, timestamp: Math.floor(at / 1_000) });

/** Sends an event as Stripe does. */
export async function deliver(wire: Wire, event: Json, signing: Signing = {}): Promise<Reply> {
  const payload = JSON.stringify(event, null, 2);
  const headers = { 'stripe-signature': signed(payload, signing) };
  return wire.ask('POST', '/billing/webhook', { body: payload, headers });
}
