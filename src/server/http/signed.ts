/**
 * Short byte strings under the server's MAC, as URL-safe text: tokens and tickets.
 * Each kind begins with its own byte, so that none is accepted as another under the same secret.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { TOKEN_TEXT_MAX } from '../../protocol/limits.js';

/** The first byte of the signed bytes: kind and version in one. */
export const KIND = { token: 1, socketTicket: 2, passwordTicket: 3 } as const;

const MAC_BYTES = 32;

const macOf = (secret: Uint8Array, body: Uint8Array): Buffer => createHmac('sha256', secret).update(body).digest();

/** Body and MAC as base64url without padding. */
export function sealText(secret: Uint8Array, body: Uint8Array): string {
  return Buffer.concat([body, macOf(secret, body)]).toString('base64url');
}

/** The body, or undefined where the text or its MAC is not exactly what `sealText` returned. Constant time. */
export function openText(secret: Uint8Array, text: string): Buffer | undefined {
  if (text.length > TOKEN_TEXT_MAX) return undefined;
  const bytes = Buffer.from(text, 'base64url');
  // The decoder skips invalid characters and ignores unused bits of the last one: only the canonical text is accepted.
  if (bytes.length <= MAC_BYTES || bytes.toString('base64url') !== text) return undefined;
  const body = bytes.subarray(0, bytes.length - MAC_BYTES);
  return timingSafeEqual(macOf(secret, body), bytes.subarray(bytes.length - MAC_BYTES)) ? body : undefined;
}

/** Writes the fields of a body one after the other. */
export class FieldWriter {
  private readonly parts: Buffer[];

  constructor(kind: number) {
    this.parts = [Buffer.of(kind)];
  }

  /** Text of at most 255 UTF-8 bytes, preceded by its length. */
  text(value: string): this {
    return this.bytes(Buffer.from(value, 'utf8'));
  }

  /** At most 255 bytes, preceded by their number. */
  bytes(value: Uint8Array): this {
    if (value.length > 255) throw new RangeError(`field of ${value.length} bytes`);
    this.parts.push(Buffer.of(value.length), Buffer.from(value));
    return this;
  }

  /** A non-negative safe integer, 8 bytes. */
  number(value: number): this {
    if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`not a count: ${value}`);
    const out = Buffer.alloc(8);
    out.writeBigUInt64BE(BigInt(value));
    this.parts.push(out);
    return this;
  }

  done(): Buffer {
    return Buffer.concat(this.parts);
  }
}

/** Reads what `FieldWriter` wrote. The MAC was verified, so a malformed body is a bug and throws. */
export class FieldReader {
  private at = 1;

  constructor(private readonly body: Buffer) {}

  /** The kind of a body. */
  static kindOf(body: Buffer): number {
    return body[0] ?? 0;
  }

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
