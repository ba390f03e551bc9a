/** Payments of a hosted service (reference, Billing). These rows are mounted only where billing is on. */
import { invalid, ServiceError } from '../../protocol/errors.js';
import * as pages from '../hosting/signup-page.js';
import type { AddressLimits } from '../http/address-limits.js';
import type { WebParts } from '../http/pages.js';
import type { Text } from '../http/reply.js';
import type { RequestContext } from '../http/request.js';
import { mounted, type Handler } from '../http/route.js';
import type { Checkout } from './checkout.js';
import type { Webhooks } from './webhooks.js';

/** What the handlers need; `webhooks` and `checkout` where billing is on. */
export interface BillingParts extends WebParts {
  readonly webhooks?: Webhooks | undefined;
  readonly checkout?: Checkout | undefined;
  readonly addressLimits: Pick<AddressLimits, 'take'>;
  readonly deviceLimits: Pick<AddressLimits, 'take'>;
}

/**
 * `POST /api/billing/webhook`, from the payment provider. 200 once the event is durable, or does not concern this
 * service. Events with an invalid signature are limited by address. A valid event is never refused by that limit, since
 * behind a proxy that hides addresses the provider would share its address with the forger.
 */
export const webhook: Handler<BillingParts> = async (call, app) => {
  try {
    return await mounted(app.webhooks).take(call.bytes, call.signature);
  } catch (error) {
    if (error instanceof ServiceError && error.error === 'webhook_invalid')
      await app.addressLimits.take('webhook', call.address);
    throw error;
  }
};

/** `GET /api/billing/portal` -> {url}. Each request calls the provider, so it is limited by device. */
export const portal: Handler<BillingParts> = async (call, app) => {
  const checkout = mounted(app.checkout);
  await app.deviceLimits.take('payment', call.owner);
  return checkout.portal(call.tenantId);
};

/**
 * `GET /signup/done?return=`, the page that checkout returns to, paid or not. Without a token it is a thank-you page.
 */
export const returned: Handler<BillingParts> = async (call, app) => {
  const checkout = mounted(app.checkout);
  const style = app.web?.style;
  const token = call.parameter('return');
  if (token === undefined) return pages.page(pages.THANK_YOU_PAGE, style);
  const found = await checkout.returned(token);
  if (found.kind === 'paid') return pages.signedUpPage(found, style, true);
  if (found.kind !== 'unknown') return pages.page(pages.RETURN_PAGES[found.kind](found.url, token), style);
  call.status = 404;
  return pages.page(pages.UNKNOWN_PAGE, style);
};

/** A browser's page for a form of payment that was refused. */
export const payRefused = (refusal: ServiceError, _: RequestContext, { web }: WebParts): Text =>
  pages.refusedPage(pages.sentenceOf(refusal), web?.style);

/** `POST /signup/pay`, the form of that page: back to the checkout. */
export const resume: Handler<BillingParts> = async (call, app) => {
  const token = call.body['return'];
  if (typeof token !== 'string') throw invalid('return', 'must be given once');
  return pages.page(pages.payPage(await mounted(app.checkout).resume(token)), app.web?.style);
};
