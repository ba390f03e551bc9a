/** Re-authentication: a device whose token ran out, or was never received, shows that it holds its key. */
import { ulid } from 'ulid';
import { makeReauthChallenge } from '../../crypto/reauth.js';
import type { Sodium } from '../../crypto/sodium.js';
import type { Clock } from '../../protocol/clock.js';
import { ServiceError } from '../../protocol/errors.js';
import { bytesField } from '../../protocol/item-codec.js';
import { CHALLENGE_MS, SIG_BYTES } from '../../protocol/limits.js';
import type { ReauthBody, ReauthChallengeBody } from '../../protocol/requests.js';
import type { ChallengeStore, DeviceRecord, DeviceStore } from './ports.js';
import type { IssuedToken, TokenIssuer } from '../http/tokens.js';

/** What re-authentication is made of. */
export interface ReauthOptions {
  readonly store: ChallengeStore & Pick<DeviceStore, 'device'>;
  readonly clock: Clock;
  readonly sodium: Sodium;
  readonly issueToken: TokenIssuer;
}

/** The answer to `POST /devices/reauth/challenge`. */
export interface ReauthChallenge {
  readonly challengeId: string;
  /** Sealed box to the device's key of LP("service-reauth-v1", tenantId, deviceId, challengeId, 32 random bytes). */
  readonly challenge: Uint8Array;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** One refusal for a challenge that is unknown, late, used or wrongly answered: which of them is nobody's business. */
const refused = (): ServiceError =>
  new ServiceError('forbidden', 'The challenge is unknown, expired, used or wrongly answered.');

/** New tokens for devices that show that they hold their key. */
export class Reauthentication {
  constructor(private readonly options: ReauthOptions) {}

  /** A challenge that only the device can open. Throws `device_not_found`, `device_revoked`. */
  async challenge(tenantId: string, { deviceId }: ReauthChallengeBody): Promise<ReauthChallenge> {
    const { store, clock, sodium } = this.options;
    const device = await store.device(tenantId, deviceId);
    if (device === undefined) throw new ServiceError('device_not_found');
    requireStanding(device);
    const now = clock.now();
    const challengeId = ulid(now);
    const { challenge, answer } = makeReauthChallenge(sodium, { tenantId, deviceId, challengeId }, device.pubkey);
    const expiresAt = now + CHALLENGE_MS;
    await store.putChallenge({ id: challengeId, tenantId, kind: 'reauth', deviceId, secret: answer, expiresAt }, now);
    return { challengeId, challenge, expiresAt };
  }

  /**
   * A token for the right answer, which is 32 bytes. The challenge is used up by any answer of that length.
   * Throws `forbidden`, and `device_revoked` for a device that was revoked in between.
   */
  async answer(tenantId: string, body: ReauthBody): Promise<IssuedToken> {
    const { store, clock, sodium, issueToken } = this.options;
    const answer = bytesField('answer', body.answer, SIG_BYTES);
    const challenge = await store.takeChallenge({ id: body.challengeId, tenantId, kind: 'reauth' });
    if (challenge === undefined || challenge.deviceId !== body.deviceId || challenge.expiresAt <= clock.now())
      throw refused();
    if (!sodium.equal(challenge.secret, answer)) throw refused();
    // The token carries the epoch read now: one that a revocation overtakes is born dead.
    const device = await store.device(tenantId, body.deviceId);
    if (device === undefined) throw refused();
    requireStanding(device);
    return issueToken({ tenantId, deviceId: device.id, epoch: device.tokenEpoch });
  }
}

function requireStanding(device: DeviceRecord): void {
  if (device.revokedAt !== null) throw new ServiceError('device_revoked');
}
