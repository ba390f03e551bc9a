/** Enrolment of a device without another device: the claim of an unclaimed tenant, and recovery by phrase. */
import { randomBytes } from 'node:crypto';
import { ulid } from 'ulid';
import { verifyRecovery } from '../../crypto/recovery.js';
import { SIGNATURE_BYTES } from '../../crypto/sodium.js';
import {
  bytesField,
  deviceReply,
  macField,
  nameField,
  type NewDevice,
  publicKeyField,
  wrappedMasterKeyField,
} from '../../protocol/request-fields.js';
import { ServiceError } from '../../protocol/errors.js';
import { CHALLENGE_MS, KEY_BYTES, SIG_BYTES } from '../../protocol/limits.js';
import type * as replies from '../../protocol/replies.js';
import type { BootstrapBody, RecoverBody } from '../../protocol/requests.js';
import { notifyChange } from '../../protocol/change-notifier.js';
import { equalsSecret, sha256 } from '../http/tokens.js';
import type { AccountParts } from './credentials.js';

type EnrolmentParts = Omit<AccountParts, 'unauthenticatedStore' | 'sodium' | 'hasher' | 'tickets'>;

export interface BootstrapOptions extends EnrolmentParts {
  /** BOOTSTRAP_TOKEN; null: none is required. Ignored in multi mode. */
  readonly bootstrapToken: string | null;
  /** Multi mode: the tenant's own claim token, from signup, is always required. */
  readonly claimTokens: boolean;
  /** Closes the tenant's sockets on all instances and drops its cached state. */
  readonly reset: (tenantId: string) => Promise<void>;
}

/** The fields in which a new device describes itself. Throws `validation`. */
const deviceFields = ({ name, glyph, pubkey }: Pick<RecoverBody, 'name' | 'glyph' | 'pubkey'>) => ({
  name: nameField(name),
  glyph,
  pubkey: publicKeyField('pubkey', pubkey),
});

/** Publishes a device that was just added, and issues its first token. */
async function finishEnrolment(
  options: EnrolmentParts,
  tenantId: string,
  { device, pairedAt, epoch }: { device: NewDevice; pairedAt: number; epoch: number },
): Promise<replies.Recovered<Uint8Array>> {
  await notifyChange(options, tenantId);
  const { token } = options.issueToken({ tenantId, deviceId: device.id, epoch });
  return { device: deviceReply({ ...device, pairedAt }), token };
}

/** Claims of tenants by their first devices, and the operator's reset of a tenant to unclaimed. */
export class Bootstrap {
  constructor(private readonly options: BootstrapOptions) {}

  /**
   * Claims the tenant for its first device. Throws `bootstrap_already_done`, and `forbidden` for a missing or wrong
   * claim token, which claims nothing.
   */
  async claim(tenantId: string, body: BootstrapBody): Promise<replies.Claimed<Uint8Array>> {
    const { store, clock, maxDevices } = this.options;
    const now = clock.now();
    const { wrappedMasterKey: wrapped = null, recoveryPubkey: recovery = null, claimToken = null } = body;
    const wrappedMasterKey = wrapped === null ? null : wrappedMasterKeyField(wrapped);
    const device: NewDevice = {
      id: body.deviceId ?? ulid(now),
      ...deviceFields(body),
      cert: macField('deviceCert', body.deviceCert),
    };
    // Checked before the tenant's lock is taken, so that refused claims cannot hold up the tenant's own calls.
    if (await store.claimed(tenantId)) throw new ServiceError('bootstrap_already_done');
    const joined = await store.claim({
      tenantId,
      admitted: this.admits(claimToken),
      claimHash: claimToken === null ? null : sha256(claimToken),
      device,
      recoveryPubkey: recovery === null ? null : bytesField('recoveryPubkey', recovery, KEY_BYTES),
      maxDevices,
      now,
    });
    if (joined.verdict !== 'ok') throw new ServiceError(joined.verdict);
    const claimed = await finishEnrolment(this.options, tenantId, { device, pairedAt: now, epoch: joined.epoch });
    return { ...claimed, wrappedMasterKey };
  }

  /**
   * Makes the tenant unclaimed again: deletes devices, pairings, password and recovery key, keeps items. Old tokens
   * stay invalid, even if a later device has an old id. Throws `tenant_not_found`.
   */
  async restart(tenantId: string): Promise<replies.Ok> {
    if (!(await this.options.store.restart(tenantId))) throw new ServiceError('tenant_not_found');
    // The change is durable, so a failure here must not fail the call: sockets left open close at the next comparison
    // of heads.
    await notifyChange({ changed: this.options.reset, onFault: this.options.onFault }, tenantId);
    return { ok: true };
  }

  /** Whether a device has claimed the tenant; false also for an unknown one. */
  claimed(tenantId: string): Promise<boolean> {
    return this.options.store.claimed(tenantId);
  }

