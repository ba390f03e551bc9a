/** The apex's plain pages: no script, no cookie, nothing from elsewhere. What comes from outside is escaped. */

const escaped = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0) ?? 0};`);

const page = (title: string, body: string): string => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="referrer" content="no-referrer">
<title>${escaped(title)}</title>
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
<p>Claim it with your first device, within seven days. This link is shown once, and whoever has it can claim:</p>
<p><code>${escaped(claimLink)}</code></p>
<p>In a terminal: <code>service-device claim '${escaped(claimLink)}'</code></p>`,
  );
