/** Which scripts the page and the engine may start: the policy of Trusted Types that the server allows. */

/** Allows only scripts of this app, from this origin. Throws `TypeError` for any other. */
function checkedScript(address: string): string {
  const url = new URL(address, location.href);
  if (url.origin !== location.origin || !/^\/(sw\.js|web\/[\w.-]+\.js)$/.test(url.pathname))
    throw new TypeError('no script of this app');
  return url.href;
}

const rules = { createScriptURL: checkedScript };

/** TypeScript's standard library does not declare this API yet. */
interface TrustedTypes {
  createPolicy(name: string, allowed: typeof rules): typeof rules;
}
const trusted = (globalThis as { readonly trustedTypes?: TrustedTypes }).trustedTypes;
const policy = trusted?.createPolicy('service-web', rules) ?? rules;

/** The address of a script of this app, as `Worker` takes it. Throws `TypeError` for any other. */
export const scriptAddress = (address: string): string => policy.createScriptURL(address);
