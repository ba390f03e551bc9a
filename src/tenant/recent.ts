/** The last changes of one tenant, kept so that a short absence never reaches the database. */
import type { Shape } from '../protocol/shape.js';
import { frameText } from '../protocol/item-codec.js';
import type { Item } from '../protocol/item.js';
import type { LogRow } from './ports.js';
import type { ChangeRing, Place } from './ring.js';

/** Bounds per tenant; the ring has one over all tenants of the process. */
export const RECENT_ROWS = 256;
export const RECENT_BYTES = 256 * 1024;

/** A change and its frame in each shape, built when the first socket of that shape needs it. */
export class FramedChange implements LogRow {
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
}

/**
 * Holds every change above `floor` up to the delivered version. A version that is missing in between was
 * superseded before it could be read, so whoever is at or above the floor can be served from here alone.
 */
export class Recent {
  /** The changes that are kept: their versions, rising; where they lie; and their bytes there. */
  private readonly versions: number[] = [];
  private readonly places: Place[] = [];
  private readonly sizes: number[] = [];
  private held = 0;

  constructor(
    private floorVersion: number,
    private readonly ring: ChangeRing,
  ) {}

  /** Bytes that the changes take. */
  get bytes(): number {
    this.dropLost();
    return this.held;
  }

  /** True when everything above this cursor is here. */
  covers(cursor: number): boolean {
    this.dropLost();
    return cursor >= this.floorVersion;
  }

  /** Adds delivered changes in version order and drops the oldest beyond the bounds. */
  add(frames: readonly FramedChange[]): void {
    for (const frame of frames) {
      const kept = this.ring.add(frame);
      if (kept === undefined) {
        this.forget(frame.version);
        continue;
      }
      this.versions.push(frame.version);
      this.places.push(kept.place);
      this.sizes.push(kept.bytes);
      this.held += kept.bytes;
    }
    let drop = 0;
    for (let left = this.held; this.versions.length - drop > RECENT_ROWS || left > RECENT_BYTES; drop++)
      left -= this.sizes[drop] ?? left;
    this.drop(drop);
  }

  /**
   * Changes above the cursor in version order, each item once in its latest state (contract 11). Their bytes are views,
   * good until the next change is added.
   */
  above(cursor: number): FramedChange[] {
    this.dropLost();
    const latest: FramedChange[] = [];
    const seen = new Set<string>();
    for (let i = this.versions.length - 1; i >= 0 && (this.versions[i] ?? 0) > cursor; i--) {
      const frame = new FramedChange(this.ring.read(this.places[i] ?? -1));
      if (seen.has(frame.item.id)) continue;
      seen.add(frame.item.id);
      latest.push(frame);
    }
    return latest.reverse();
  }

  /** Gives the memory back; the next reader below `delivered` goes to the database. */
  forget(delivered: number): void {
    this.drop(this.versions.length);
    this.floorVersion = delivered;
  }

  /** Changes of other tenants took the place of these: the oldest go first. */
  private dropLost(): void {
    let lost = 0;
    for (const place of this.places) {
      if (this.ring.has(place)) break;
      lost++;
    }
    this.drop(lost);
  }

  private drop(count: number): void {
    if (count === 0) return;
    for (const size of this.sizes.splice(0, count)) this.held -= size;
    for (const place of this.places.splice(0, count)) this.ring.drop(place);
    this.floorVersion = this.versions.splice(0, count).at(-1) ?? this.floorVersion;
  }
}
