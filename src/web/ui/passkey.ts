/** Passkeys that yield 32 secret bytes (WebAuthn, extension `prf`), which open this browser's identity. */
import type { PasskeyRef } from '../link/messages.js';
import { randomBytes } from '../random.js';

const SALT_BYTES = 32;
const SECRET_BYTES = 32;
const ES256 = -7;
const RS256 = -257;
const TIMEOUT_MS = 120_000;

/** `cancelled`: the user or the system ended the dialog; `unsupported`: the passkey cannot yield a secret. */
export class PasskeyError extends Error {
  override readonly name = 'PasskeyError';
  constructor(readonly code: 'cancelled' | 'unsupported') {
    super(code);
  }
}

/** False if it is certain that no passkey here can yield a secret. */
export async function passkeysWork(): Promise<boolean> {
  if (typeof PublicKeyCredential === 'undefined' || !isSecureContext) return false;
  // An IP address cannot be the id of a relying party.
  if (/^[\d.]+$|^\[/.test(location.hostname)) return false;
  const capabilities = await PublicKeyCredential.getClientCapabilities?.().catch(() => undefined);
  return capabilities?.['extension:prf'] !== false;
}

function secretOf(credential: Credential | null): Uint8Array | undefined {
  if (!(credential instanceof PublicKeyCredential)) throw new PasskeyError('cancelled');
  const first = credential.getClientExtensionResults().prf?.results?.first;
  if (first === undefined) return undefined;
  const secret = first instanceof ArrayBuffer ? new Uint8Array(first) : new Uint8Array(first.buffer);
  return secret.length === SECRET_BYTES ? secret : undefined;
}

/** Awaits a browser dialog, which rejects with `NotAllowedError` if the user closes it. Throws `PasskeyError`. */
async function asked<T>(dialog: Promise<T>): Promise<T> {
  try {
    return await dialog;
  } catch (error) {
    throw new PasskeyError(
      error instanceof DOMException && error.name === 'NotSupportedError' ? 'unsupported' : 'cancelled',
    );
  }
}

/** Creates a passkey and gets its secret. Throws `PasskeyError`. */
export async function makePasskey(name: string) {
  const salt = randomBytes(SALT_BYTES);
  const made = await asked(
    navigator.credentials.create({
      publicKey: {
        challenge: randomBytes(SALT_BYTES),
        rp: { id: location.hostname, name: location.hostname },
        user: { id: randomBytes(16), name, displayName: name },
        pubKeyCredParams: [ES256, RS256].map((alg) => ({ type: 'public-key', alg })),
        authenticatorSelection: { userVerification: 'required', residentKey: 'preferred' },
        timeout: TIMEOUT_MS,
        extensions: { prf: { eval: { first: salt } } },
      },
    }),
  );
  if (!(made instanceof PublicKeyCredential)) throw new PasskeyError('cancelled');
  if (made.getClientExtensionResults().prf?.enabled === false) throw new PasskeyError('unsupported');
  const passkey: PasskeyRef = { credentialId: new Uint8Array(made.rawId), salt };
  // Many authenticators yield the secret only on a second request.
  return { passkey, secret: secretOf(made) ?? (await askPasskey(passkey)) };
}

/** Gets the secret of a passkey that was created here. Throws `PasskeyError`. */
export async function askPasskey({ credentialId, salt }: PasskeyRef): Promise<Uint8Array> {
  const given = await asked(
    navigator.credentials.get({
      publicKey: {
        challenge: randomBytes(SALT_BYTES),
        rpId: location.hostname,
        allowCredentials: [{ type: 'public-key', id: new Uint8Array(credentialId) }],
        userVerification: 'required',
        timeout: TIMEOUT_MS,
        extensions: { prf: { eval: { first: new Uint8Array(salt) } } },
      },
    }),
  );
  const secret = secretOf(given);
  if (secret === undefined) throw new PasskeyError('unsupported');
  return secret;
}
