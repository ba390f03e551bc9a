/** A device's identity as the text that is encrypted (see `secrets.ts`). */
import { isGlyph } from '../../client/api.js';
import { baseOf } from '../../client/http.js';
import type { Identity } from '../../client/identity.js';
import { bytes, count, nonEmpty, nullable, object, string } from '../../client/reader.js';
import { toBase64Url } from '../../protocol/base64.js';
import { text } from '../../protocol/bytes.js';
import { KEY_BYTES } from '../../protocol/limits.js';

const readToken = object({ text: nonEmpty, expiresAt: nullable(count), issuedAt: nullable(count) });
const readIdentity = object({
  serverUrl: nonEmpty,
  tenantId: nonEmpty,
  deviceId: nonEmpty,
  name: string,
  glyph: string,
  publicKey: bytes(KEY_BYTES),
  secretKey: bytes(KEY_BYTES),
  masterKey: bytes(KEY_BYTES),
  token: readToken,
});

/** The bytes to encrypt; whoever has them clears them. */
export function encoded({ keys, masterKey, token, ...rest }: Identity): Uint8Array {
  const { serverUrl, tenantId, deviceId, name, glyph } = rest;
  const secret = {
    publicKey: toBase64Url(keys.publicKey),
    secretKey: toBase64Url(keys.secretKey),
    masterKey: toBase64Url(masterKey),
  };
  return text(JSON.stringify({ serverUrl, tenantId, deviceId, name, glyph, ...secret, token }));
}

/** Throws for anything that `encoded` did not write. */
export function decoded(message: Uint8Array): Identity {
  const read = readIdentity(JSON.parse(new TextDecoder().decode(message)), 'identity');
  const { publicKey, secretKey, glyph, token, ...rest } = read;
  if (!isGlyph(glyph)) throw new TypeError('unknown glyph');
  const { text: bearer, expiresAt, issuedAt } = token;
  return {
    ...rest,
    serverUrl: baseOf(rest.serverUrl),
    glyph,
    keys: { publicKey, secretKey },
    token: { text: bearer, expiresAt, ...(issuedAt === null ? {} : { issuedAt }) },
  };
}
