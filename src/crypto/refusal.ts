/** The reasons for which the crypto core refuses an input. Callers match on `reason`, never on the message. */

export type RefusalReason =
  /** A key, nonce or signature has a length that no honest party sends. */
  | 'bad_length'
  /** An X25519 public key of low order: the shared secret would be public. */
  | 'low_order'
  /** Not a code or a phrase: wrong count, unknown word or wrong checksum. */
  | 'bad_words'
  | 'empty_password'
  /** Plaintext or ciphertext over the protocol's limit. */
  | 'too_large'
  // Items.
  | 'no_sig'
  | 'bad_sig'
  | 'no_key'
  | 'bad_ct'
  | 'bad_payload'
  /** A device whose certificate does not verify would get the item key. */
  | 'uncertified_device'
  // Pairing, recovery and re-authentication.
  | 'wrong_host'
  | 'known_device'
  | 'wrong_device'
  | 'bad_attestation'
  | 'bad_confirmation'
  | 'bad_cert'
  | 'bad_wrap'
  | 'bad_challenge';

/** A refusal of the crypto core. The message names what was refused, never a secret, a word of a code or a payload. */
export class CryptoRefusal extends Error {
  override readonly name = 'CryptoRefusal';

  constructor(
    readonly reason: RefusalReason,
    message: string,
  ) {
    super(message);
  }
}

/** The result of `work`, or the refusal that it throws. */
export function orRefusal<T>(work: () => T): T | CryptoRefusal {
  try {
    return work();
  } catch (error) {
    if (error instanceof CryptoRefusal) return error;
    throw error;
  }
}
