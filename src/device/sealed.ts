/** Secrets at rest: a text that is encrypted, and erased from memory as soon as it is. */
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { text } from '../protocol/bytes.js';
import { NONCE_BYTES } from '../protocol/limits.js';

/** Under which key, and to what else the text is bound. */
export interface Seal {
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

/** What `read` makes of the JSON. Throws `changed()` where it does not open, `unreadable()` where `read` throws. */
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
    // No cause: the parser's message would quote the plaintext.
    throw how.unreadable();
  } finally {
    sodium.memzero(message);
  }
}
