/** Encryption of secrets at rest. The plaintext is erased from memory at once. */
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { text } from '../protocol/bytes.js';
import { NONCE_BYTES } from '../protocol/limits.js';

/** The key, and the data that the ciphertext is bound to. */
interface Seal {
  readonly sodium: Sodium;
  readonly key: Uint8Array;
  readonly aad: Uint8Array;
}

/** Encrypts `value` as JSON, under a new nonce. */
export function sealed({ sodium, ...by }: Seal, value: unknown): { readonly nonce: string; readonly ct: string } {
  const message = text(JSON.stringify(value));
  const nonce = sodium.random(NONCE_BYTES);
  const ct = sodium.aeadEncrypt({ message, nonce, ...by });
  sodium.memzero(message);
  return { nonce: toBase64Url(nonce), ct: toBase64Url(ct) };
}

/** The decrypted JSON, parsed by `read`. Throws `changed()` where decryption fails, `unreadable()` where `read` throws. */
export function unsealed<T>(
  { sodium, ...by }: Seal,
  { nonce, ct }: { readonly nonce: Uint8Array; readonly ct: Uint8Array },
  how: { readonly read: (value: unknown) => T; readonly changed: () => Error; readonly unreadable: () => Error },
): T {
  const message = sodium.aeadDecrypt({ message: ct, nonce, ...by });
  if (message === undefined) throw how.changed();
  try {
    return how.read(JSON.parse(new TextDecoder().decode(message)));
  } catch {
    // Without a cause: the message of the parser quotes the plaintext.
    throw how.unreadable();
  } finally {
    sodium.memzero(message);
  }
}
