/** Who is calling (contract 4): tenant by host, then the token, the device it names, and the tenant's state. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { TokenClaims } from '../account/tokens.js';
import type { Clock } from '../protocol/clock.js';
import { ServiceError } from '../protocol/errors.js';
import { TOKEN_TEXT_MAX } from '../protocol/limits.js';
import type { DeviceStanding } from '../tenant/ports.js';
import type { TenantActor, Tenants, TokenVerifier } from './ports.js';
import { hostName } from './request.js';
import type { Row } from './router.js';

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

/** Whether a tenant in this state is served (contract 12). */
export function checkState(state: string, needs: Row['state']): void {
  if (needs === 'any' || state === 'active' || state === 'past_due') return;
  if (state !== 'suspended') throw new ServiceError('payment_required');
  if (needs === 'write') throw new ServiceError('tenant_suspended');
}

/** What an authenticator asks. */
export interface AuthenticatorOptions {
  readonly tenants: Tenants;
  readonly tokens: TokenVerifier;
  readonly clock: Clock;
  readonly resolveTenant: (host: string) => string | undefined;
  readonly hosting?: { isApex(host: string): boolean };
}

/** Whose shares a device's calls are charged to, in a spelling that no other tenant's device has. */
export const ownerOf = ({ tenantId, deviceId }: Pick<TokenClaims, 'tenantId' | 'deviceId'>): string =>
  `${tenantId}/${deviceId}`;

/** A device that may act, and its tenant's actor. */
export interface Caller {
  readonly actor: TenantActor;
  readonly device: DeviceStanding;
}

/** Finds out who calls: the tenant of a host, what a token says, and the device and actor it stands for. */
export class Authenticator {
  /** Refreshes that have not begun: whoever comes before they begin may share them. */
  private readonly refreshes = new Map<string, Promise<void>>();
  private readonly resting = new Set<string>();

  constructor(private readonly options: AuthenticatorOptions) {}

  /** The tenant of a Host header. Throws `tenant_not_found`. */
  tenantOf(host: string): string {
    const tenantId = this.options.resolveTenant(hostName(host));
    if (tenantId === undefined) throw new ServiceError('tenant_not_found');
    return tenantId;
  }

  /** Throws `tenant_not_found` for any host but the apex of a hosted service. */
  checkApex(host: string): void {
    if (this.options.hosting?.isApex(hostName(host)) !== true) throw new ServiceError('tenant_not_found');
  }

  /** What a token says, if it is this tenant's and alive. Throws `no_token`, `bad_token`, `expired_token`. */
  claimsOf(token: string | undefined, tenantId: string, remember = true): TokenClaims {
    if (token === undefined || token === '') throw new ServiceError('no_token');
    if (token.length > TOKEN_TEXT_MAX) throw new ServiceError('bad_token');
    const verdict = this.options.tokens.verify(token, this.options.clock.now(), remember);
    if (!verdict.ok) throw new ServiceError(verdict.reason === 'expired' ? 'expired_token' : 'bad_token');
    if (verdict.claims.tenantId !== tenantId) throw new ServiceError('bad_token');
    return verdict.claims;
  }

  /** The tenant's actor: at once when it is loaded and was compared a moment ago, which is the usual case. */
  actorOf(tenantId: string): TenantActor | Promise<TenantActor> {
    return this.options.tenants.peek(tenantId) ?? this.load(tenantId);
  }

  private async load(tenantId: string): Promise<TenantActor> {
    const actor = await this.options.tenants.get(tenantId);
    if (actor === undefined) throw new ServiceError('tenant_not_found');
    return actor;
  }

  /** As `callerOf`, where nothing has to be waited for; else undefined. */
  knownCallerOf(claims: Pick<TokenClaims, 'tenantId' | 'deviceId' | 'epoch'>): Caller | undefined {
    const actor = this.options.tenants.peek(claims.tenantId);
    return actor === undefined ? undefined : this.judge(actor, claims);
  }

  /** The device that a token or ticket names, if it may act. Throws `bad_token`, `device_revoked`. */
  callerOf(claims: Pick<TokenClaims, 'tenantId' | 'deviceId' | 'epoch'>): Caller | Promise<Caller> {
    const actor = this.actorOf(claims.tenantId);
    if (actor instanceof Promise) return actor.then((loaded) => this.judge(loaded, claims) ?? this.refreshed(claims));
    return this.judge(actor, claims) ?? this.refreshed(claims);
  }

  /** Undefined when the actor does not know what the token's signer knew: another instance may be ahead of it. */
  private judge(actor: TenantActor, claims: Pick<TokenClaims, 'deviceId' | 'epoch'>): Caller | undefined {
    const device = actor.device(claims.deviceId);
    if (device === undefined || claims.epoch > device.tokenEpoch) return undefined;
    if (device.revoked || claims.epoch < device.tokenEpoch) throw new ServiceError('device_revoked');
    return { actor, device };
  }

  private async refreshed(claims: Pick<TokenClaims, 'tenantId' | 'deviceId' | 'epoch'>): Promise<Caller> {
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
