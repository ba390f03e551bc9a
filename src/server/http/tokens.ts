/** Bearer tokens. */
import type { Clock } from '../../protocol/clock.js';
import { FieldReader, FieldWriter, KIND, openText, sealText } from './signed.js';

/** What a token says. Whether the device still stands at this epoch is for the tenant to say. */
export interface TokenClaims {
  readonly tenantId: string;
  readonly deviceId: string;
  /** The device's token epoch when it was issued: revoking raises the device's, and older tokens die. */
  readonly epoch: number;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** A token with a MAC over all of its claims. Only URL-safe characters. */
export function issueToken(secret: Uint8Array, claims: TokenClaims): string {
  const body = new FieldWriter(KIND.token)
    .text(claims.tenantId)
    .text(claims.deviceId)
    .number(claims.epoch)
    .number(claims.expiresAt)
    .done();
  return sealText(secret, body);
}

/** A token and when it ends, milliseconds since 1970. */
export interface IssuedToken {
  readonly token: string;
  readonly expiresAt: number;
}

/** Issues tokens of one lifetime (TOKEN_TTL_DAYS) for devices that have proven themselves. */
export type TokenIssuer = (device: Pick<TokenClaims, 'tenantId' | 'deviceId' | 'epoch'>) => IssuedToken;

/** @param options.ttlMs lifetime in milliseconds. */
export function tokenIssuer(options: { secret: Uint8Array; ttlMs: number; clock: Clock }): TokenIssuer {
  return (device) => {
    const expiresAt = Math.floor(options.clock.now() + options.ttlMs);
    return { token: issueToken(options.secret, { ...device, expiresAt }), expiresAt };
  };
}

/** What a token says, or why it says nothing. */
export type Verified =
  { readonly ok: true; readonly claims: TokenClaims } | { readonly ok: false; readonly reason: 'invalid' | 'expired' };

const INVALID: Verified = { ok: false, reason: 'invalid' };
const EXPIRED: Verified = { ok: false, reason: 'expired' };

/** Checks tokens. A MAC takes 11 us: callers that come again are remembered (src/server/http/authenticate.ts). */
export class TokenVerifier {
  constructor(private readonly secret: Uint8Array) {}

  /** `expired` is said only of a token whose MAC holds. */
  verify(token: string, now: number): Verified {
    const body = openText(this.secret, token);
    if (body === undefined || FieldReader.kindOf(body) !== KIND.token) return INVALID;
    const fields = new FieldReader(body);
    const claims = {
      tenantId: fields.text(),
      deviceId: fields.text(),
      epoch: fields.number(),
      expiresAt: fields.number(),
    };
    return claims.expiresAt > now ? { ok: true, claims } : EXPIRED;
  }
}
