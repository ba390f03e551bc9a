/** Bearer tokens. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { Clock } from '../../protocol/clock.js';
import type { TokenReply } from '../../protocol/replies.js';
import { FieldWriter, KIND, openFields } from './signed.js';

/** The SHA-256 of bytes, or of a text's UTF-8. Secrets are stored and compared as hashes: timing reveals nothing. */
export const sha256 = (value: string | Uint8Array): Buffer => createHash('sha256').update(value).digest();

/** Compares the digests of two texts: the time depends on neither content nor length. */
export const equalsSecret = (sent: string, secret: string): boolean => timingSafeEqual(sha256(sent), sha256(secret));

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
  return new FieldWriter(KIND.token)
    .text(claims.tenantId)
    .text(claims.deviceId)
    .number(claims.epoch)
    .number(claims.expiresAt)
    .sealed(secret);
}

/** Issues tokens of one lifetime (TOKEN_TTL_DAYS) to authenticated devices. */
export type TokenIssuer = (device: Omit<TokenClaims, 'expiresAt'>) => TokenReply;

/** @param options.ttlMs lifetime in milliseconds. */
export function tokenIssuer(options: { secret: Uint8Array; ttlMs: number; clock: Clock }): TokenIssuer {
  return (device) => {
    const expiresAt = Math.floor(options.clock.now() + options.ttlMs);
    return { token: issueToken(options.secret, { ...device, expiresAt }), expiresAt };
  };
}

/** A ticket for one socket, in place of its token; its MAC and tenant are valid. `expiresAt`: of that token. */
export interface SocketTicket extends Omit<TokenClaims, 'tenantId'> {
  /** Uses it up: true for the first caller on any instance. Throws `unavailable`. */
  readonly spend: () => Promise<boolean>;
}

/** Verifies tokens. A MAC takes 11 us, so src/server/http/authenticate.ts caches callers. */
export class TokenVerifier {
  constructor(private readonly secret: Uint8Array) {}

  /** The claims of a token, or why it is refused; `expired_token` only where the MAC is valid. */
  verify(token: string, now: number): TokenClaims | 'bad_token' | 'expired_token' {
    const fields = openFields(this.secret, KIND.token, token);
    if (fields === undefined) return 'bad_token';
    const claims = {
      tenantId: fields.text(),
      deviceId: fields.text(),
      epoch: fields.number(),
      expiresAt: fields.number(),
    };
    return claims.expiresAt > now ? claims : 'expired_token';
  }
}
