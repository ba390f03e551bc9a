/** A device's identity at rest, and saving renewed tokens. */
import { isGlyph } from '../sdk/api.js';
import { baseOf } from '../sdk/http.js';
import type { Identity } from '../sdk/identity.js';
import { bytes, count, nonEmpty, nullable, object, string, type Read } from '../sdk/reader.js';
import { Saver, type SaverOptions } from '../files/saver.js';
import { toBase64Url } from '../protocol/base64.js';
import { KEY_BYTES } from '../protocol/limits.js';

/** Readers of the fields of `secretsOf`. */
export const SECRETS = {
  tenantId: nonEmpty,
  glyph: string,
  publicKey: bytes(KEY_BYTES),
  secretKey: bytes(KEY_BYTES),
  masterKey: bytes(KEY_BYTES),
  token: object({ text: nonEmpty, expiresAt: nullable(count), issuedAt: nullable(count) }),
};

type Secrets = { readonly [K in keyof typeof SECRETS]: Read<(typeof SECRETS)[K]> };

/** The part of an identity that every program stores encrypted: all but address, id and name. */
export const secretsOf = ({ tenantId, glyph, keys, masterKey, token }: Identity) => ({
  tenantId,
  glyph,
  publicKey: toBase64Url(keys.publicKey),
  secretKey: toBase64Url(keys.secretKey),
  masterKey: toBase64Url(masterKey),
  token,
});

/** The identity of fields that were read. Throws `TypeError` for an invalid glyph or address. */
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

/** Saves renewed tokens. A failure is reported as `failed` words it, once in a row: the token in memory stays in use. */
export function tokenSaver({
  failed,
  note,
  ...how
}: Pick<SaverOptions<Identity>, 'save' | 'clock'> & {
  readonly failed: (error: unknown) => string;
  readonly note: (text: string) => void;
}): Saver<Identity> {
  let reported = '';
  return new Saver({
    ...how,
    onFailure: (error) => {
      const text = failed(error);
      if (text !== reported) note(text);
      reported = text;
    },
    onRecovery: () => note('The renewed token is saved now.'),
  });
}
