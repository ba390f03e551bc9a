/**
 * The apex's plain pages: no script, no cookie, no foreign resource; the style sheet is the web app's. Values from outside
 * are escaped.
 */
import { statusOf, type ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { SignedUp } from '../../protocol/replies.js';
import { escapeHtml } from '../../protocol/sanitize.js';
import { HTML, Text } from '../http/reply.js';
import { claimLinkOf } from './signup.js';

/** Path of the web app's style sheet; undefined where the web app is off. */
type Style = string | undefined;

/** More than any valid value of a form has, characters. */
const TYPED_MAX = 320;

/** What differs between the pages. `head`: more of it. */
interface Content {
  readonly title: string;
  readonly body: string;
  readonly head?: string;
}

/** A page. The classes are those of the web app (src/web/ui). */
export const page = ({ title, body, head = '' }: Content, style: Style): Text =>
  new Text(
    `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
${style === undefined ? '' : `<link rel="stylesheet" href="${escapeHtml(style)}">\n`}${head}<title>${escapeHtml(`${SERVICE_NAME}: ${title}`)}</title>
<main class="screen">
<div class="step stack">
${body}
</div>
</main>
</html>
`,
    HTML,
  );

/** A form that was refused: a sentence for its user, and what was typed. */
interface RefusedForm {
  readonly sentence: string;
  readonly typed: Readonly<Record<string, unknown>>;
}

const alertOf = (sentence: string): string => `<p class="danger-text" role="alert">${escapeHtml(sentence)}</p>\n`;

/** The form that makes a tenant; again with what was typed, where it was refused. */
export function signupPage(style: Style, refused?: RefusedForm): Text {
  const typed = (field: string): string => {
    const text = refused?.typed[field];
    return typeof text === 'string' ? escapeHtml(text.slice(0, TYPED_MAX)) : '';
  };
  const body = `<h1>${escapeHtml(SERVICE_NAME)}</h1>
<p>Encrypted sync between your devices. The server holds ciphertext only.</p>
${refused === undefined ? '' : alertOf(refused.sentence)}<form method="post" action="/signup">
<div class="stack">
<div class="field"><label for="email">Your mail address</label>
<div class="input"><input id="email" name="email" type="email" required maxlength="254" autocomplete="email" value="${typed('email')}"></div></div>
<div class="field"><label for="subdomain">The name of your service</label>
<div class="input"><input id="subdomain" name="subdomain" required minlength="3" maxlength="63"
 pattern="[a-z0-9][a-z0-9\\-]{1,61}[a-z0-9]" title="3 to 63 of a-z, 0-9 and -" autocapitalize="none" value="${typed('subdomain')}"></div></div>
<p><button class="button primary wide">Sign up</button></p>
</div>
</form>`;
  return page({ title: 'sign up', body }, style);
}

/** A form without fields that was refused: the way back is the browser's. */
export const refusedPage = (sentence: string, style: Style): Text =>
  page({ title: 'refused', body: `<h1>That did not work</h1>\n${alertOf(sentence)}` }, style);

const LABELS: Readonly<Record<string, string>> = { email: 'The mail address', subdomain: 'The name' };

/** A refusal as a sentence for the user of a form, who knows neither codes nor field names. */
export function sentenceOf({ error, details, message, retryAfter = 0 }: ServiceError): string {
  const label = LABELS[String(details?.['path'])];
  const rule = details?.['rule'];
  if (error === 'slug_taken') return 'This name is taken. Choose another one.';
  if (error === 'validation' && label !== undefined && typeof rule === 'string') return `${label} ${rule}.`;
  if (error === 'rate_limited')
    return `There were too many attempts from your network. Try again in ${waitOf(retryAfter)}.`;
  return statusOf(error, 'a') >= 500 ? 'This does not work right now. Try again in a few minutes.' : message;
}

const waitOf = (seconds: number): string => {
  const minutes = Math.max(1, Math.ceil(seconds / 60));
  return minutes === 1 ? 'a minute' : `${minutes} minutes`;
};

/**
 * Shows the new owner the claim link; where the web app is on, also as a button. `isPaid`: it is the page after checkout,
 * and the tenant is kept.
 */
export const signedUpPage = (tenant: Pick<SignedUp, 'url' | 'claimToken'>, style: Style, isPaid = false): Text => {
  const claimLink = escapeHtml(claimLinkOf(tenant));
  const button = `<p><a class="button primary wide" href="${claimLink}">Claim it in this browser</a></p>\n`;
  const lead = isPaid
    ? 'Claim it with your first device. This page shows the link for seven days after signing up'
    : 'Claim it with your first device, within 24 hours. This link is shown once';
  const body = `<h1>${escapeHtml(tenant.url)} is yours</h1>
<p>${lead}, and anyone who has it can claim:</p>
<p><code>${claimLink}</code></p>
${style === undefined ? '' : button}<p>In a terminal: <code>service-device claim '${claimLink}'</code></p>`;
  return page({ title: 'it is yours', body }, style);
};

/** Redirects to the checkout, with a link for browsers that do not follow. */
export const payPage = (checkoutUrl: string): Content => ({
  title: 'payment',
  body: `<h1>Continue to the payment</h1>
<p><a href="${escapeHtml(checkoutUrl)}">Continue to the checkout</a></p>`,
  head: `<meta http-equiv="refresh" content="0; url=${escapeHtml(checkoutUrl)}">\n`,
});

/** The page after checkout, for a tenant that is not to be claimed by it. */
export const RETURN_PAGES: Readonly<
  Record<'unpaid' | 'claimed' | 'renewed', (url: string, returnToken: string) => Content>
> = {
  /** Not paid, or not confirmed yet; the page reloads itself. */
  unpaid: (url, returnToken) => ({
    title: 'payment',
    body: `<h1>Waiting for the payment</h1>
<p>As soon as it is confirmed, this page shows how to claim ${escapeHtml(url)}. It checks again every ten seconds.</p>
<form method="post" action="/signup/pay">
<input type="hidden" name="return" value="${escapeHtml(returnToken)}">
<p>Not paid yet? The name is kept for 24 hours.</p>
<p><button class="button wide">Go to the payment</button></p>
</form>`,
    head: '<meta http-equiv="refresh" content="10">\n',
  }),
  /** The tenant is claimed. */
  claimed: (url) => ({
    title: 'claimed',
    body: `<h1>${escapeHtml(url)} is claimed</h1>
<p>Add further devices from the one that claimed it. Was that not you? Tell the operator.</p>`,
  }),
  /** The operator has issued another claim link. */
  renewed: (url) => ({
    title: 'another link',
    body: `<h1>Another claim link was issued</h1>
<p>The link for ${escapeHtml(url)} that was shown here is no longer valid. Use the one that the operator has sent.</p>`,
  }),
};

/** An address that is not, or no longer, valid. */
export const UNKNOWN_PAGE: Content = {
  title: 'not found',
  body: `<h1>This page is no longer here</h1>
<p>It is kept for seven days after signing up. If you have paid and lost your claim link, the operator can issue another.</p>`,
};

/** After a payment that was started on a device. */
export const THANK_YOU_PAGE: Content = {
  title: 'thank you',
  body: '<h1>Thank you</h1>\n<p>Your service is active within half a minute.</p>',
};
