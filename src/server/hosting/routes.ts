/** Signup, its page, and the proxy's check before it gets a certificate. */
import { invalid, ServiceError } from '../../protocol/errors.js';
import type { Ok } from '../../protocol/replies.js';
import { signupNetworkOf } from '../http/address-limits.js';
import { welcome as tenantWelcome, type WebParts } from '../http/pages.js';
import { hostName } from '../http/query.js';
import type { Text } from '../http/reply.js';
import { fields, type RequestContext } from '../http/request.js';
import { mounted, type Handler } from '../http/route.js';
import { validateSignupBody, validateTestTenantBody } from '../http/validators.js';
import type { TenantHosts } from './hosts.js';
import { page, payPage, sentenceOf, signedUpPage, signupPage } from './signup-page.js';
import type { Signup } from './signup.js';

/** What the handlers need; `hosting` and `signup` in multi mode. */
export interface HostingParts extends WebParts {
  readonly hosting?: TenantHosts | undefined;
  readonly signup?: Signup | undefined;
  readonly version: string;
}

/** `POST /api/signup` {email, subdomain} -> {slug, url, claimToken, checkoutUrl?}. */
export const signUp: Handler<HostingParts> = (call, app) =>
  mounted(app.signup).signUp(validateSignupBody(fields(call)), signupNetworkOf(call.address));

/** The signup page again, for a form that was refused. */
export const signUpRefused = (refusal: ServiceError, { body: typed }: RequestContext, { web }: WebParts): Text =>
  signupPage(web?.style, { sentence: sentenceOf(refusal), typed });

/** `POST /signup`, the form of the page. A browser gets `signUpRefused` in place of a refusal. */
export const signUpByForm: Handler<HostingParts> = async (call, app) => {
  const body = validateSignupBody(call.body);
  const signedUp = await mounted(app.signup).signUp(body, signupNetworkOf(call.address));
  // Where signing up costs something, the claim link is shown after the payment.
  return signedUp.checkoutUrl === undefined
    ? signedUpPage(signedUp, app.web?.style)
    : page(payPage(signedUp.checkoutUrl), app.web?.style);
};

/**
 * `GET /api/tls-check?domain=`: answered from memory, so that a flood of foreign names costs nothing. Only a limited
 * number of new names an hour is allowed.
 */
export const tlsCheck: Handler<HostingParts, Ok> = async (call, app) => {
  const domain = call.parameter('domain');
  if (domain === undefined) throw invalid('domain', 'must be given');
  if (!(await mounted(app.hosting).certifies(domain))) throw new ServiceError('tenant_not_found');
  return { ok: true };
};

/** `POST /api/admin/test-tenants` {subdomain, devices} -> {slug, url, tenantId, tokens}. */
export const makeTestTenant: Handler<HostingParts> = (call, app) =>
  mounted(app.signup).makeTestTenant(validateTestTenantBody(fields(call)));

/** `GET /api/admin/test-tenants`. */
export const listTestTenants: Handler<HostingParts> = (_, app) => mounted(app.signup).testTenants();

/** `DELETE /api/admin/test-tenants/:id`, by the tenant's name. */
export const removeTestTenant: Handler<HostingParts> = (call, app) => mounted(app.signup).removeTestTenant(call.id);

/** `GET /`: the signup page at the apex, the web app at any other host. */
export const welcome: Handler<HostingParts> = (call, app) =>
  mounted(app.hosting).isApex(hostName(call.host)) ? signupPage(app.web?.style) : tenantWelcome(call, app);
