/** Re-authentication: a device whose token has expired proves that it still holds its secret key. */
import { lengthPrefixed } from '../protocol/bytes.js';
import { KEY_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import { erasing, type KeyPair, type Sodium } from './sodium.js';

const CHALLENGE_CONTEXT = `${SERVICE_NAME}-reauth-v1`;
const ANSWER_CONTEXT = `${SERVICE_NAME}-reauth-answer-v1`;

/** The ids that a challenge is bound to. A client uses the tenant id that it stored when it joined. */
interface ReauthIds {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly challengeId: string;
}

const plaintextOf = (ids: ReauthIds, secret: Uint8Array): Uint8Array =>
  lengthPrefixed(CHALLENGE_CONTEXT, ids.tenantId, ids.deviceId, ids.challengeId, secret);

const answerOf = (sodium: Sodium, ids: ReauthIds, secret: Uint8Array): Uint8Array =>
  sodium.hmacSha256(lengthPrefixed(ANSWER_CONTEXT, ids.tenantId, ids.deviceId, ids.challengeId), secret);

/**
 * Server: a challenge sealed to the device's public key, and the only correct answer (32 bytes), which the server keeps
 * for two minutes and compares by `Sodium.equal`. Throws `low_order` or `bad_length` for an invalid public key.
 */
export function makeReauthChallenge(
  sodium: Sodium,
  ids: ReauthIds,
  publicKey: Uint8Array,
): { readonly challenge: Uint8Array; readonly answer: Uint8Array } {
  return erasing(sodium, sodium.random(KEY_BYTES), (secret) =>
    erasing(sodium, plaintextOf(ids, secret), (plaintext) => ({
      challenge: sodium.seal(plaintext, publicKey),
      answer: answerOf(sodium, ids, secret),
    })),
  );
}

/**
 * Client: the answer to a challenge. Throws `bad_challenge` for anything that is not exactly
 * LP("service-reauth-v1", tenantId, deviceId, challengeId, 32 bytes): otherwise a lying server could use this call to
 * open any key that was sealed to this device, the master key among them.
 */
export function answerReauthChallenge(
  sodium: Sodium,
  ids: ReauthIds,
  { challenge, keys }: { readonly challenge: Uint8Array; readonly keys: KeyPair },
): Uint8Array {
  const opened = sodium.sealOpen(challenge, keys);
  if (opened === undefined) throw new CryptoRefusal('bad_challenge', 'the challenge does not open with this device');
  return erasing(sodium, opened, () => {
    // A view, not a copy: what a lying server had this device open may be the master key, and is erased with `opened`.
    const secret = opened.subarray(-KEY_BYTES);
    // Comparing with the only valid encoding of this secret verifies context, ids, order and lengths at once.
    const isValid = erasing(
      sodium,
      plaintextOf(ids, secret),
      (expected) => secret.length === KEY_BYTES && sodium.equal(expected, opened),
    );
    if (!isValid) throw new CryptoRefusal('bad_challenge', 'what was sealed is not a challenge for this device');
    return answerOf(sodium, ids, secret);
  });
}
