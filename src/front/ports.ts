/** What the front asks of the inner rings. The classes there fit these shapes; tests put stand-ins in their place. */
import type { Clock } from '../protocol/clock.js';
import type { ErrorName, Shape } from '../protocol/errors.js';
import type { RequireSig } from '../protocol/item-codec.js';
import type { ItemWrite, Summary } from '../protocol/item.js';
import type * as bodies from '../protocol/requests.js';
import type { DeviceStanding, ItemLog, SocketPort } from '../tenant/ports.js';
import type { Session } from '../tenant/session.js';

/** A change that is stored: the item's version and when, ms. */
export interface Stored {
  readonly id: string;
  readonly version: number;
  readonly serverTs: number;
}

/** One tenant's actor, as requests and sockets see it (src/tenant/actor.ts). */
export interface TenantActor {
  readonly tenantId: string;
  /** active, past_due, suspended, inactive or pending (contract 12). */
  readonly state: string;
  device(id: string): DeviceStanding | undefined;
  /** Sockets that the device holds on this instance. */
  socketsOf(deviceId: string): number;
  write(write: ItemWrite, deviceId: string): Promise<Stored>;
  remove(id: string, sig: Uint8Array | null, deviceId: string): Promise<Stored>;
  move(
    move: { readonly id: string; readonly binId: string; readonly version: number; readonly sig: Uint8Array },
    deviceId: string,
  ): Promise<Stored>;
  /** Checks the device and registers the socket in one step. */
  open(socket: SocketPort): Session | ErrorName;
  hello(session: Session, frame: { since: number; epoch: string | null; acks: boolean }): void;
  drained(session: Session): void;
  closed(session: Session): void;
}

/** Tenants loaded on this instance (src/tenant/registry.ts). */
export interface Tenants {
  /** The tenant's actor when it is loaded already. */
  peek(tenantId: string): TenantActor | undefined;
  /** Loads it; undefined when there is no such tenant. Throws `unavailable`. */
  get(tenantId: string): Promise<TenantActor | undefined>;
  /** Reads the tenant's devices anew. */
  changed(tenantId: string): Promise<void>;
}

/** What a bearer token says (contract 4). `expiresAt` in ms. */
export interface Claims {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly epoch: number;
  readonly expiresAt: number;
}

export interface TokenVerifier {
  /** `remember`: the token will come again with every request. */
  verify(
    token: string,
    now: number,
    remember: boolean,
  ): { readonly ok: true; readonly claims: Claims } | { readonly ok: false; readonly reason: 'invalid' | 'expired' };
}

type Answer = Promise<object>;

export interface SocketTickets {
  issueSocket(right: { tenantId: string; deviceId: string; epoch: number; tokenExpiresAt: number }): object;
  redeemSocket(
    ticket: string,
    tenantId: string,
  ): Promise<{ readonly deviceId: string; readonly epoch: number; readonly tokenExpiresAt: number } | undefined>;
}

export interface BootstrapService {
  claim(tenantId: string, body: bodies.BootstrapBody): Answer;
  /** Wipes the devices and closes the tenant's sockets. */
  restart(tenantId: string): Answer;
  claimed(tenantId: string): Promise<boolean>;
}

export interface DeviceService {
  list(tenantId: string, currentDeviceId: string): Answer;
  patch(tenantId: string, id: string, body: bodies.DevicePatchBody): Answer;
  /** `by` is the device that asks. */
  revoke(tenantId: string, id: string, by: string): Answer;
  /** Notes that the device was here; cheap, it writes rarely. */
  touch(tenantId: string, device: DeviceStanding): void;
}

export interface ReauthService {
  challenge(tenantId: string, body: bodies.ReauthChallengeBody): Answer;
  answer(tenantId: string, body: bodies.ReauthBody): Answer;
}

