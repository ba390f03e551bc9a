/**
 * Proves that an instance sent a notification, since any client of the database can send one on any channel. HMAC
 * (RFC 2104) with SHA-256 over the channel and the contents, truncated to 16 bytes.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

export const MAC_BYTES = 16;

export class NoticeMac {
  /** `key`: 32 bytes, the same for all instances (`notice_key`). */
  constructor(private readonly key: Uint8Array) {}

  /**
   * The payload of a notice, given as the JSON of an object with at least one field. It is `MAC_CHARS` longer: the MAC
   * is inserted as the first field.
   */
  sign(channel: string, notice: string): string {
    const rest = notice.slice(1);
    return this.head(channel, rest) + rest;
  }

  /** Whether an instance sent this payload on this channel. Another client may have replayed it. */
  verify(channel: string, payload: string): boolean {
    const head = Buffer.from(payload.slice(0, MAC_CHARS + 1));
    const expected = Buffer.from(this.head(channel, payload.slice(MAC_CHARS + 1)));
    return head.length === expected.length && timingSafeEqual(head, expected);
  }

  private head(channel: string, rest: string): string {
    return `{"mac":"${this.macOf(channel, rest).toString('base64url')}",`;
  }

  /** Writes the MAC of the bytes from `MAC_BYTES` up to `end` into the first `MAC_BYTES`. */
  signBytes(channel: string, bytes: Buffer, end: number): void {
    this.macOf(channel, bytes.subarray(MAC_BYTES, end)).copy(bytes);
  }

  /** Like `verify`, for bytes that begin with their MAC. */
  verifyBytes(channel: string, bytes: Buffer): boolean {
    if (bytes.length < MAC_BYTES) return false;
    return timingSafeEqual(bytes.subarray(0, MAC_BYTES), this.macOf(channel, bytes.subarray(MAC_BYTES)));
  }

  // One key for both kinds: a signed text begins with a quote, signed bytes with their format number, so that neither
  // is accepted as the other.
  private macOf(channel: string, content: string | Buffer): Buffer {
    return createHmac('sha256', this.key).update(`${channel}\n`).update(content).digest().subarray(0, MAC_BYTES);
  }
}

/** Characters that the MAC adds to a notice. */
export const MAC_CHARS = '"mac":"",'.length + Math.ceil((MAC_BYTES * 4) / 3);
