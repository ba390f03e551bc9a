/** The apex's plain pages: no script, no cookie, no foreign resource. Values from outside are escaped. */
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { SignedUp } from '../../protocol/replies.js';
import { Text } from '../http/reply.js';
import { claimLinkOf } from './signup.js';

const escaped = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0) ?? 0};`);

const page = (title: string, body: string, head = ''): Text =>
  new Text(
    `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="referrer" content="no-referrer">
${head}<title>${escaped(`${SERVICE_NAME}: ${title}`)}</title>
${body}
</html>
`,
    'text/html; charset=utf-8',
  );

/** The form that makes a tenant. */
export const signupPage = (): Text =>
  page(
    'sign up',
    `<h1>${escaped(SERVICE_NAME)}</h1>
<p>Encrypted sync between your devices. The server holds ciphertext only.</p>
<form method="post" action="/signup">
<p><label>Your mail address<br><input name="email" type="email" required maxlength="254" autocomplete="email"></label></p>
<p><label>The name of your service<br><input name="subdomain" required minlength="3" maxlength="63"
 pattern="[a-z0-9][a-z0-9\\-]{1,61}[a-z0-9]" title="3 to 63 of a-z, 0-9 and -" autocapitalize="none"></label></p>
<p><button>Sign up</button></p>
</form>`,
  );

/** Shows the new owner the claim link. */
export const signedUpPage = (tenant: Pick<SignedUp, 'url' | 'claimToken'>): Text => {
  const claimLink = escaped(claimLinkOf(tenant));
  return page(
    'it is yours',
    `<h1>${escaped(tenant.url)} is yours</h1>
<p>Claim it with your first device, within 24 hours. This link is shown once, and whoever has it can claim:</p>
<p><code>${claimLink}</code></p>
<p>In a terminal: <code>service-device claim '${claimLink}'</code></p>`,
  );
};

/** Redirects to the checkout, with a link for browsers that do not follow. */
export const payPage = (checkoutUrl: string): Text =>
  page(
    'payment',
    `<h1>On to the payment</h1>
<p><a href="${escaped(checkoutUrl)}">Continue to the checkout</a></p>`,
    `<meta http-equiv="refresh" content="0; url=${escaped(checkoutUrl)}">\n`,
  );

/** Not paid, or not confirmed yet; the page reloads itself. */
export const unpaidPage = (url: string, returnToken: string): Text =>
  page(
    'payment',
    `<h1>Waiting for the payment</h1>
<p>As soon as it is confirmed, this page shows how to claim ${escaped(url)}. It looks again every ten seconds.</p>
<form method="post" action="/signup/pay">
<input type="hidden" name="return" value="${escaped(returnToken)}">
<p>Not paid yet? The name is kept for 24 hours. <button>Go to the payment</button></p>
</form>`,
    '<meta http-equiv="refresh" content="10">\n',
  );

/** The tenant is claimed. */
export const claimedPage = (url: string): Text =>
  page(
    'claimed',
    `<h1>${escaped(url)} is claimed</h1>
<p>Add further devices from the one that claimed it. Was that not you? Tell the operator.</p>`,
  );

/** The operator has issued another claim link. */
export const renewedPage = (url: string): Text =>
  page(
    'another link',
    `<h1>Another claim link was issued</h1>
<p>The link for ${escaped(url)} that stood here is no longer good. Use the one that the operator has sent.</p>`,
  );

/** An address that is not, or no longer, valid. */
export const unknownPage = (): Text =>
  page(
    'not found',
    `<h1>This page is no longer here</h1>
<p>It is kept for seven days after signing up. If you have paid and lost your claim link, the operator can issue another.</p>`,
  );

/** After a payment that was started on a device. */
export const thankYouPage = (): Text =>
  page('thank you', `<h1>Thank you</h1>\n<p>Your service is active within half a minute.</p>`);
