/** Bearer tokens. */
import { createHash } from 'node:crypto';
import type { Clock } from '../../protocol/clock.js';
import { FieldReader, FieldWriter, KIND, openText, sealText } from './signed.js';

/**
 * The SHA-256 of bytes, or of a text's UTF-8. Secrets are stored and compared by it, so timing does not reveal them.
 */
export const sha256 = (value: string | Uint8Array): Buffer => createHash('sha256').update(value).digest();

/** The claims of a token. The tenant decides whether the epoch is still valid. */
export interface TokenClaims {
  readonly tenantId: string;
  readonly deviceId: string;
  /** The token epoch of the device at issue: a revocation raises it, which invalidates older tokens. */
  readonly epoch: number;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** A token with a MAC over all of its claims, in URL-safe characters. */
export function issueToken(secret: Uint8Array, claims: TokenClaims): string {
  const body = new FieldWriter(KIND.token)
    .text(claims.tenantId)
    .text(claims.deviceId)
    .number(claims.epoch)
    .number(claims.expiresAt)
    .done();
  return sealText(secret, body);
}

/** A token and when it expires, milliseconds since 1970. */
interface IssuedToken {
  readonly token: string;
  readonly expiresAt: number;
}

/** Issues tokens of one lifetime (TOKEN_TTL_DAYS) to authenticated devices. */
export type TokenIssuer = (device: Pick<TokenClaims, 'tenantId' | 'deviceId' | 'epoch'>) => IssuedToken;

/** @param options.ttlMs lifetime in milliseconds. */
export function tokenIssuer(options: { secret: Uint8Array; ttlMs: number; clock: Clock }): TokenIssuer {
  return (device) => {
    const expiresAt = Math.floor(options.clock.now() + options.ttlMs);
    return { token: issueToken(options.secret, { ...device, expiresAt }), expiresAt };
  };
}

/** The claims of a token, or why it is refused. */
type Verified =
  { readonly ok: true; readonly claims: TokenClaims } | { readonly ok: false; readonly reason: 'invalid' | 'expired' };

const INVALID: Verified = { ok: false, reason: 'invalid' };
const EXPIRED: Verified = { ok: false, reason: 'expired' };

/** Verifies tokens. A MAC takes 11 us, so src/server/http/authenticate.ts caches callers. */
export class TokenVerifier {
  constructor(private readonly secret: Uint8Array) {}

  /** The reason is `expired` only where the MAC is valid. */
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
