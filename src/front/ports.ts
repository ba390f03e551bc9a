/** What the front asks of the inner rings. The classes there fit these shapes; tests put stand-ins in their place. */
import type { Identity } from '../account/ports.js';
import type { RatePurpose } from '../account/rates.js';
import type { Verified } from '../account/tokens.js';
import type { Returned } from '../billing/checkout.js';
import type { UploadWish } from '../blobs/blobs.js';
import type { ObjectName } from '../blobs/ports.js';
import type { SignedCall } from '../blobs/signed-url.js';
import type { BlobFile, UploadBody } from '../blobs/transfers.js';
import type { Clock } from '../protocol/clock.js';
import type { ErrorName } from '../protocol/errors.js';
import type { Shape } from '../protocol/shape.js';
import type { Meter } from '../protocol/meter.js';
import type { RequireSig } from '../protocol/item-codec.js';
import type * as replies from '../protocol/replies.js';
import type * as bodies from '../protocol/requests.js';
import type { Arena, Change } from '../tenant/change.js';
import type { DeviceStanding, ItemLog, SocketPort } from '../tenant/ports.js';
import type { Session } from '../tenant/session.js';

/** One tenant's actor, as requests and sockets see it (src/tenant/actor.ts). */
export interface TenantActor {
  readonly tenantId: string;
  /** active, past_due, suspended, inactive or pending (reference, HTTP, States of a tenant). */
  readonly state: string;
  device(id: string): DeviceStanding | undefined;
  /** It was compared with the database a moment ago. */
  isCurrent(now: number): boolean;
  /** Sockets that the device holds on this instance. */
  socketsOf(deviceId: string): number;
  /** Where the bytes of its changes are to be put. */
  readonly arena: Arena;
  /** Has a device's change stored; its reply is called exactly once. */
  submit(change: Change, deviceId: string): void;
  /** Checks the device and registers the socket in one step. */
  open(socket: SocketPort): Session | ErrorName;
  hello(session: Session, frame: { since: number; epoch: string | null; acks: boolean }): void;
  drained(session: Session): void;
  closed(session: Session): void;
}

/** Tenants loaded on this instance (src/tenant/registry.ts). */
export interface Tenants {
  /** Those that are loaded. One may judge only while it `isCurrent`. */
  readonly actors: ReadonlyMap<string, TenantActor>;
  /** Loads or compares it; undefined when there is no such tenant. Throws `unavailable`. */
  get(tenantId: string): Promise<TenantActor | undefined>;
  /** Reads the tenant's devices anew. */
  changed(tenantId: string): Promise<void>;
}

/** The tenant of a host name, undefined where there is none; or the one tenant, whatever the host. */
export type TenantOfHost = string | ((host: string) => string | undefined);

/** Checks bearer tokens (src/account/tokens.ts). */
export interface TokenVerifier {
  verify(token: string, now: number): Verified;
}

/** Bytes of replies are raw here. */
type Raw = Uint8Array;

/** Tickets that open one socket each (src/account/tickets.ts; reference, HTTP, Tokens). */
export interface SocketTickets {
  issueSocket(right: {
    tenantId: string;
    deviceId: string;
    epoch: number;
    tokenExpiresAt: number;
  }): replies.TicketReply;
  redeemSocket(
    ticket: string,
    tenantId: string,
  ): Promise<{ readonly deviceId: string; readonly epoch: number; readonly tokenExpiresAt: number } | undefined>;
}

/** Claiming the server (src/account/bootstrap.ts). */
export interface BootstrapService {
  claim(tenantId: string, body: bodies.BootstrapBody): Promise<replies.Claimed<Raw>>;
  /** Wipes the devices and closes the tenant's sockets. */
  restart(tenantId: string): Promise<replies.Ok>;
  claimed(tenantId: string): Promise<boolean>;
}

