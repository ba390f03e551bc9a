/** Re-authentication: a device whose token ran out proves that it still holds its secret key. */
import { lengthPrefixed } from '../protocol/bytes.js';
import { KEY_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import type { KeyPair, Sodium } from './sodium.js';

const CHALLENGE_CONTEXT = `${SERVICE_NAME}-reauth-v1`;
const ANSWER_CONTEXT = `${SERVICE_NAME}-reauth-answer-v1`;

/** Whom and what a challenge is for. A client uses the tenant id that it stored when it joined. */
export interface ReauthIds {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly challengeId: string;
}

const challengeForm = (ids: ReauthIds, secret: Uint8Array): Uint8Array =>
  lengthPrefixed(CHALLENGE_CONTEXT, ids.tenantId, ids.deviceId, ids.challengeId, secret);

const answerOf = (sodium: Sodium, ids: ReauthIds, secret: Uint8Array): Uint8Array =>
  sodium.hmacSha256(lengthPrefixed(ANSWER_CONTEXT, ids.tenantId, ids.deviceId, ids.challengeId), secret);

/**
 * Server: a challenge sealed to the device's public key, and the one answer that will be right (32 bytes). The server
 * keeps the answer for two minutes and compares with `Sodium.equal`. Throws `low_order` or `bad_length` for a public
 * key that no honest device has.
 */
export function makeReauthChallenge(
  sodium: Sodium,
  ids: ReauthIds,
  publicKey: Uint8Array,
): { readonly challenge: Uint8Array; readonly answer: Uint8Array } {
  const secret = sodium.random(KEY_BYTES);
  const opened = challengeForm(ids, secret);
  try {
    return { challenge: sodium.seal(opened, publicKey), answer: answerOf(sodium, ids, secret) };
  } finally {
    sodium.memzero(secret);
    sodium.memzero(opened);
  }
}

/**
 * Client: the answer to a challenge. Throws `bad_challenge` for anything that is not exactly
 * LP("service-reauth-v1", tenantId, deviceId, challengeId, 32 bytes): a lying server could otherwise have any key that
 * was sealed to this device, the master key among them, opened for it.
 */
export function answerReauthChallenge(
  sodium: Sodium,
  ids: ReauthIds,
  sealed: { readonly challenge: Uint8Array; readonly keys: KeyPair },
): Uint8Array {
  const opened = sodium.sealOpen(sealed.challenge, sealed.keys);
  if (opened === undefined) throw new CryptoRefusal('bad_challenge', 'the challenge does not open with this device');
  try {
    const secret = opened.slice(-KEY_BYTES);
    const expected = challengeForm(ids, secret);
    // Equality with the one form that this secret could stand in decides name, ids, order and lengths at once.
    if (secret.length !== KEY_BYTES || !sodium.equal(expected, opened)) {
      throw new CryptoRefusal('bad_challenge', 'what was sealed is not a challenge for this device');
    }
    const answer = answerOf(sodium, ids, secret);
    sodium.memzero(secret);
    sodium.memzero(expected);
    return answer;
  } finally {
    sodium.memzero(opened);
  }
}
