/**
 * Proof that an instance has sent a notification: any client of the database can send one in any name. HMAC
 * (RFC 2104) with SHA-256 over the channel and what is told, of which 16 bytes are kept.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

export const MAC_BYTES = 16;

export class NoticeMac {
  /** `key`: 32 bytes, the same for all instances (`notice_key`). */
  constructor(private readonly key: Uint8Array) {}

  /**
   * The payload of a notice, which is the JSON of an object with at least one field. `MAC_CHARS` longer than that: the MAC
   * is its first field.
   */
  sign(channel: string, notice: string): string {
    const rest = notice.slice(1);
    return this.head(channel, rest) + rest;
  }

  /** Whether an instance has sent this on this channel. It may have been sent again by somebody else. */
  verify(channel: string, payload: string): boolean {
    const head = Buffer.from(payload.slice(0, MAC_CHARS + 1));
    const expected = Buffer.from(this.head(channel, payload.slice(MAC_CHARS + 1)));
    return head.length === expected.length && timingSafeEqual(head, expected);
  }

  private head(channel: string, rest: string): string {
    return `{"mac":"${this.macOf(channel, rest).toString('base64url')}",`;
  }

  /** Puts the MAC of the bytes up to `end` into the first of them. */
  signBytes(channel: string, bytes: Buffer, end: number): void {
    this.macOf(channel, bytes.subarray(MAC_BYTES, end)).copy(bytes);
  }

  /** As `verify`, of bytes that begin with their MAC. */
  verifyBytes(channel: string, bytes: Buffer): boolean {
    if (bytes.length < MAC_BYTES) return false;
    return timingSafeEqual(bytes.subarray(0, MAC_BYTES), this.macOf(channel, bytes.subarray(MAC_BYTES)));
  }

  // One key for both kinds: a signed text begins with a quote, signed bytes with the number of their format, so that
  // neither passes for the other.
  private macOf(channel: string, content: string | Buffer): Buffer {
    return createHmac('sha256', this.key).update(`${channel}\n`).update(content).digest().subarray(0, MAC_BYTES);
  }
}

/** Characters by which a payload is longer than its notice. */
export const MAC_CHARS = '"mac":"",'.length + Math.ceil((MAC_BYTES * 4) / 3);
