/** Stamps, records and percentiles of both Node drivers, compatible with the C drivers (see native/bench.h). */
import { writeFileSync } from 'node:fs';

const MAGIC = Buffer.from('BNCH');

/** Prefix of a ciphertext: 8 bytes of monotonic ns and 4 that distinguish it, as 16 characters of base64url. */
export function stampText(ns: bigint): string {
  const raw = Buffer.alloc(12);
  raw.writeBigUInt64LE(ns);
  MAGIC.copy(raw, 8);
  return raw.toString('base64url');
}

/** The ns of a stamp, or 0 if there is none. */
export function stampOf(text: string): bigint {
  const raw = Buffer.from(text.slice(0, 16), 'base64url');
  return raw.length === 12 && raw.subarray(8).equals(MAGIC) ? raw.readBigUInt64LE() : 0n;
}

const RECORD = 56;

interface LogEntry {
  readonly stamp: bigint;
  readonly latencyNs: number;
  readonly who: number;
  readonly version: number;
  readonly flags: number;
  readonly id: string;
}

/** A driver's log. */
export class Log {
  entries: LogEntry[] = [];

  write(file: string): void {
    const all = Buffer.alloc(this.entries.length * RECORD);
    this.entries.forEach((entry, i) => {
      const at = i * RECORD;
      all.writeBigUInt64LE(entry.stamp, at);
      all.writeUInt32LE(Math.min(entry.latencyNs, 0xffff_ffff), at + 8);
      all.writeUInt32LE(entry.who, at + 12);
      all.writeUInt32LE(entry.version, at + 16);
      all.writeUInt32LE(entry.flags, at + 20);
      all.write(entry.id, at + 24, 26, 'latin1');
    });
    writeFileSync(file, all);
  }

  /** Percentiles, us, of the records stamped in [from, to). */
  latency(from: bigint, to: bigint): Record<string, number> {
    const all = this.entries
      .filter((entry) => entry.flags === 0 && entry.stamp >= from && entry.stamp < to)
      .map((entry) => entry.latencyNs / 1000)
      .sort((a, b) => a - b);
    const at = (share: number): number => all[Math.floor(share * (all.length - 1) + 0.5)] ?? 0;
    return { p50: at(0.5), p99: at(0.99), p999: at(0.999) };
  }
}