/** The tenant's devices (src/account/devices.ts). */
export interface DeviceService {
  list(tenantId: string, currentDeviceId: string): Promise<replies.DeviceList<Raw>>;
  /** `by` is the device that asks, here and below. */
  patch(tenantId: string, id: string, body: bodies.DevicePatchBody, by: string): Promise<replies.KnownDeviceReply<Raw>>;
  revoke(tenantId: string, id: string, by: string): Promise<replies.KnownDeviceReply<Raw>>;
  /** Notes that the device was here; cheap, it writes rarely. */
  touch(tenantId: string, device: DeviceStanding): void;
}

/** A new token for an old device (src/account/reauth.ts). */
export interface ReauthService {
  challenge(tenantId: string, body: bodies.ReauthChallengeBody): Promise<replies.ReauthChallengeReply<Raw>>;
  answer(tenantId: string, body: bodies.ReauthBody): Promise<replies.TokenReply>;
}

/** A new device by the phrase alone (src/account/recovery.ts). */
export interface RecoveryService {
  challenge(tenantId: string): Promise<replies.RecoveryChallengeReply<Raw>>;
  /** `dialled`: the host name that the request came to. */
  recover(tenantId: string, body: bodies.RecoverBody, dialled: string): Promise<replies.Recovered<Raw>>;
}

/** The account password (src/account/password.ts). */
export interface PasswordService {
  exists(tenantId: string): Promise<replies.PasswordExists>;
  set(tenantId: string, body: bodies.PasswordSetBody, by: string): Promise<replies.Ok>;
  remove(tenantId: string, body: bodies.PasswordRemoveBody, by: string): Promise<replies.Ok>;
  verify(tenantId: string, body: bodies.PasswordVerifyBody): Promise<replies.PasswordTicketReply>;
}

/** Pairing (src/pairing/pairing.ts). */
export interface PairingService {
  init(tenantId: string, deviceId: string, body: bodies.PairInitBody): Promise<replies.PairStarted>;
  fetchEpk(tenantId: string, body: bodies.PairFetchEpkBody): Promise<replies.PairEpk<Raw>>;
  /** Waits up to 25 s for the existing device, or until the caller is gone. */
  fetchNpk(
    tenantId: string,
    body: bodies.PairFetchNpkBody,
    gone: AbortSignal,
  ): Promise<replies.Paired<Raw> | 'pending'>;
  requests(tenantId: string, deviceId: string): Promise<replies.PairRequestList<Raw>>;
  wrap(tenantId: string, deviceId: string, body: bodies.PairWrapBody): Promise<replies.Ok>;
}

/** Tenants by host name, in multi mode (src/hosting). Hosts are names without port. */
export interface HostingService {
  isApex(host: string): boolean;
  /**
   * Shall there be a certificate for it? A promise for a name that is new: it rejects with `rate_limited` after too many
   * of them, and with `unavailable`.
   */
  certifies(host: string): boolean | Promise<boolean>;
  /** `address` is what limits per address count the caller by. */
  signUp(body: bodies.SignupBody, address: string): Promise<replies.SignedUp>;
}

/** Payments of a hosted service (src/billing; reference, Billing). */
export interface BillingService {
  /** A webhook's body as it came, and its signature. Throws `webhook_invalid`. */
  webhook(body: Uint8Array, signature: string): Promise<replies.Received>;
  portal(tenantId: string): Promise<replies.Portal>;
  /** What the page after checkout shows to somebody with this token. */
  returned(returnToken: string): Promise<Returned>;
  /** Where somebody pays who left the checkout. Throws `not_found`. */
  resume(returnToken: string): Promise<string>;
}

/** Bins (src/bins/bins.ts). */
export interface BinService {
  list(tenantId: string): Promise<replies.BinList<Raw>>;
  /** `by` is the device that asks, here and below. */
  create(tenantId: string, body: bodies.BinCreateBody, by: string): Promise<replies.BinReply<Raw>>;
  patch(tenantId: string, id: string, body: bodies.BinPatchBody, by: string): Promise<replies.BinReply<Raw>>;
  remove(tenantId: string, id: string, body: bodies.BinDeleteBody, by: string): Promise<replies.Ok>;
}

