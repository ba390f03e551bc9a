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

/**
 * The fields of a text of this kind; undefined where the text or its MAC is not exactly what `FieldWriter.sealed`
 * returned. Constant time.
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

  /** Body and MAC as base64url without padding. */
  sealed(secret: Uint8Array): string {
    const body = Buffer.concat(this.parts);
    return Buffer.concat([body, macOf(secret, body)]).toString('base64url');
  }
}

/** Reads what `FieldWriter` wrote. The MAC was verified, so a malformed body is a bug and throws. */
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
