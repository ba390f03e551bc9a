/** Recovery when all devices are gone: whoever holds the phrase signs a new device in. */
import { randomBytes } from 'node:crypto';
import { ulid } from 'ulid';
import { verifyRecovery } from '../../crypto/recovery.js';
import { SIGNATURE_BYTES, type Sodium } from '../../crypto/sodium.js';
import type { Clock } from '../../protocol/clock.js';
import {
  deviceReply,
  nameField,
  publicKeyField,
  type DeviceReply,
  type NewDevice,
} from '../../protocol/device-fields.js';
import { ServiceError } from '../../protocol/errors.js';
import { bytesField } from '../../protocol/item-codec.js';
import { CHALLENGE_MS, KEY_BYTES, SIG_BYTES } from '../../protocol/limits.js';
import type { RecoverBody } from '../../protocol/requests.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { ChallengeStore, RecoveryStanding, RecoveryStore } from './ports.js';
import type { Tickets } from './tickets.js';
import type { TokenIssuer } from '../http/tokens.js';

/** The longest host name there is. */
const HOST_MAX = 253;

/** What recovery is made of. */
export interface RecoveryOptions extends ChangeNotifier {
  readonly store: RecoveryStore & ChallengeStore;
  readonly clock: Clock;
  readonly sodium: Sodium;
  readonly issueToken: TokenIssuer;
  readonly tickets: Pick<Tickets, 'passwordProof'>;
  readonly maxDevices: number;
  /**
   * Host names, lower case and without port, that clients are told to dial. Behind a proxy that rewrites `Host` the
   * request's own host is not the one that the client dialled and signed.
   */
  readonly publicHosts: readonly string[];
  /** Told of a recovery that was signed for one host and came to another, for the operator's log. */
  readonly onForeignHost: (mismatch: ForeignHost) => void;
}

/** A recovery that was refused for its host. The names come from a stranger, but hold printable ASCII only. */
export interface ForeignHost {
  readonly tenantId: string;
  readonly signedFor: string;
  readonly cameTo: string;
}

/** The answer to `POST /devices/recover/challenge`. */
export interface RecoveryChallenge {
  readonly challengeId: string;
  /** 32 random bytes that the signature covers. */
  readonly challenge: Uint8Array;
  readonly tenantId: string;
}

/** For the log: whatever a host name cannot hold becomes a question mark. */
const shown = (host: string): string => host.slice(0, HOST_MAX).replace(/[^!-~]/gu, '?');

/** One refusal for all that may be wrong: a stranger does not learn whether a recovery key is registered. */
const refused = (): ServiceError =>
  new ServiceError('forbidden', 'Recovery was refused: the challenge or signature does not hold.');

/** Recovery by a signature that only the phrase gives. */
export class Recovery {
  constructor(private readonly options: RecoveryOptions) {}

  /** A challenge of one use and two minutes. */
  async challenge(tenantId: string): Promise<RecoveryChallenge> {
    const now = this.options.clock.now();
    const challenge = new Uint8Array(randomBytes(KEY_BYTES));
    const id = ulid(now);
    await this.options.store.putChallenge(
      { id, tenantId, kind: 'recovery', deviceId: null, secret: challenge, expiresAt: now + CHALLENGE_MS },
      now,
    );
    return { challengeId: id, challenge, tenantId };
  }

  /**
   * Adds the signed device. `dialled`: the host name that the request came to. A signature made for a host that is
   * neither this nor one of `publicHosts` is refused, so that nobody can pass on what a client signed for him.
   * Throws `password_required` (which leaves the challenge as it is), `forbidden`, `device_exists`, `device_limit`.
   */
  async recover(tenantId: string, body: RecoverBody, dialled: string): Promise<{ device: DeviceReply; token: string }> {
    const { store, tickets, issueToken, maxDevices } = this.options;
    const cert = bytesField('deviceCert', body.deviceCert, SIG_BYTES);
    const device: NewDevice = {
      id: body.deviceId,
      name: nameField('name', body.name),
      glyph: body.glyph,
      pubkey: publicKeyField('pubkey', body.pubkey),
      cert,
    };
    const signature = bytesField('signature', body.signature, SIGNATURE_BYTES);
    this.requireOwnHost(tenantId, body.host, dialled);

    const ticket = body.passwordTicket ?? null;
    const proof = ticket === null ? undefined : tickets.passwordProof(ticket, { tenantId, pubkey: device.pubkey });
    const standing = await store.recoveryStanding(tenantId, proof);
    if (standing === undefined) throw new ServiceError('tenant_not_found');
    if (!standing.passwordShown) throw new ServiceError('password_required');
    const recoveryPubkey = await this.requireSignature({ tenantId, body, device, cert, signature, standing });
    const now = this.options.clock.now();
    const joined = await store.recover({ tenantId, recoveryPubkey, proof, device, maxDevices, now });
    if (joined.verdict !== 'ok') throw joined.verdict === 'forbidden' ? refused() : new ServiceError(joined.verdict);
    await notifyChange(this.options, tenantId);
    const { token } = issueToken({ tenantId, deviceId: device.id, epoch: joined.epoch });
    return { device: deviceReply({ ...device, pairedAt: now }), token };
  }

  private requireOwnHost(tenantId: string, signedFor: string, cameTo: string): void {
    if (signedFor === cameTo || this.options.publicHosts.includes(signedFor)) return;
    this.options.onForeignHost({ tenantId, signedFor: shown(signedFor), cameTo: shown(cameTo) });
    throw refused();
  }

  /** Uses the challenge up. Returns the recovery key that signed. */
  private async requireSignature(attempt: {
    readonly tenantId: string;
    readonly body: RecoverBody;
    readonly device: NewDevice;
    readonly cert: Uint8Array;
    readonly signature: Uint8Array;
    readonly standing: RecoveryStanding;
  }): Promise<Uint8Array> {
    const { tenantId, body, device, cert, signature } = attempt;
    const challenge = await this.options.store.takeChallenge({ id: body.challengeId, tenantId, kind: 'recovery' });
    const { recoveryPubkey } = attempt.standing;
    if (challenge === undefined || challenge.expiresAt <= this.options.clock.now() || recoveryPubkey === null)
      throw refused();
    const claim = {
      host: body.host,
      tenantId,
      challengeId: challenge.id,
      challenge: challenge.secret,
      deviceId: device.id,
      publicKey: device.pubkey,
      deviceCert: cert,
    };
    if (!verifyRecovery(this.options.sodium, claim, { signature, recoveryPubkey })) throw refused();
    return recoveryPubkey;
  }
}