/** Blobs as devices ask for them (src/blobs/blobs.ts). */
export interface BlobService {
  uploadUrl(tenantId: string, wish: UploadWish): Promise<replies.BlobUpload>;
  downloadUrl(tenantId: string, ref: string, origin: string): Promise<replies.BlobDownload>;
  /** True: the blob is there, and an item may name it. Throws `storage_unavailable`, `unavailable`. */
  settle(tenantId: string, ref: string): Promise<boolean>;
}

/** Uploads and downloads through this server (src/blobs/transfers.ts). */
export interface TransferService {
  /** Throws `url_invalid`. */
  check(call: SignedCall): ObjectName;
  upload(name: ObjectName, size: number, source: UploadBody): Promise<void>;
  download(name: ObjectName): Promise<BlobFile>;
  /** Whether a transfer of the tenant's has to make room for others at this pace, bytes a second. */
  tooSlow(tenantId: string, bytesPerS: number): boolean;
}

/** Limits per purpose and caller, across instances (src/account/rates.ts). */
export interface AddressLimiter {
  /** `key`: a client's address, or `tenant/device` where the limit is a device's. Rejects with `rate_limited`. */
  take(purpose: RatePurpose, key: string): Promise<void>;
}

/** Which devices hold a socket, on any instance (src/postgres/presence.ts). */
export interface PresenceService {
  /** A socket of the device was opened or closed here. */
  touched(tenantId: string, deviceId: string): void;
  online(tenantId: string): Promise<ReadonlySet<string>>;
}

/** Reads a device and its tenant's figures in one snapshot (src/postgres/stores/identity.ts). */
export interface IdentityReader {
  /** Undefined when the device is gone. Throws `unavailable`. */
  identity(tenantId: string, deviceId: string): Promise<Identity | undefined>;
}

/** A page of the reference, ready to be sent (src/reference/site.ts). */
export interface DocsPage {
  /** Content type. */
  readonly type: string;
  readonly text: string;
  /** The same as bytes, shared by all replies. */
  readonly bytes: Buffer;
  /** Entity tag with its quotes. */
  readonly etag: string;
}

/** The pages under `/docs`. */
export interface Docs {
  /** By its name in the path, `''` for `/docs` itself; undefined: no such page. */
  page(name: string): DocsPage | undefined;
}

/** Of pino's logger, what is used here. */
export interface FrontLog {
  isLevelEnabled(level: string): boolean;
  debug(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** Of the configuration, what is used here; described in src/config/config.ts. */
export interface FrontConfig {
  readonly host: string;
  readonly port: number;
  readonly tenantMode: 'single' | 'multi';
  /** Without a trailing slash. */
  readonly publicUrl: string | null;
  readonly domain: string | null;
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

/** Calls under way at once, bytes of bodies that are held for them, and of replies that were not read yet. */
export interface LoadBound {
  readonly calls: number;
  readonly bodies: number;
  readonly replies: number;
}

/** What the process holds for devices, and for everybody else. */
export interface LoadBounds {
  readonly devices: LoadBound;
  readonly strangers: LoadBound;
}

/** All that the front is made of. */
export interface FrontOptions {
  /** Left out: those of src/front/limits.ts. */
  readonly bounds?: LoadBounds;
  readonly config: FrontConfig;
  /** Other processes of this service listen on the same port. Default: nobody may. */
  readonly sharePort?: boolean;
  readonly clock: Clock;
  readonly log: FrontLog;
  /** Told of refusals. */
  readonly meter?: Meter;
  /** The server's version string. */
  readonly version: string;
  /** The tenant that a host name (lower case, no port) belongs to. In single mode always the one. */
  readonly resolveTenant: TenantOfHost;
  /** In multi mode only. */
  readonly hosting?: HostingService;
  /** In multi mode with billing only. */
  readonly billing?: BillingService;
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
  readonly blobs: BlobService;
  /** Left out: blobs are in a store that clients reach by themselves. */
  readonly transfers?: TransferService | undefined;
  readonly addressLimits: AddressLimiter;
  readonly presence: PresenceService;
  readonly identities: IdentityReader;
  /** Left out: there are no pages. */
  readonly docs?: Docs;
}
