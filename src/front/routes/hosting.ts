/** Signup, its page, and the question that the proxy asks before it gets a certificate. */
import { claimLinkOf } from '../../hosting/signup.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import { validateSignupBody } from '../../validators/requests.js';
import type { FrontOptions, HostingService } from '../ports.js';
import { hostName } from '../query.js';
import { Text } from '../reply.js';
import type { Handler } from '../route.js';
import { fields } from './fields.js';
import { payPage, signedUpPage, signupPage } from './signup-page.js';
import * as status from './status.js';

const HTML = 'text/html; charset=utf-8';

/** These rows are mounted in multi mode only. */
function hostingOf({ hosting }: FrontOptions): HostingService {
  if (hosting === undefined) throw new ServiceError('not_found', 'no such route');
  return hosting;
}

/** `POST /api/signup` {email, subdomain} -> {slug, url, claimToken, checkoutUrl?}. */
export const signUp: Handler = (call, app) => hostingOf(app).signUp(validateSignupBody(fields(call)), call.address);

/** `POST /signup`, the form of the page. A refusal is shown beside the form, with the status that it has. */
export const signUpByForm: Handler = async (call, app) => {
  const signedUp = await hostingOf(app).signUp(validateSignupBody(call.body), call.address);
  // Where it costs something, the claim link is for whoever has paid.
  if (signedUp.checkoutUrl !== undefined) return new Text(payPage(SERVICE_NAME, signedUp.checkoutUrl), HTML);
  return new Text(signedUpPage(SERVICE_NAME, signedUp.url, claimLinkOf(signedUp)), HTML);
};

/**
 * `GET /api/tls-check?domain=`: from memory, so that a flood of strangers' names costs nothing. Of names that are new
 * only so many an hour are let through.
 */
export const tlsCheck: Handler = (call, app) => {
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
export const welcome: Handler = (call, app) =>
  hostingOf(app).isApex(hostName(call.host)) ? new Text(signupPage(SERVICE_NAME), HTML) : status.welcome(call, app);
