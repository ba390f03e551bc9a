/** A device's identity as it is kept at rest, and how a renewed token gets there. */
import { isGlyph } from '../sdk/api.js';
import { baseOf } from '../sdk/http.js';
import type { Identity } from '../sdk/identity.js';
import { bytes, count, nonEmpty, nullable, object, string, type Read } from '../sdk/reader.js';
import { Saver, type SaverOptions } from '../files/saver.js';
import { toBase64Url } from '../protocol/base64.js';
import { KEY_BYTES } from '../protocol/limits.js';

/** Readers of what `secretsOf` wrote. */
export const SECRETS = {
  tenantId: nonEmpty,
  glyph: string,
  publicKey: bytes(KEY_BYTES),
  secretKey: bytes(KEY_BYTES),
  masterKey: bytes(KEY_BYTES),
  token: object({ text: nonEmpty, expiresAt: nullable(count), issuedAt: nullable(count) }),
};

type Secrets = { readonly [K in keyof typeof SECRETS]: Read<(typeof SECRETS)[K]> };

/** What of an identity lies encrypted at rest everywhere: without address, id and name. */
export const secretsOf = ({ tenantId, glyph, keys, masterKey, token }: Identity) => ({
  tenantId,
  glyph,
  publicKey: toBase64Url(keys.publicKey),
  secretKey: toBase64Url(keys.secretKey),
  masterKey: toBase64Url(masterKey),
  token,
});

/** The identity of what was read. Throws `TypeError` for a glyph or an address that is none. */
export function identityOf(
  { tenantId, glyph, publicKey, secretKey, masterKey, token }: Secrets,
  { serverUrl, deviceId, name }: Pick<Identity, 'serverUrl' | 'deviceId' | 'name'>,
): Identity {
  if (!isGlyph(glyph)) throw new TypeError('unknown glyph');
  const { text, expiresAt, issuedAt } = token;
  return {
    ...{ serverUrl: baseOf(serverUrl), tenantId, deviceId, name, glyph, masterKey },
    keys: { publicKey, secretKey },
    token: { text, expiresAt, ...(issuedAt === null ? {} : { issuedAt }) },
  };
}

/** Keeps renewed tokens. A failure is told as `failed` has it, the same one once: the work goes on with what is in memory. */
export function tokenSaver({
  failed,
  note,
  ...how
}: Pick<SaverOptions<Identity>, 'save' | 'clock'> & {
  readonly failed: (error: unknown) => string;
  readonly note: (text: string) => void;
}): Saver<Identity> {
  let told = '';
  return new Saver({
    ...how,
    onFailure: (error) => {
      const text = failed(error);
      if (text !== told) note(text);
      told = text;
    },
    onRecovery: () => note('The renewed token is saved now.'),
  });
}