export interface RecoveryService {
  challenge(tenantId: string): Answer;
  /** `dialled`: the host name that the request came to. */
  recover(tenantId: string, body: bodies.RecoverBody, dialled: string): Answer;
}

export interface PasswordService {
  exists(tenantId: string): Answer;
  set(tenantId: string, body: bodies.PasswordSetBody, by: string): Answer;
  verify(tenantId: string, body: bodies.PasswordVerifyBody): Answer;
}

export interface PairingService {
  init(tenantId: string, deviceId: string, body: bodies.PairInitBody): Answer;
  fetchEpk(tenantId: string, body: bodies.PairFetchEpkBody): Answer;
  /** Waits up to 25 s for the existing device, or until the caller is gone. */
  fetchNpk(tenantId: string, body: bodies.PairFetchNpkBody, gone: AbortSignal): Promise<object | 'pending'>;
  requests(tenantId: string, deviceId: string): Answer;
  wrap(tenantId: string, deviceId: string, body: bodies.PairWrapBody): Answer;
}

export interface BinService {
  list(tenantId: string): Answer;
  create(tenantId: string, body: bodies.BinCreateBody): Answer;
  patch(tenantId: string, id: string, body: bodies.BinPatchBody): Answer;
  remove(tenantId: string, id: string, body: bodies.BinDeleteBody): Answer;
}

/** Limits per client address and purpose, across instances. Rejects with `rate_limited`. */
export interface AddressLimiter {
  take(purpose: AddressPurpose, address: string): Promise<void>;
}

export type AddressPurpose = 'pair' | 'password' | 'challenge';

export interface PresenceService {
  /** A socket of the device was opened or closed here. */
  touched(tenantId: string, deviceId: string): void;
  online(tenantId: string): Promise<ReadonlySet<string>>;
}

/** A device and its tenant's figures, read in one snapshot (contract 9b, `/me`). */
export interface Identity {
  readonly device: { readonly id: string; readonly name: string; readonly glyph: string; readonly pairedAt: number };
  readonly summary: Summary;
  readonly storageUsedBytes: number;
  /** Devices that are not revoked. */
  readonly deviceCount: number;
}

export interface IdentityReader {
  /** Undefined when the device is gone. Throws `unavailable`. */
  identity(tenantId: string, deviceId: string): Promise<Identity | undefined>;
}

/** Of pino's logger, what is used here. */
export interface FrontLog {
  isLevelEnabled(level: string): boolean;
  debug(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** Of the configuration, what is used here; described in src/config.ts. */
export interface FrontConfig {
  readonly host: string;
  readonly port: number;
  readonly tenantMode: string;
  readonly region: string;
  readonly wireShape: Shape;
  readonly requireSig: RequireSig;
  readonly adminToken: string | null;
  readonly corsOrigins: readonly string[];
  readonly trustedProxies: readonly string[];
  readonly storageCapBytes: number;
  readonly rateReadPerS: number;
  readonly rateWritePerS: number;
  readonly wsPingIntervalMs: number;
  readonly wsPongGraceMs: number;
}

export interface FrontOptions {
  readonly config: FrontConfig;
  readonly clock: Clock;
  readonly log: FrontLog;
  /** The server's version string. */
  readonly version: string;
  /** The tenant that a host name (lower case, no port) belongs to. In single mode always the one. */
  readonly resolveTenant: (host: string) => string | undefined;
  /** The epoch of the database as it is known now. */
  readonly epoch: () => string;
  readonly tenants: Tenants;
  readonly items: ItemLog;
  readonly tokens: TokenVerifier;
  readonly tickets: SocketTickets;
  readonly bootstrap: BootstrapService;
  readonly devices: DeviceService;
  readonly reauth: ReauthService;
  readonly recovery: RecoveryService;
  readonly passwords: PasswordService;
  readonly pairing: PairingService;
  readonly bins: BinService;
  readonly addressLimits: AddressLimiter;
  readonly presence: PresenceService;
  readonly identities: IdentityReader;
}
