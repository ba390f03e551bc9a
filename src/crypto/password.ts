/** The account password, stretched by the client before it is sent (CRYPTO-23). */
import { toBase64Url } from '../protocol/base64.js';
import { lengthPrefixed, text } from '../protocol/bytes.js';
import { KEY_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import { erasing, stretch, type Sodium } from './sodium.js';

const CONTEXT = `${SERVICE_NAME}-password-v1`;

/**
 * base64url(Argon2id13(32, NFKD text, salt = BLAKE2b-16(LP("service-password-v1", tenantId)))): the server never sees
 * what the user typed. Rejects with `empty_password`.
 */
export async function stretchPassword(
  sodium: Sodium,
  { password, tenantId }: { readonly password: string; readonly tenantId: string },
): Promise<string> {
  const typed = text(password.normalize('NFKD'));
  if (typed.length === 0) throw new CryptoRefusal('empty_password', 'the password is empty');
  const saltInput = lengthPrefixed(CONTEXT, tenantId);
  try {
    const out = await stretch(sodium, { length: KEY_BYTES, password: typed, saltInput });
    return erasing(sodium, out, toBase64Url);
  } finally {
    sodium.memzero(typed);
  }
}
