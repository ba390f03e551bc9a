/** Passkeys that give a secret, in a real browser with a virtual authenticator. */
import type { Page } from 'puppeteer-core';
import t from 'tap';
import { bundled, CHROMIUM, servePage, freshContext } from './support/browser.js';
import type * as Passkey from '../src/web/ui/passkey.js';
import type { WithTeardown } from './support/postgres.js';

t.setTimeout(600_000);

const skip = CHROMIUM === undefined && 'this machine has no Chromium';

/** A page at `localhost`, because an IP address can have no passkey. */
async function scene(t: WithTeardown) {
  const origin = await servePage(t, (await bundled(new URL('../src/web/ui/passkey.js', import.meta.url))).code);
  const browser = await freshContext(t);
  const page = await browser.newPage();
  await page.goto(origin.replace('127.0.0.1', 'localhost'));
  const protocol = await page.createCDPSession();
  await protocol.send('WebAuthn.enable');
  /** The authenticator that the next one replaces. */
  let before: string | undefined;
  const plug = async (more: { readonly hasPrf: boolean; readonly isUserVerified: boolean }): Promise<void> => {
    if (before !== undefined) await protocol.send('WebAuthn.removeVirtualAuthenticator', { authenticatorId: before });
    const options = {
      ...({ protocol: 'ctap2', ctap2Version: 'ctap2_1', transport: 'internal' } as const),
      ...{ hasResidentKey: true, hasUserVerification: true, automaticPresenceSimulation: true, ...more },
    };
    before = (await protocol.send('WebAuthn.addVirtualAuthenticator', { options })).authenticatorId;
  };
  return { page, plug, origin };
}

/** Makes a passkey and uses it twice; returns its secrets in hex, or the code of the failure. */
const secrets = (page: Page): Promise<readonly string[] | string> =>
  page.evaluate(async () => {
    const script = '/page.js';
    const { makePasskey, askPasskey } = (await import(script)) as typeof Passkey;
    const hex = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
    try {
      const { passkey, secret } = await makePasskey('Test');
      return [secret, await askPasskey(passkey), await askPasskey({ ...passkey, salt: new Uint8Array(32) })].map(hex);
    } catch (error) {
      return (error as { code?: string }).code ?? String(error);
    }
  });

const work = (page: Page): Promise<boolean> =>
  page.evaluate(async () => {
    const script = '/page.js';
    const { passkeysWork } = (await import(script)) as typeof Passkey;
    return passkeysWork();
  });

t.test('WEB-39: a passkey gives the same 32 bytes each time, others for another salt', { skip }, async (t) => {
  const { page, plug } = await scene(t);
  await plug({ hasPrf: true, isUserVerified: true });
  t.equal(await work(page), true);
  const [made, asked, salted] = await secrets(page);
  t.match(made, /^[0-9a-f]{64}$/);
  t.equal(asked, made);
  t.match(salted, /^[0-9a-f]{64}$/);
  t.not(salted, made);
  t.not((await secrets(page))[0], made, 'another passkey gives another secret');
});

t.test('WEB-39: a passkey without secrets, and an owner who declines, are reported as such', { skip }, async (t) => {
  const { page, plug, origin } = await scene(t);
  await plug({ hasPrf: false, isUserVerified: true });
  t.equal(await secrets(page), 'unsupported');
  await plug({ hasPrf: true, isUserVerified: false });
  t.equal(await secrets(page), 'cancelled');
  await page.goto(origin);
  t.equal(await work(page), false, 'an IP address has no passkeys');
});
