/** Signup, its page, and the question that the proxy asks before it gets a certificate. */
import { claimLinkOf } from './signup.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { SignedUp } from '../../protocol/replies.js';
import type { SignupBody } from '../../protocol/requests.js';
import { validateSignupBody } from '../http/validators.js';
import { hostName } from '../http/query.js';
import { Text } from '../http/reply.js';
import type { Handler } from '../http/route.js';
import { fields } from '../http/fields.js';
import { welcome as tenantWelcome } from '../http/pages.js';
import { payPage, signedUpPage, signupPage } from './signup-page.js';

const HTML = 'text/html; charset=utf-8';

/** Tenants by host name, in multi mode. Hosts are names without port. */
export interface HostingService {
  isApex(host: string): boolean;
  /**
   * Shall there be a certificate for it? A promise for a name that is new: it rejects with `rate_limited` after too many
   * of them, and with `unavailable`.
   */
  certifies(host: string): boolean | Promise<boolean>;
  /** `address` is what limits per address count the caller by. */
  signUp(body: SignupBody, address: string): Promise<SignedUp>;
}

/** What the handlers need. */
export interface HostingParts {
  readonly hosting?: HostingService | undefined;
  readonly version: string;
}

/** These rows are mounted in multi mode only. */
function hostingOf({ hosting }: HostingParts): HostingService {
  if (hosting === undefined) throw new ServiceError('not_found', 'no such route');
  return hosting;
}

/** `POST /api/signup` {email, subdomain} -> {slug, url, claimToken, checkoutUrl?}. */
export const signUp: Handler<HostingParts> = (call, app) =>
  hostingOf(app).signUp(validateSignupBody(fields(call)), call.address);

/** `POST /signup`, the form of the page. A refusal is shown beside the form, with the status that it has. */
export const signUpByForm: Handler<HostingParts> = async (call, app) => {
  const signedUp = await hostingOf(app).signUp(validateSignupBody(call.body), call.address);
  // Where it costs something, the claim link is for whoever has paid.
  if (signedUp.checkoutUrl !== undefined) return new Text(payPage(SERVICE_NAME, signedUp.checkoutUrl), HTML);
  return new Text(signedUpPage(SERVICE_NAME, signedUp.url, claimLinkOf(signedUp)), HTML);
};

/**
 * `GET /api/tls-check?domain=`: from memory, so that a flood of strangers' names costs nothing. Of names that are new
 * only so many an hour are let through.
 */
export const tlsCheck: Handler<HostingParts> = (call, app) => {
  const domain = call.parameter('domain');
  if (domain === undefined) throw invalid('domain', 'must be given');
  const certified = hostingOf(app).certifies(domain);
  return certified instanceof Promise ? certified.then(answered) : answered(certified);
};

function answered(certified: boolean): { ok: true } {
  if (!certified) throw new ServiceError('tenant_not_found');
  return { ok: true };
}

/** `GET /`: the signup page at the apex, the usual lines at a tenant's host. */
export const welcome: Handler<HostingParts> = (call, app) =>
  hostingOf(app).isApex(hostName(call.host)) ? new Text(signupPage(SERVICE_NAME), HTML) : tenantWelcome(call, app);
