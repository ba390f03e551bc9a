/** Who is calling (reference, HTTP, Tokens): tenant by host, then the token, the device it names, and the tenant's state. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { TokenClaims } from './tokens.js';
import { ServiceError } from '../../protocol/errors.js';
import { TOKEN_TEXT_MAX } from '../../protocol/limits.js';
import type { DeviceStanding } from '../tenant/ports.js';
import type { HttpParts, TenantActor } from './ports.js';
import { hostName } from './query.js';

/** A tenant's devices are read anew for an unknown device at most so often, ms. */
const REFRESH_MS = 250;

/** The bearer token of an Authorization header; undefined when there is none. */
export function bearerOf(authorization: string): string | undefined {
  return /^bearer +(\S+)$/i.exec(authorization)?.[1];
}

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

/** Lets the operator through. Compares digests, so neither content nor length shows in the time it takes. */
export function checkAdmin(authorization: string, adminToken: string | null): void {
  if (adminToken === null) throw new ServiceError('forbidden');
  const token = bearerOf(authorization);
  if (token === undefined) throw new ServiceError('no_token');
  if (!timingSafeEqual(digest(token), digest(adminToken))) throw new ServiceError('forbidden');
}

/** Tenant states that an endpoint takes: any, those that can read, those that can write. */
export type Needs = 'any' | 'read' | 'write';

/** Whether a tenant in this state is served (reference, HTTP, States of a tenant). */
export function checkState(state: string, needs: Needs): void {
  if (needs === 'any' || state === 'active' || state === 'past_due') return;
  if (state !== 'suspended') throw new ServiceError('payment_required');
  if (needs === 'write') throw new ServiceError('tenant_suspended');
}

type AuthenticatorOptions = Pick<HttpParts, 'tenants' | 'tokens' | 'clock' | 'resolveTenant' | 'hosting'>;

/** Whose shares a device's calls are charged to, in a spelling that no other tenant's device has. */
export const ownerOf = ({ tenantId, deviceId }: TokenClaims): string => `${tenantId}/${deviceId}`;

/** A device that may act, its tenant's actor, and the token that says so. */
export interface Caller {
  readonly claims: TokenClaims;
  readonly actor: TenantActor;
  readonly device: DeviceStanding;
}

/** A caller who will come again. */
export interface KnownCaller extends Caller {
  /** Whose shares he uses (`RequestContext.owner`). */
  readonly owner: string;
}

/** `Bearer`, a blank and a token. */
const HEADER_MAX = 7 + TOKEN_TEXT_MAX;
/** Callers that are remembered of a tenant, a few hundred bytes each. */
const KNOWN_MAX = 256;

/** Finds out who calls: the tenant of a host, what a token says, and the device and actor it stands for. */
export class Authenticator {
  /** Refreshes that have not begun: whoever comes before they begin may share them. */
  private readonly refreshes = new Map<string, Promise<void>>();
  private readonly resting = new Set<string>();
  /** Callers by their Authorization header; they go with their tenant's actor. */
  private readonly known = new WeakMap<TenantActor, Map<string, KnownCaller>>();

  constructor(private readonly options: AuthenticatorOptions) {}

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

  /** Who called with this header before. He is known without another look at his token while nothing about him changed. */
  recall(authorization: string, tenantId: string): KnownCaller | undefined {
    const actor = this.options.tenants.actors.get(tenantId);
    const known = actor && this.known.get(actor)?.get(authorization);
    return known !== undefined && this.holds(known) ? known : undefined;
  }

  /** Whether he may still act: his token has not ended, and his device is what it was when he was let in. */
  holds({ claims, actor, device }: Caller): boolean {
    const now = this.options.clock.now();
    return claims.expiresAt > now && actor.isCurrent(now) && actor.device(device.id) === device;
  }

  /** Only whose token was proven is remembered: forged ones neither fill the memory nor drive anybody out of it. */
  remember(authorization: string, owner: string, caller: Caller): KnownCaller {
    const added = { ...caller, owner };
    // Not under a longer header: blanks make any number of those from one token, and would drive its siblings out.
    if (authorization.length > HEADER_MAX) return added;
    let known = this.known.get(caller.actor);
    if (known === undefined) this.known.set(caller.actor, (known = new Map<string, KnownCaller>()));
    if (known.size >= KNOWN_MAX) known.clear();
    known.set(authorization, added);
    return added;
  }

  /** What a token says, if it is this tenant's and alive. Throws `no_token`, `bad_token`, `expired_token`. */
  claimsOf(token: string | undefined, tenantId: string): TokenClaims {
    if (token === undefined || token === '') throw new ServiceError('no_token');
    if (token.length > TOKEN_TEXT_MAX) throw new ServiceError('bad_token');
    const verdict = this.options.tokens.verify(token, this.options.clock.now());
    if (!verdict.ok) throw new ServiceError(verdict.reason === 'expired' ? 'expired_token' : 'bad_token');
    if (verdict.claims.tenantId !== tenantId) throw new ServiceError('bad_token');
    return verdict.claims;
  }

  /** The tenant's actor: at once when it is loaded and was compared a moment ago, which is the usual case. */
  actorOf(tenantId: string): TenantActor | Promise<TenantActor> {
    const actor = this.options.tenants.actors.get(tenantId);
    return actor?.isCurrent(this.options.clock.now()) === true ? actor : this.load(tenantId);
  }

  private async load(tenantId: string): Promise<TenantActor> {
    const actor = await this.options.tenants.get(tenantId);
    if (actor === undefined) throw new ServiceError('tenant_not_found');
    return actor;
  }

  /** As `callerOf`, where nothing has to be waited for; else undefined. */
  knownCallerOf(claims: TokenClaims): Caller | undefined {
    const actor = this.options.tenants.actors.get(claims.tenantId);
    return actor?.isCurrent(this.options.clock.now()) === true ? this.judge(actor, claims) : undefined;
  }

  /** The device that a token or ticket names, if it may act. Throws `bad_token`, `device_revoked`. */
  callerOf(claims: TokenClaims): Caller | Promise<Caller> {
    const actor = this.actorOf(claims.tenantId);
    if (actor instanceof Promise) return actor.then((loaded) => this.judge(loaded, claims) ?? this.refreshed(claims));
    return this.judge(actor, claims) ?? this.refreshed(claims);
  }

  /** Undefined when the actor does not know what the token's signer knew: another instance may be ahead of it. */
  private judge(actor: TenantActor, claims: TokenClaims): Caller | undefined {
    const device = actor.device(claims.deviceId);
    if (device === undefined || claims.epoch > device.tokenEpoch) return undefined;
    if (device.revoked || claims.epoch < device.tokenEpoch) throw new ServiceError('device_revoked');
    return { claims, actor, device };
  }

  private async refreshed(claims: TokenClaims): Promise<Caller> {
    await this.refresh(claims.tenantId);
    const caller = this.judge(await this.actorOf(claims.tenantId), claims);
    if (caller === undefined) throw new ServiceError('bad_token');
    return caller;
  }

  /** Reads the tenant's devices anew, not before this call and not more often than the database should bear. */
  private refresh(tenantId: string): Promise<void> {
    const waiting = this.refreshes.get(tenantId);
    if (waiting !== undefined) return waiting;
    if (!this.resting.has(tenantId)) return this.readAnew(tenantId);
    const later = new Promise<void>((resolve) => {
      this.options.clock.setTimer(REFRESH_MS, resolve);
    }).then(() => {
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