  /** Whether the body's token is BOOTSTRAP_TOKEN; undefined where none was sent, or none is required. */
  isRight({ claimToken = null }: BootstrapBody): boolean | undefined {
    const { bootstrapToken, claimTokens } = this.options;
    return claimTokens || bootstrapToken === null || claimToken === null ? undefined : this.admits(claimToken);
  }

  private admits(claimToken: string | null): boolean {
    const { bootstrapToken, claimTokens } = this.options;
    // The token is compared and spent in the database, under the tenant's lock.
    if (claimTokens) return claimToken !== null;
    if (bootstrapToken === null) return true;
    return claimToken !== null && equalsSecret(claimToken, bootstrapToken);
  }
}

/** A recovery that was refused for its host. The names are the client's, reduced to printable ASCII. */
export interface ForeignHost {
  readonly tenantId: string;
  readonly signedFor: string;
  readonly cameTo: string;
}

/** The maximum length of a host name. */
const HOST_MAX = 253;

/** For the log: characters that a host name cannot have are replaced by question marks. */
const printable = (host: string): string => host.slice(0, HOST_MAX).replace(/[^!-~]/gu, '?');

/** One refusal for every failed check, so that callers do not learn whether a recovery key is registered. */
const recoveryRefused = (): ServiceError =>
  new ServiceError('forbidden', 'Recovery was refused: the challenge or signature does not hold.');

/** Recovery when all devices are gone, by a signature of the key that is derived from the phrase. */
export class Recovery {
  /**
   * @param options.publicHosts host names, lower case and without port, that clients dial. Empty: the request's own host
   * counts.
   * @param options.onForeignHost is called for a recovery that was signed for a host that does not count.
   */
  constructor(
    private readonly options: Omit<AccountParts, 'unauthenticatedStore' | 'hasher'> & {
      readonly publicHosts: readonly string[];
      readonly onForeignHost: (mismatch: ForeignHost) => void;
    },
  ) {}

  /** A challenge of 32 random bytes, for one use within `CHALLENGE_MS`. */
  async challenge(tenantId: string): Promise<replies.RecoveryChallengeReply<Uint8Array>> {
    const now = this.options.clock.now();
    const secret = new Uint8Array(randomBytes(KEY_BYTES));
    const challenge = { id: ulid(now), tenantId, kind: 'recovery' as const, deviceId: null, secret };
    await this.options.store.putChallenge({ ...challenge, expiresAt: now + CHALLENGE_MS }, now);
    return { challengeId: challenge.id, challenge: secret, tenantId };
  }

  /**
   * Adds the signed device. `dialled`: the host name that the request was sent to. A signature for a host that does not
   * count (see `publicHosts`) is refused, so that another server cannot relay it.
   * Throws `password_required` (which leaves the challenge unused), `forbidden`, `device_exists`, `device_limit`.
   */
  async recover(tenantId: string, body: RecoverBody, dialled: string): Promise<replies.Recovered<Uint8Array>> {
    const { store, clock, sodium, tickets, maxDevices } = this.options;
    const deviceCert = bytesField('deviceCert', body.deviceCert, SIG_BYTES);
    const device: NewDevice = { id: body.deviceId, ...deviceFields(body), cert: deviceCert };
    const signature = bytesField('signature', body.signature, SIGNATURE_BYTES);
    this.requireOwnHost(tenantId, body.host, dialled);

    const proof = tickets.passwordProof(body.passwordTicket, tenantId, device.pubkey);
    const state = await store.recoveryState(tenantId, proof);
    if (state === undefined) throw new ServiceError('tenant_not_found');
    if (!state.passwordShown) throw new ServiceError('password_required');

    const { recoveryPubkey } = state;
    const challenge = await store.takeChallenge({ id: body.challengeId, tenantId, kind: 'recovery' });
    if (challenge === undefined || challenge.expiresAt <= clock.now() || recoveryPubkey === null)
      throw recoveryRefused();
    const { id: challengeId, secret } = challenge;
    const { id: deviceId, pubkey: publicKey } = device;
    const claim = { host: body.host, tenantId, challengeId, challenge: secret, deviceId, publicKey, deviceCert };
    if (!verifyRecovery(sodium, claim, { signature, recoveryPubkey })) throw recoveryRefused();

    const now = clock.now();
    const joined = await store.recover({ tenantId, recoveryPubkey, proof, device, maxDevices, now });
    if (joined.verdict !== 'ok')
      throw joined.verdict === 'forbidden' ? recoveryRefused() : new ServiceError(joined.verdict);
    return finishEnrolment(this.options, tenantId, { device, pairedAt: now, epoch: joined.epoch });
  }

  /** Throws `forbidden` if the recovery was signed for a host name that is not this server's. */
  private requireOwnHost(tenantId: string, signedFor: string, cameTo: string): void {
    const { publicHosts } = this.options;
    // With `publicHosts` the request's host does not count: a relay could send its own, for which the client signed.
    if (publicHosts.length === 0 ? signedFor === cameTo : publicHosts.includes(signedFor)) return;
    this.options.onForeignHost({ tenantId, signedFor: printable(signedFor), cameTo: printable(cameTo) });
    throw recoveryRefused();
  }
}
