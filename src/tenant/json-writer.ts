/** JSON text as bytes, put together where it is sent from: as strings it would be most of what a replay leaves to the collector. */

/** Pieces of memory for texts; one that is larger gets a piece of its own. */
const PIECE_BYTES = 64 * 1024;
/** Up to so many bytes a table is faster than the native encoder, whose string has to be written once more. */
const TABLE_MAX = 96;
/** Up to so many characters are faster written one by one than by a native call. */
const LOOP_MAX = 48;

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

/** The two characters of each 12 bits, the first in the lower byte. */
function pairsOf(letters: string): Uint16Array {
  const pairs = new Uint16Array(4_096);
  for (let n = 0; n < pairs.length; n++) pairs[n] = letters.charCodeAt(n >> 6) | (letters.charCodeAt(n & 63) << 8);
  return pairs;
}

const PAIRS = { base64: pairsOf(`${LETTERS}+/`), base64url: pairsOf(`${LETTERS}-_`) } as const;
const PADDING = '='.charCodeAt(0);

export type Alphabet = keyof typeof PAIRS;

/** Writes ASCII texts behind one another. Room for them is reserved before. */
export class JsonWriter {
  private bytes: Buffer;
  private at = 0;

  /** Keeps so many bytes for one text after the other. */
  constructor(private readonly size = PIECE_BYTES) {
    this.bytes = Buffer.allocUnsafeSlow(size);
  }

  /** All that was written may be overwritten. */
  restart(): void {
    if (this.bytes.length > this.size) this.bytes = Buffer.allocUnsafeSlow(this.size);
    this.at = 0;
  }

  /** Begins a text of at most so many bytes: `since` takes what this returns. Earlier ones stay where they are. */
  begin(room: number): number {
    if (this.bytes.length - this.at < room) {
      this.bytes = Buffer.allocUnsafeSlow(Math.max(this.size, room));
      this.at = 0;
    }
    return this.at;
  }

  /** The bytes of the text that was begun there: a view, good until `restart`. */
  since(from: number): Buffer {
    return this.bytes.subarray(from, this.at);
  }

  text(value: string): void {
    const { bytes } = this;
    if (value.length > LOOP_MAX) this.at += bytes.write(value, this.at, 'latin1');
    else {
      let { at } = this;
      for (let i = 0; i < value.length; i++) bytes[at++] = value.charCodeAt(i);
      this.at = at;
    }
  }

  /** Characters as they lie there. */
  copy(from: Buffer, start: number, end: number): void {
    let { at } = this;
    for (let i = start; i < end; i++) this.bytes[at++] = from[i] ?? 0;
    this.at = at;
  }

  /** Padded under the name of `base64`, as Node does it. */
  encoded(alphabet: Alphabet, from: Buffer, { start, end }: { readonly start: number; readonly end: number }): void {
    if (end - start > TABLE_MAX) {
      this.at += this.bytes.write(from.toString(alphabet, start, end), this.at, 'latin1');
      return;
    }
    const { bytes } = this;
    const pairs = PAIRS[alphabet];
    let { at } = this;
    let i = start;
    for (; i + 2 < end; i += 3) {
      const bits = ((from[i] ?? 0) << 16) | ((from[i + 1] ?? 0) << 8) | (from[i + 2] ?? 0);
      const [one, other] = [pairs[bits >> 12] ?? 0, pairs[bits & 4_095] ?? 0];
      bytes[at] = one;
      bytes[at + 1] = one >> 8;
      bytes[at + 2] = other;
      bytes[at + 3] = other >> 8;
      at += 4;
    }
    this.at = at;
    if (i < end) this.lastOf(alphabet, from, { start: i, end });
  }

  /** One or two bytes that are left over. */
  private lastOf(alphabet: Alphabet, from: Buffer, { start, end }: { start: number; end: number }): void {
    const { bytes } = this;
    const pairs = PAIRS[alphabet];
    const two = end - start === 2;
    const bits = ((from[start] ?? 0) << 16) | (two ? (from[start + 1] ?? 0) << 8 : 0);
    const one = pairs[bits >> 12] ?? 0;
    bytes[this.at++] = one;
    bytes[this.at++] = one >> 8;
    if (two) bytes[this.at++] = pairs[bits & 4_095] ?? 0;
    if (alphabet === 'base64url') return;
    bytes[this.at++] = PADDING;
    if (!two) bytes[this.at++] = PADDING;
  }
}
