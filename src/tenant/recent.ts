/** The last changes of one tenant, kept so that a short absence never reaches the database. */
import type { Shape } from '../protocol/shape.js';
import { frameText } from '../protocol/item-codec.js';
import type { Item } from '../protocol/item.js';
import { PackedItem } from './packed.js';
import type { LogRow } from './ports.js';

/** Bounds per tenant; the process has one of its own over all tenants (see `registry`). */
export const RECENT_ROWS = 256;
export const RECENT_BYTES = 256 * 1024;

/** A change and its frame in each shape, built when the first socket of that shape needs it. */
export class FramedChange {
  readonly item: Item;
  readonly changedBy: string | null;
  /** When its request came to this instance, ms of `performance.now()`; Infinity for any other. */
  readonly since: number;
  private a: string | undefined;
  private b: string | undefined;

  constructor(row: LogRow) {
    this.item = row.item;
    this.changedBy = row.changedBy;
    this.since = row.since ?? Infinity;
  }

  get version(): number {
    return this.item.version;
  }

  text(shape: Shape): string {
    return shape === 'a' ? (this.a ??= frameText('a', this.item)) : (this.b ??= frameText('b', this.item));
  }

  /** About what the frame holds in memory, bytes. Raw payload and one text of it. */
  get weight(): number {
    const { item } = this;
    if (item.deletedAt !== null) return 256;
    if (item instanceof PackedItem) return 512 + item.packed.bytes.length * 3;
    const keys = (item.inline?.keys.size ?? 0) + (item.blob?.keys.size ?? 0);
    return 512 + (item.inline?.ct.length ?? 0) * 3 + keys * 400;
  }
}

/**
 * Holds every change above `floor` up to the delivered version. A version that is missing in between was
 * superseded before it could be read, so whoever is at or above the floor can be served from here alone.
 */
export class Recent {
  private frames: FramedChange[] = [];
  private weight = 0;

  constructor(private floorVersion: number) {}

  get bytes(): number {
    return this.weight;
  }

  /** True when everything above this cursor is here. */
  covers(cursor: number): boolean {
    return cursor >= this.floorVersion;
  }

  /** Adds delivered changes in version order and drops the oldest beyond the bounds. */
  add(frames: readonly FramedChange[]): void {
    for (const frame of frames) {
      this.frames.push(frame);
      this.weight += frame.weight;
    }
    let drop = 0;
    while (drop < this.frames.length && (this.frames.length - drop > RECENT_ROWS || this.weight > RECENT_BYTES)) {
      const oldest = this.frames[drop++];
      if (oldest === undefined) break;
      this.weight -= oldest.weight;
      this.floorVersion = oldest.version;
    }
    if (drop > 0) this.frames.splice(0, drop);
  }

  /** Changes above the cursor in version order, each item once in its latest state (contract 11). */
  above(cursor: number): FramedChange[] {
    const latest: FramedChange[] = [];
    const seen = new Set<string>();
    for (let i = this.frames.length - 1; i >= 0; i--) {
      const frame = this.frames[i];
      if (frame === undefined || frame.version <= cursor) break;
      if (seen.has(frame.item.id)) continue;
      seen.add(frame.item.id);
      latest.push(frame);
    }
    return latest.reverse();
  }

  /** Gives the memory back; the next reader below `delivered` goes to the database. */
  forget(delivered: number): void {
    this.frames = [];
    this.weight = 0;
    this.floorVersion = delivered;
  }
}
