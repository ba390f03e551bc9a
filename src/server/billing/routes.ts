/** Payments of a hosted service (reference, Billing). These rows are mounted where billing is on only. */
import { claimLinkOf } from '../hosting/signup.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { AddressLimits } from '../http/address-limits.js';
import type { Portal, Received } from '../../protocol/replies.js';
import type { Returned } from './checkout.js';
import { Text } from '../http/reply.js';
import type { Handler } from '../http/route.js';
import * as pages from '../hosting/signup-page.js';

const HTML = 'text/html; charset=utf-8';

/** Payments of a hosted service (reference, Billing). */
export interface BillingService {
  /** A webhook's body as it came, and its signature. Throws `webhook_invalid`. */
  webhook(body: Uint8Array, signature: string): Promise<Received>;
  portal(tenantId: string): Promise<Portal>;
  /** What the page after checkout shows to somebody with this token. */
  returned(returnToken: string): Promise<Returned>;
  /** Where somebody pays who left the checkout. Throws `not_found`. */
  resume(returnToken: string): Promise<string>;
}

/** What the handlers need. */
export interface BillingParts {
  /** Absent where billing is off. */
  readonly billing?: BillingService | undefined;
  readonly addressLimits: Pick<AddressLimits, 'take'>;
}

function billingOf({ billing }: BillingParts): BillingService {
  if (billing === undefined) throw new ServiceError('not_found', 'no such route');
  return billing;
}

/**
 * `POST /api/billing/webhook`, from the payment provider. 200 once what it says is durable, or is none of ours. Forged
 * ones are counted by address, and told so; a good one is never refused for them: where a proxy hides addresses, the
 * provider would share one with the forger.
 */
export const webhook: Handler<BillingParts> = async (call, app) => {
  try {
    return await billingOf(app).webhook(call.bytes, call.signature);
  } catch (error) {
    if (error instanceof ServiceError && error.error === 'webhook_invalid')
      await app.addressLimits.take('webhook', call.address);
    throw error;
  }
};

/** `GET /api/billing/portal` -> {url}. Each asks the provider: limited by device. */
export const portal: Handler<BillingParts> = async (call, app) => {
  const billing = billingOf(app);
  await app.addressLimits.take('payment', `${call.tenantId}/${call.deviceId}`);
  return billing.portal(call.tenantId);
};

/** `GET /signup/done?return=`, the page that checkout returns to, paid or not. Without a token it says thank you. */
export const returned: Handler<BillingParts> = async (call, app) => {
  const billing = billingOf(app);
  const token = call.parameter('return');
  if (token === undefined) return new Text(pages.thankYouPage(SERVICE_NAME), HTML);
  const found = await billing.returned(token);
  switch (found.kind) {
    case 'paid':
      return new Text(pages.signedUpPage(SERVICE_NAME, found.url, claimLinkOf(found)), HTML);
    case 'unpaid':
      return new Text(pages.unpaidPage(SERVICE_NAME, found.url, token), HTML);
    case 'claimed':
      return new Text(pages.claimedPage(SERVICE_NAME, found.url), HTML);
    case 'renewed':
      return new Text(pages.renewedPage(SERVICE_NAME, found.url), HTML);
    case 'unknown':
      call.status = 404;
      return new Text(pages.unknownPage(SERVICE_NAME), HTML);
  }
};

/** `POST /signup/pay`, the form of that page: back to the checkout. */
export const resume: Handler<BillingParts> = async (call, app) => {
  const token = call.body['return'];
  if (typeof token !== 'string') throw invalid('return', 'must be given once');
  return new Text(pages.payPage(SERVICE_NAME, await billingOf(app).resume(token)), HTML);
};
