/** The parts of the tenants, the configuration and the log that HTTP and sockets need. Tests replace them. */
import type { Clock } from '../../protocol/clock.js';
import type { RequireSig } from '../../protocol/request-fields.js';
import type { Meter } from '../../protocol/meter.js';
import type { Shape } from '../../protocol/shape.js';
import type { Actor } from '../tenant/actor.js';
import type { DeviceState } from '../tenant/ports.js';
import type { TenantRegistry } from '../tenant/registry.js';
import type { AddressLimits } from './address-limits.js';
import type { LoadBounds } from './limits.js';
import type { Query } from './query.js';
import type { SocketTicket, verifyToken } from './tokens.js';

/** One tenant's actor, as requests and sockets see it. */
export type TenantActor = Pick<
  Actor,
  | ('tenantId' | 'state' | 'arena' | 'device' | 'isCurrent' | 'socketsOf' | 'sessionCount')
  | ('submit' | 'open' | 'hello' | 'drained' | 'closed')
>;

/** Tenants loaded on this instance (src/server/tenant/registry.ts). */
interface Tenants extends Pick<TenantRegistry, 'hurry' | 'changed'> {
  /** Actors in memory. The state of one may be used only while it `isCurrent`. */
  readonly actors: ReadonlyMap<string, TenantActor>;
  /** Loads the actor, or compares it with the database; undefined for an unknown tenant. Throws `unavailable`. */
  get(tenantId: string): Promise<TenantActor | undefined>;
}

/** A file of the web app or of the reference, ready to be sent; its bytes are shared by all replies. */
export interface WebFile {
  readonly type: string;
  /** Hash of its bytes, without quotes: the beginning of its entity tags. */
  readonly hash: string;
  readonly cache: string;
  readonly bytes: Buffer;
  /** Absent: compressing gains nothing. */
  readonly compressed?: Readonly<Record<'br' | 'gzip', Buffer>>;
}

/** A page of the reference, by the name in its path, `''` for `/docs` itself; undefined: no such page. */
export type Docs = (name: string) => WebFile | undefined;

/** The web app (reference, HTTP, The web app). */
export interface WebApp {
  /** By the path of its URL; `/` is the page. */
  file(path: string): WebFile | undefined;
  readonly style: string;
  /** Origin of the blob store that browsers reach directly; undefined: blobs come from this server. */
  readonly blobOrigin: string | undefined;
}

/** The part of pino's logger that is used here. */
export interface Log {
  isLevelEnabled(level: string): boolean;
  debug(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** The part of the configuration that is used here; described in src/server/config/config.ts. */
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

/** What every request needs; the handlers of a route table may need more (see `Handler`). */
export interface HttpParts {
  /** Default: the bounds of src/server/http/limits.ts. */
  readonly bounds?: LoadBounds;
  readonly config: HttpConfig;
  readonly clock: Clock;
  readonly log: Log;
  /** Absent: metrics are off. */
  readonly meter?: Meter;
  /** The tenant of a host name (lower case, no port); a string: the one tenant of single mode, whatever the host. */
  readonly resolveTenant: string | ((host: string) => string | undefined);
  /** In multi mode only: distinguishes the service's own host name from those of tenants. */
  readonly hosting?: { isApex(host: string): boolean };
  readonly tenants: Tenants;
  readonly verifyToken: (token: string, now: number) => ReturnType<typeof verifyToken>;
  /** Notes that a device was seen; cheap, since it writes rarely. */
  readonly devices: { touch(tenantId: string, device: DeviceState): void };
  /**
   * Uploads and downloads by signed URL through this server (src/server/blobs/transfers.ts). Absent where clients reach
   * the blob store directly.
   */
  readonly transfers?:
    | {
        check(request: SignedCall): { readonly tenantId: string };
        tooSlow(tenantId: string, bytesPerS: number): boolean;
        enter(tenantId: string): () => void;
      }
    | undefined;
  readonly addressLimits: Pick<AddressLimits, 'guess' | 'take'>;
}

/** What sockets need in addition. */
export interface SocketParts extends HttpParts {
  /** A socket of the device was opened or closed here. */
  readonly presence: { touched(tenantId: string, deviceId: string): void };
  /** Tickets that open one socket each (reference, HTTP, Tokens). */
  readonly tickets: {
    /** Reads a ticket, without a statement; undefined if it is altered, expired or another tenant's. */
    readSocket(ticket: string, tenantId: string): SocketTicket | undefined;
  };
}

/** The parts of a request that the signature in its URL covers. */
export interface SignedCall {
  readonly method: string;
  /** `<tenant>/<ref>`, not decoded. */
  readonly id: string;
  readonly query: Query;
  readonly contentLength: number;
  readonly contentType: string;
}
