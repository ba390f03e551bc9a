/**
 * Short byte strings under the server's MAC, as URL-safe text: bearer tokens, and the tickets that the subjects issue. Each
 * kind begins with its own byte, so that none is accepted as another under the same secret.
 */
import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { Clock } from '../../protocol/clock.js';
import { TOKEN_TEXT_MAX } from '../../protocol/limits.js';
import type { TokenReply } from '../../protocol/replies.js';

/** The SHA-256 of bytes, or of a text's UTF-8. Secrets are stored and compared as hashes: timing reveals nothing. */
export const sha256 = (value: string | Uint8Array): Buffer => createHash('sha256').update(value).digest();

/** Compares the digests of two texts: the time depends on neither content nor length. */
export const equalsSecret = (sent: string, secret: string): boolean => timingSafeEqual(sha256(sent), sha256(secret));

/** The first byte of the signed bytes: kind and version in one. */
export const KIND = { token: 1, socketTicket: 2, passwordTicket: 3 } as const;

const MAC_BYTES = 32;

const macOf = (secret: Uint8Array, body: Uint8Array): Buffer => createHmac('sha256', secret).update(body).digest();

/**
 * The fields of a text of this kind; undefined where the text or its MAC is not exactly what `sealFields` returned.
 * Constant time.
 */
export function openFields(secret: Uint8Array, kind: number, text: string): FieldReader | undefined {
  if (text.length > TOKEN_TEXT_MAX) return undefined;
  const bytes = Buffer.from(text, 'base64url');
  // The decoder skips invalid characters and ignores unused bits of the last one: only the canonical text is accepted.
  if (bytes.length <= MAC_BYTES || bytes.toString('base64url') !== text) return undefined;
  const body = bytes.subarray(0, bytes.length - MAC_BYTES);
  const authentic = timingSafeEqual(macOf(secret, body), bytes.subarray(bytes.length - MAC_BYTES));
  return authentic && body[0] === kind ? new FieldReader(body) : undefined;
}

type Field = string | Uint8Array | number;

/** Texts, as UTF-8, and bytes are preceded by their length, at most 255. A number, a safe integer from 0, has 8 bytes. */
function packed(value: Field): Buffer {
  if (typeof value === 'number') {
    if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`not a count: ${value}`);
    const out = Buffer.alloc(8);
    out.writeBigUInt64BE(BigInt(value));
    return out;
  }
  const bytes = Buffer.from(value);
  if (bytes.length > 255) throw new RangeError(`field of ${bytes.length} bytes`);
  return Buffer.concat([Buffer.of(bytes.length), bytes]);
}

/** The fields and their MAC, as base64url without padding. */
export function sealFields(secret: Uint8Array, kind: number, fields: readonly Field[]): string {
  const body = Buffer.concat([Buffer.of(kind), ...fields.map(packed)]);
  return Buffer.concat([body, macOf(secret, body)]).toString('base64url');
}

/** Reads the fields in their order. The MAC was verified, so a malformed body is a bug and throws. */
class FieldReader {
  /** After the kind. */
  private at = 1;

  constructor(private readonly body: Buffer) {}

  text(): string {
    return this.bytes().toString('utf8');
  }

  bytes(): Buffer {
    const length = this.body.readUInt8(this.at);
    const end = this.at + 1 + length;
    if (end > this.body.length) throw new RangeError('a field is cut short');
    const value = this.body.subarray(this.at + 1, end);
    this.at = end;
    return value;
  }

  number(): number {
    const value = Number(this.body.readBigUInt64BE(this.at));
    this.at += 8;
    return value;
  }
}

/** The claims of a token. The tenant decides whether the epoch is still valid. */
export interface TokenClaims {
  readonly tenantId: string;
  readonly deviceId: string;
  /** The token epoch of the device at issue: a revocation raises it, which invalidates older tokens. */
  readonly epoch: number;
  readonly expiresAt: number;
}

/** A token with a MAC over all of its claims, in URL-safe characters. */
export const issueToken = (secret: Uint8Array, { tenantId, deviceId, epoch, expiresAt }: TokenClaims): string =>
  sealFields(secret, KIND.token, [tenantId, deviceId, epoch, expiresAt]);

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

/**
 * The claims of a token, or why it is refused; `expired_token` only where the MAC is valid. A MAC takes 11 us, so
 * src/server/http/authenticate.ts caches callers.
 */
export function verifyToken(
  secret: Uint8Array,
  token: string,
  now: number,
): TokenClaims | 'bad_token' | 'expired_token' {
  const fields = openFields(secret, KIND.token, token);
  if (fields === undefined) return 'bad_token';
  const [tenantId, deviceId] = [fields.text(), fields.text()];
  const claims = { tenantId, deviceId, epoch: fields.number(), expiresAt: fields.number() };
  return claims.expiresAt > now ? claims : 'expired_token';
}
