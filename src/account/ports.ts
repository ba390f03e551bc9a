/** What accounts need from outside: PostgreSQL in the server. Every call is one statement (contract 13). */
import type { NewDevice } from '../protocol/device-fields.js';

/** A device as it is stored. Times are milliseconds since 1970. */
export interface DeviceRecord {
  readonly id: string;
  readonly name: string;
  readonly glyph: string;
  readonly pubkey: Uint8Array;
  readonly cert: Uint8Array | null;
  readonly tokenEpoch: number;
  readonly pairedAt: number;
  readonly revokedAt: number | null;
  readonly lastSeenAt: number | null;
}

/** A password ticket whose signature holds: which password it was given for, and what spending it takes. */
export interface PasswordProof {
  readonly ticketId: string;
  readonly expiresAt: number;
  /** `password_set_at` of the password that was shown. */
  readonly setAt: number;
}

/** A refusal by the error catalogue's name, or the token epoch of the device that was added. */
export type Joined<Refusal extends string> =
  { readonly verdict: 'ok'; readonly epoch: number } | { readonly verdict: Refusal };

/** Common to the ways a device is added. */
export interface JoinLimits {
  /** MAX_DEVICES. */
  readonly maxDevices: number;
  readonly now: number;
}

export interface Claim extends JoinLimits {
  readonly tenantId: string;
  /** The caller showed the operator's BOOTSTRAP_TOKEN, or none is asked. */
  readonly admitted: boolean;
  /** SHA-256 of the claim token that was sent; null: none. */
  readonly claimHash: Uint8Array | null;
  readonly device: NewDevice;
  readonly recoveryPubkey: Uint8Array | null;
}

export interface BootstrapStore {
  /** Claims the tenant if nobody has: of concurrent calls exactly one gets `ok`. */
  claim(
    claim: Claim,
  ): Promise<Joined<'tenant_not_found' | 'bootstrap_already_done' | 'forbidden' | 'device_exists' | 'device_limit'>>;
  /** Removes devices, pairings, challenges, password and recovery key; keeps items and bins. False: no such tenant. */
  restart(tenantId: string): Promise<boolean>;
  claimed(tenantId: string): Promise<boolean>;
}

/** Fields that are undefined stay as they are; a null certificate is removed. */
export interface DevicePatch {
  readonly name?: string;
  readonly glyph?: string;
  readonly cert?: Uint8Array | null;
}

export interface Seen {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly at: number;
}

export interface DeviceStore {
  /** All devices, also revoked ones, oldest first. */
  devices(tenantId: string): Promise<DeviceRecord[]>;
  device(tenantId: string, id: string): Promise<DeviceRecord | undefined>;
  patchDevice(tenantId: string, id: string, patch: DevicePatch): Promise<'ok' | 'device_not_found'>;
  /** Revoking a revoked device is `ok` and changes nothing. `by` is the device that asks, if one does. */
  revokeDevice(revocation: {
    readonly tenantId: string;
    readonly id: string;
    readonly by: string | null;
    readonly now: number;
  }): Promise<'ok' | 'device_not_found' | 'last_device' | 'device_revoked'>;
  /** Notes when devices were last seen; may leave some out. */
  touch(seen: readonly Seen[]): Promise<void>;
}

export interface Challenge {
  readonly id: string;
  readonly tenantId: string;
  readonly kind: 'reauth' | 'recovery';
  readonly deviceId: string | null;
  /** What the answer is checked with. */
  readonly secret: Uint8Array;
  readonly expiresAt: number;
}

export interface ChallengeStore {
  putChallenge(challenge: Challenge, now: number): Promise<void>;
  /** Takes the challenge away, expired or not: of concurrent calls one gets it. */
  takeChallenge(challenge: Pick<Challenge, 'id' | 'tenantId' | 'kind'>): Promise<Challenge | undefined>;
}

/** How things stand before a recovery is tried. */
export interface RecoveryStanding {
  readonly recoveryPubkey: Uint8Array | null;
  /** No password is set, or the proof is for this very password and its ticket is unspent. */
  readonly passwordShown: boolean;
}

export interface RecoveryJoin extends JoinLimits {
  readonly tenantId: string;
  /** The key that the signature was checked with: it must still be the tenant's. */
  readonly recoveryPubkey: Uint8Array;
  /** Spent with the join, where a password is set. */
  readonly proof: PasswordProof | undefined;
  readonly device: NewDevice;
}

export interface RecoveryStore {
  recoveryStanding(tenantId: string, proof: PasswordProof | undefined): Promise<RecoveryStanding | undefined>;
  recover(
    join: RecoveryJoin,
  ): Promise<Joined<'tenant_not_found' | 'forbidden' | 'password_required' | 'device_exists' | 'device_limit'>>;
}

export interface StoredPassword {
  /** Argon2id string. */
  readonly hash: string;
  readonly setAt: number;
}

export interface PasswordStore {
  password(tenantId: string): Promise<StoredPassword | undefined>;
  /** Sets the password if the one in force is still the one set at `knownSetAt` (null: none). */
  setPassword(change: {
    readonly tenantId: string;
    readonly hash: string;
    readonly knownSetAt: number | null;
    /** The device that asks, if one does. */
    readonly by: string | null;
    readonly now: number;
  }): Promise<'ok' | 'tenant_not_found' | 'password_invalid' | 'device_revoked'>;
}

export interface TicketStore {
  /** True for the first caller on any instance, false for every later one. */
  spend(id: string, expiresAt: number): Promise<boolean>;
}

export interface RateStore {
  /** Counts one use of `key` (32 bytes) in the window; 0 when admitted, else the milliseconds to wait. */
  take(use: {
    readonly key: Uint8Array;
    readonly now: number;
    readonly windowMs: number;
    readonly limit: number;
  }): Promise<number>;
}
