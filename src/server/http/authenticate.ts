/** Authentication (reference, HTTP, Tokens): the tenant by host, then the token, its device, and the tenant's state. */
import { delay } from '../../protocol/clock.js';
import { equalsSecret, type TokenClaims } from './tokens.js';
import { ServiceError } from '../../protocol/errors.js';
import { TOKEN_TEXT_MAX } from '../../protocol/limits.js';
import type { DeviceState } from '../tenant/ports.js';
import { stateRefusal } from '../tenant/change.js';
import type { AddressLimits } from './address-limits.js';
import type { HttpParts, TenantActor } from './ports.js';
import { hostName } from './query.js';

/** An unknown device causes its tenant's devices to be read again at most this often, ms. */
const REFRESH_MS = 250;

/** The bearer token of an Authorization header; undefined when there is none. */
export function bearerOf(authorization: string): string | undefined {
  return /^bearer +(\S+)$/i.exec(authorization)?.[1];
}

/** Rejects with `forbidden` unless it is the operator's token, and as `AddressLimits.guess`. */
export async function checkAdmin(
  { authorization, address }: { readonly authorization: string; readonly address: string },
  adminToken: string | null,
  limits: Pick<AddressLimits, 'guess'>,
): Promise<void> {
  if (adminToken === null) throw new ServiceError('forbidden');
  const token = bearerOf(authorization);
  if (token === undefined) throw new ServiceError('no_token');
  const isRight = equalsSecret(token, adminToken);
  await limits.guess(address, isRight);
  if (!isRight) throw new ServiceError('forbidden');
}

/** Tenant states in which an endpoint works: any, those that can read, those that can write. */
export type Needs = 'any' | 'read' | 'write';

/** Throws `payment_required` or `tenant_suspended` where a tenant in this state is not served. */
export function checkState(state: string, needs: Needs): void {
  const refusal = needs === 'any' ? undefined : stateRefusal(state, needs);
  if (refusal !== undefined) throw new ServiceError(refusal);
}

/** The owner that a device's requests are charged to: device ids are unique within a tenant only. */
export const ownerOf = ({ tenantId, deviceId }: TokenClaims): string => `${tenantId}/${deviceId}`;

/** An authenticated device, its tenant's actor, and the claims of its token. */
export interface Caller {
  readonly owner: string;
  readonly claims: TokenClaims;
  readonly actor: TenantActor;
  readonly device: DeviceState;
}

/**
 * When a tenant that is not loaded is read: at once, since a device waits for its answer, or together with others after
 * a short delay: for sockets, many of which connect at the same time, and for unauthenticated clients, who could
 * request any number of tenants.
 */
type Urgency = 'at once' | 'together';

/** Length of `Bearer`, a space and the longest token. */
const HEADER_MAX = 7 + TOKEN_TEXT_MAX;
/** Most cached callers of a tenant, a few hundred bytes each. */
const KNOWN_MAX = 256;

/** Resolves hosts to tenants, and tokens to devices and actors. */
export class Authenticator {
  /** Refreshes that have not begun: requests that arrive before they begin share them. */
  private readonly refreshes = new Map<string, Promise<void>>();
  private readonly resting = new Set<string>();
  /** Callers by Authorization header, for as long as their tenant's actor is loaded. */
  private readonly known = new WeakMap<TenantActor, Map<string, Caller>>();

  constructor(
    private readonly options: Pick<HttpParts, 'tenants' | 'verifyToken' | 'clock' | 'resolveTenant' | 'hosting'>,
  ) {}

  /** The tenant of a Host header. Throws `tenant_not_found`. */
  tenantOf(host: string): string {
    const { resolveTenant } = this.options;
    const tenantId = typeof resolveTenant === 'string' ? resolveTenant : resolveTenant(hostName(host));
    if (tenantId === undefined) throw new ServiceError('tenant_not_found');
    return tenantId;
  }

  /** Throws `tenant_not_found` for any host but the apex of a hosted service. */
  checkApex(host: string): void {
    if (this.options.hosting?.isApex(hostName(host)) !== true) throw new ServiceError('tenant_not_found');
  }

  /** The cached caller of this header. The token is not verified again while neither it nor its device changed. */
  recall(authorization: string, tenantId: string): Caller | undefined {
    const actor = this.options.tenants.actors.get(tenantId);
    const known = actor && this.known.get(actor)?.get(authorization);
    return known !== undefined && this.holds(known) ? known : undefined;
  }

