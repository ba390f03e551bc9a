/**
 * Proof that an instance has sent a notification: whoever may connect to the database can send one in any name. HMAC
 * (RFC 2104) with SHA-256 over the channel and the notice, of which 16 bytes are kept. It is the notice's first field, so
 * that an older instance, which ignores fields that it does not know, reads the notice as well.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

const MAC_BYTES = 16;

export class NoticeMac {
  /** `key`: 32 bytes, the same for all instances (`notice_key`). */
  constructor(private readonly key: Uint8Array) {}

  /** The payload of a notice, which is the JSON of an object with at least one field. `MAC_CHARS` longer than that. */
  signed(channel: string, notice: string): string {
    const rest = notice.slice(1);
    return this.head(channel, rest) + rest;
  }

  /** Whether an instance has sent this on this channel. It may have been sent again by somebody else. */
  isSigned(channel: string, payload: string): boolean {
    const head = Buffer.from(payload.slice(0, MAC_CHARS + 1));
    const expected = Buffer.from(this.head(channel, payload.slice(MAC_CHARS + 1)));
    return head.length === expected.length && timingSafeEqual(head, expected);
  }

  private head(channel: string, rest: string): string {
    const mac = createHmac('sha256', this.key).update(`${channel}\n${rest}`).digest().subarray(0, MAC_BYTES);
    return `{"mac":"${mac.toString('base64url')}",`;
  }
}

/** Characters by which a payload is longer than its notice. */
export const MAC_CHARS = '"mac":"",'.length + Math.ceil((MAC_BYTES * 4) / 3);
