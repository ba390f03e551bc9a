/** What HTTP and sockets need of the tenants, the configuration and the log. Tests put stand-ins in their place. */
import type { Clock } from '../../protocol/clock.js';
import type { ErrorName } from '../../protocol/errors.js';
import type { Shape } from '../../protocol/shape.js';
import type { Meter } from '../../protocol/meter.js';
import type { RequireSig } from '../../protocol/item-codec.js';
import type { Arena, Change } from '../tenant/change.js';
import type { DeviceStanding, SocketPort } from '../tenant/ports.js';
import type { Session } from '../tenant/session.js';
import type { AddressLimits } from './address-limits.js';
import type { TokenVerifier } from './tokens.js';

/** One tenant's actor, as requests and sockets see it (src/server/tenant/actor.ts). */
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

/** Tenants loaded on this instance (src/server/tenant/registry.ts). */
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

/** A page of the reference, ready to be sent (src/docs/site.ts). */
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
export interface Log {
  isLevelEnabled(level: string): boolean;
  debug(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** Of the configuration, what is used here; described in src/server/config/config.ts. */
export interface HttpConfig {
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

/** What requests are taken through their steps with; the handlers of a route table may need more (see `Handler`). */
export interface HttpParts {
  /** Left out: those of src/server/http/limits.ts. */
  readonly bounds?: LoadBounds;
  readonly config: HttpConfig;
  readonly clock: Clock;
  readonly log: Log;
  /** Counts refusals. */
  readonly meter?: Meter;
  /** The tenant that a host name (lower case, no port) belongs to. In single mode always the one. */
  readonly resolveTenant: TenantOfHost;
  /** In multi mode only: the host names that are no tenant's. */
  readonly hosting?: { isApex(host: string): boolean };
  readonly tenants: Tenants;
  readonly tokens: Pick<TokenVerifier, 'verify'>;
  /** Notes that a device was here; cheap, it writes rarely. */
  readonly devices: { touch(tenantId: string, device: DeviceStanding): void };
  /** Signed URLs of the local blob store. Left out: blobs are in a store that clients reach by themselves. */
  readonly transfers?: SignedTransfers | undefined;
  readonly addressLimits: Pick<AddressLimits, 'take'>;
}

/** Uploads and downloads by signed URL through this server (src/server/blobs/transfers.ts). */
export interface SignedTransfers {
  /** The tenant that the URL was signed for. Throws `url_invalid`. */
  check(ctx: SignedCall): { readonly tenantId: string };
  /** Whether a transfer of the tenant's has to make room for others at this pace, bytes a second. */
  tooSlow(tenantId: string, bytesPerS: number): boolean;
}

/** A request whose signature stands in its URL, as it came. */
export interface SignedCall {
  readonly method: 'GET' | 'PUT';
  /** `<tenant>/<ref>`, not decoded. */
  readonly path: string;
  readonly exp: string | null | undefined;
  readonly sig: string | null | undefined;
  /** Of a PUT. */
  readonly size?: number;
  readonly contentType?: string;
}
