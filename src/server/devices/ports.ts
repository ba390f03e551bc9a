/** What accounts need from outside: PostgreSQL in the server. Every call is one statement. */
import type { NewDevice } from '../../protocol/device-fields.js';
import type { Summary } from '../../protocol/item.js';
import type { PasswordProof } from '../../protocol/password-proof.js';
import type { Glyph } from '../../protocol/requests.js';

/** A device as it is stored. Times are milliseconds since 1970. */
export interface DeviceRecord {
  readonly id: string;
  readonly name: string;
  readonly glyph: Glyph;
  readonly pubkey: Uint8Array;
  readonly cert: Uint8Array | null;
  readonly tokenEpoch: number;
  readonly pairedAt: number;
  readonly revokedAt: number | null;
  readonly lastSeenAt: number | null;
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

/** The first device's claim of its tenant. */
export interface Claim extends JoinLimits {
  readonly tenantId: string;
  /** The caller showed the operator's BOOTSTRAP_TOKEN, or none is asked. */
  readonly admitted: boolean;
  /** SHA-256 of the claim token that was sent; null: none. */
  readonly claimHash: Uint8Array | null;
  readonly device: NewDevice;
  readonly recoveryPubkey: Uint8Array | null;
}

/** Claiming a tenant and making it unclaimed again. */
export interface BootstrapStore {
  /** Claims the tenant if nobody has: of concurrent calls exactly one gets `ok`. */
  claim(
    claim: Claim,
  ): Promise<Joined<'tenant_not_found' | 'bootstrap_already_done' | 'forbidden' | 'device_exists' | 'device_limit'>>;
  /** Removes devices, pairings, challenges, password and recovery key; keeps items and bins. False: no such tenant. */
  restart(tenantId: string): Promise<boolean>;
  /** False also for an unknown tenant. */
  claimed(tenantId: string): Promise<boolean>;
}

/** Fields that are undefined stay as they are; a null certificate is removed. */
export interface DevicePatch {
  readonly name?: string;
  readonly glyph?: string;
  readonly cert?: Uint8Array | null;
}

/** A device was seen, at a time in milliseconds since 1970. */
export interface Seen {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly at: number;
}

/** The device as it was committed, or a refusal by the error catalogue's name. */
export type DeviceChanged<Refusal extends string> =
  { readonly verdict: 'ok'; readonly device: DeviceRecord } | { readonly verdict: Refusal };

/** The devices of all tenants. All calls throw `unavailable` when the database is out of reach, here and below. */
export interface DeviceStore {
  /** All devices, also revoked ones, oldest first. */
  devices(tenantId: string): Promise<DeviceRecord[]>;
  device(tenantId: string, id: string): Promise<DeviceRecord | undefined>;
  /** `by` is the device that asks, here and below: one that was revoked meanwhile is refused. */
  patchDevice(patch: {
    readonly tenantId: string;
    readonly id: string;
    readonly by: string;
    readonly fields: DevicePatch;
  }): Promise<DeviceChanged<'device_not_found' | 'device_revoked'>>;
  /** Revoking a revoked device is `ok` and changes nothing. */
  revokeDevice(revocation: {
    readonly tenantId: string;
    readonly id: string;
    readonly by: string;
    readonly now: number;
  }): Promise<DeviceChanged<'device_not_found' | 'last_device' | 'device_revoked'>>;
  /** Notes when devices were last seen; may leave some out. */
  touch(seen: readonly Seen[]): Promise<void>;
}

/** What a client has to answer or sign, once, within two minutes. */
export interface Challenge {
  readonly id: string;
  readonly tenantId: string;
  readonly kind: 'reauth' | 'recovery';
  readonly deviceId: string | null;
  /** What the answer is checked with. */
  readonly secret: Uint8Array;
  readonly expiresAt: number;
}

/** Challenges, seen by every instance. */
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

/** A device whose recovery was signed rightly. */
export interface RecoveryJoin extends JoinLimits {
  readonly tenantId: string;
  /** The key that the signature was checked with: it must still be the tenant's. */
  readonly recoveryPubkey: Uint8Array;
  /** Spent with the join, where a password is set. */
  readonly proof: PasswordProof | undefined;
  readonly device: NewDevice;
}

/** Recovery by the key that only the phrase gives. */
export interface RecoveryStore {
  /** Undefined: no such tenant. */
  recoveryStanding(tenantId: string, proof: PasswordProof | undefined): Promise<RecoveryStanding | undefined>;
  recover(
    join: RecoveryJoin,
  ): Promise<Joined<'tenant_not_found' | 'forbidden' | 'password_required' | 'device_exists' | 'device_limit'>>;
}

/** A tenant's password. */
export interface StoredPassword {
  /** Argon2id string. */
  readonly hash: string;
  /** When it was set, milliseconds since 1970; rises with every change. */
  readonly setAt: number;
}

/** The account passwords of all tenants. */
export interface PasswordStore {
  /** Undefined: none is set. */
  password(tenantId: string): Promise<StoredPassword | undefined>;
  /** Sets the password, or takes it away, if the one in force is still the one set at `knownSetAt` (null: none). */
  setPassword(change: {
    readonly tenantId: string;
    /** Null: no password from now on. */
    readonly hash: string | null;
    readonly knownSetAt: number | null;
    /** The device that asks: one that was revoked meanwhile is refused. */
    readonly by: string;
    readonly now: number;
  }): Promise<'ok' | 'tenant_not_found' | 'password_invalid' | 'device_revoked'>;
}

/** Tickets that were spent, seen by every instance. */
export interface TicketStore {
  /** True for the first caller on any instance, false for every later one. */
  spend(id: string, expiresAt: number): Promise<boolean>;
}

/** What `/me` tells of the caller and its tenant. Times are milliseconds since 1970, sizes bytes. */
export interface Identity {
  readonly device: { readonly id: string; readonly name: string; readonly glyph: Glyph; readonly pairedAt: number };
  readonly summary: Summary;
  readonly storageUsedBytes: number;
  /** Devices that are not revoked. */
  readonly deviceCount: number;
}