  /** Whether a caller is still valid: the token has not expired, and the device is unchanged since it was verified. */
  holds({ claims, actor, device }: Caller): boolean {
    const now = this.options.clock.now();
    return claims.expiresAt > now && actor.isCurrent(now) && actor.device(device.id) === device;
  }

  /** Caches a caller whose token was verified; forged tokens neither fill the cache nor evict from it. */
  remember(authorization: string, caller: Caller): void {
    // Not for a longer header: padding one token with spaces gives any number of headers, which would evict others.
    if (authorization.length > HEADER_MAX) return;
    let known = this.known.get(caller.actor);
    if (known === undefined) this.known.set(caller.actor, (known = new Map<string, Caller>()));
    if (known.size >= KNOWN_MAX) known.clear();
    known.set(authorization, caller);
  }

  /** The claims of a token that is valid for this tenant. Throws `no_token`, `bad_token`, `expired_token`. */
  claimsOf(token: string | undefined, tenantId: string): TokenClaims {
    if (token === undefined || token === '') throw new ServiceError('no_token');
    const claims = this.options.verifyToken(token, this.options.clock.now());
    if (typeof claims === 'string') throw new ServiceError(claims);
    if (claims.tenantId !== tenantId) throw new ServiceError('bad_token');
    return claims;
  }

  /** The tenant's actor, without a promise when it is loaded and current, which is the usual case. */
  actorOf(tenantId: string, urgency: Urgency = 'at once'): TenantActor | Promise<TenantActor> {
    return this.currentActor(tenantId) ?? this.load(tenantId, urgency);
  }

  private currentActor(tenantId: string): TenantActor | undefined {
    const actor = this.options.tenants.actors.get(tenantId);
    return actor?.isCurrent(this.options.clock.now()) === true ? actor : undefined;
  }

  private async load(tenantId: string, urgency: Urgency): Promise<TenantActor> {
    const { tenants } = this.options;
    const loading = tenants.get(tenantId);
    if (urgency === 'at once' && !tenants.actors.has(tenantId)) tenants.hurry();
    const actor = await loading;
    if (actor === undefined) throw new ServiceError('tenant_not_found');
    return actor;
  }

  /** As `callerOf` where that needs no promise; else undefined. */
  knownCallerOf(claims: TokenClaims): Caller | undefined {
    const actor = this.currentActor(claims.tenantId);
    return actor && this.judge(actor, claims);
  }

  /** The device that a token or ticket names. Throws `bad_token`, `device_revoked`. */
  callerOf(claims: TokenClaims, urgency?: Urgency): Caller | Promise<Caller> {
    return this.knownCallerOf(claims) ?? this.lookUp(claims, urgency);
  }

  /** Undefined when the token is newer than the actor's data: another instance may already have newer data. */
  private judge(actor: TenantActor, claims: TokenClaims): Caller | undefined {
    const device = actor.device(claims.deviceId);
    if (device === undefined || claims.epoch > device.tokenEpoch) return undefined;
    if (device.revoked || claims.epoch < device.tokenEpoch) throw new ServiceError('device_revoked');
    return { owner: ownerOf(claims), claims, actor, device };
  }

  private async lookUp(claims: TokenClaims, urgency?: Urgency): Promise<Caller> {
    const loaded = this.judge(await this.actorOf(claims.tenantId, urgency), claims);
    if (loaded !== undefined) return loaded;
    await this.refresh(claims.tenantId);
    const caller = this.judge(await this.actorOf(claims.tenantId, urgency), claims);
    if (caller === undefined) throw new ServiceError('bad_token');
    return caller;
  }

  /** Reads the tenant's devices again, in a read that begins after this call, at most one per REFRESH_MS. */
  private refresh(tenantId: string): Promise<void> {
    const waiting = this.refreshes.get(tenantId);
    if (waiting !== undefined) return waiting;
    if (!this.resting.has(tenantId)) return this.readAnew(tenantId);
    const later = delay(this.options.clock, REFRESH_MS).then(() => {
      this.refreshes.delete(tenantId);
      return this.readAnew(tenantId);
    });
    this.refreshes.set(tenantId, later);
    return later;
  }

  private readAnew(tenantId: string): Promise<void> {
    this.resting.add(tenantId);
    this.options.clock.setTimer(REFRESH_MS, () => this.resting.delete(tenantId));
    return this.options.tenants.changed(tenantId);
  }
}
