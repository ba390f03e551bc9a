/** The apex's plain pages: no script, no cookie, nothing from elsewhere. What comes from outside is escaped. */

const escaped = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0) ?? 0};`);

const page = (title: string, body: string, head = ''): string => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="referrer" content="no-referrer">
${head}<title>${escaped(title)}</title>
${body}
</html>
`;

/** The form that makes a tenant. */
export const signupPage = (service: string): string =>
  page(
    `${service}: sign up`,
    `<h1>${escaped(service)}</h1>
<p>Encrypted sync between your devices. The server holds ciphertext only.</p>
<form method="post" action="/signup">
<p><label>Your mail address<br><input name="email" type="email" required maxlength="254" autocomplete="email"></label></p>
<p><label>The name of your service<br><input name="subdomain" required minlength="3" maxlength="63"
 pattern="[a-z0-9][a-z0-9\\-]{1,61}[a-z0-9]" title="3 to 63 of a-z, 0-9 and -" autocapitalize="none"></label></p>
<p><button>Sign up</button></p>
</form>`,
  );

/** What the new owner sees, once. */
export const signedUpPage = (service: string, url: string, claimLink: string): string =>
  page(
    `${service}: it is yours`,
    `<h1>${escaped(url)} is yours</h1>
<p>Claim it with your first device, within 24 hours. This link is shown once, and whoever has it can claim:</p>
<p><code>${escaped(claimLink)}</code></p>
<p>In a terminal: <code>service-device claim '${escaped(claimLink)}'</code></p>`,
  );

/** On to the checkout: by itself, and by a link where it does not. */
export const payPage = (service: string, checkoutUrl: string): string =>
  page(
    `${service}: payment`,
    `<h1>On to the payment</h1>
<p><a href="${escaped(checkoutUrl)}">Continue to the checkout</a></p>`,
    `<meta http-equiv="refresh" content="0; url=${escaped(checkoutUrl)}">\n`,
  );

/** Not paid, or not confirmed yet: the page looks again by itself. */
export const unpaidPage = (service: string, url: string, returnToken: string): string =>
  page(
    `${service}: payment`,
    `<h1>Waiting for the payment</h1>
<p>As soon as it is confirmed, this page shows how to claim ${escaped(url)}. It looks again every ten seconds.</p>
<form method="post" action="/signup/pay">
<input type="hidden" name="return" value="${escaped(returnToken)}">
<p>Not paid yet? The name is kept for 24 hours. <button>Go to the payment</button></p>
</form>`,
    '<meta http-equiv="refresh" content="10">\n',
  );

/** Somebody has claimed it. */
export const claimedPage = (service: string, url: string): string =>
  page(
    `${service}: claimed`,
    `<h1>${escaped(url)} is claimed</h1>
<p>Add further devices from the one that claimed it. Was that not you? Tell the operator.</p>`,
  );

/** The operator has issued another claim link. */
export const renewedPage = (service: string, url: string): string =>
  page(
    `${service}: another link`,
    `<h1>Another claim link was issued</h1>
<p>The link for ${escaped(url)} that stood here is no longer good. Use the one that the operator has sent.</p>`,
  );

/** An address that is not, or no longer, good. */
export const unknownPage = (service: string): string =>
  page(
    `${service}: not found`,
    `<h1>This page is no longer here</h1>
<p>It is kept for seven days after signing up. If you have paid and lost your claim link, the operator can issue another.</p>`,
  );

/** After a payment that was begun on a device. */
export const thankYouPage = (service: string): string =>
  page(`${service}: thank you`, `<h1>Thank you</h1>\n<p>Your service is active within half a minute.</p>`);
