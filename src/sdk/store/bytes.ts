/** Numbers, texts and bytes as records hold them. Pure. */
import { text } from '../../protocol/bytes.js';
import { storeError } from './error.js';

const utf8 = new TextDecoder('utf-8', { fatal: true });

/** Writes a record from front to back. */
export class RecordWriter {
  private bytes = new Uint8Array(512);
  private at = 0;

  byte(value: number): this {
    this.room(1);
    this.bytes[this.at++] = value;
    return this;
  }

  /** An integer from 0 to 2^53-1: seven bits a byte, lowest first, the highest bit says that more follow. */
  int(value: number): this {
    if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`${value} cannot be stored as a whole number`);
    this.room(8);
    let rest = value;
    for (; rest >= 128; rest = Math.floor(rest / 128)) this.bytes[this.at++] = (rest % 128) + 128;
    this.bytes[this.at++] = rest;
    return this;
  }

  /** Length, then the bytes. */
  blob(value: Uint8Array): this {
    this.int(value.length);
    this.room(value.length);
    this.bytes.set(value, this.at);
    this.at += value.length;
    return this;
  }

  text(value: string): this {
    return this.blob(text(value));
  }

  /** The record with its checksum behind it, which also covers `seed`. */
  sealed(seed: number): Uint8Array {
    const sum = crc32(this.bytes.subarray(0, this.at), seed);
    this.room(4);
    new DataView(this.bytes.buffer).setUint32(this.at, sum);
    return this.bytes.slice(0, this.at + 4);
  }

  private room(more: number): void {
    if (this.at + more <= this.bytes.length) return;
    const wider = new Uint8Array(Math.max(this.bytes.length * 2, this.at + more));
    wider.set(this.bytes);
    this.bytes = wider;
  }
}

/** Reads a record from front to back. Throws `StoreError` `damaged` where it ends too early or holds what cannot be. */
export class RecordReader {
  private at = 0;
  private readonly end: number;

  /** Checks the checksum first. */
  constructor(
    private readonly bytes: Uint8Array,
    seed: number,
  ) {
    this.end = bytes.length - 4;
    if (this.end < 0 || crc32(bytes.subarray(0, this.end), seed) !== checksumOf(bytes)) {
      throw storeError('damaged', 'a record does not fit its checksum');
    }
  }

  byte(): number {
    if (this.at >= this.end) throw storeError('damaged', 'a record ends too early');
    return this.bytes[this.at++] ?? 0;
  }

  int(): number {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const next = this.byte();
      value += (next % 128) * factor;
      if (!Number.isSafeInteger(value)) throw storeError('damaged', 'a number is too large');
      if (next < 128) return value;
    }
  }

  blob(): Uint8Array {
    const length = this.int();
    if (length > this.end - this.at) throw storeError('damaged', 'a record ends too early');
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  text(): string {
    try {
      return utf8.decode(this.blob());
    } catch (error) {
      throw error instanceof TypeError ? storeError('damaged', 'a text is not UTF-8') : error;
    }
  }

  /** Nothing may follow what was read. */
  done(): void {
    if (this.at !== this.end) throw storeError('damaged', 'a record goes on too long');
  }
}

/** The checksum that a record carries. */
export const checksumOf = (record: Uint8Array): number =>
  new DataView(record.buffer, record.byteOffset, record.byteLength).getUint32(record.length - 4);

/** A CRC-32 with this polynomial, bits reversed; `seed`: the sum so far. */
export function crcWith(polynomial: number): (bytes: Uint8Array, seed?: number) => number {
  const table = Uint32Array.from({ length: 256 }, (_, byte) => {
    let sum = byte;
    for (let bit = 0; bit < 8; bit++) sum = sum & 1 ? (sum >>> 1) ^ polynomial : sum >>> 1;
    return sum;
  });
  return (bytes, seed = 0) => {
    let sum = ~seed;
    for (let at = 0; at < bytes.length; at++) {
      sum = (table[(sum ^ (bytes[at] ?? 0)) & 255] ?? 0) ^ (sum >>> 8);
    }
    return ~sum >>> 0;
  };
}

/** CRC-32 (ISO-HDLC, as in zip): against accidents, not against anybody. */
export const crc32 = crcWith(0xedb88320);
