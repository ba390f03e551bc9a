/** The frames of one tenant's last changes in one shape: pushed from here, and kept so that a short absence never reaches the database. */
import type { Shape } from '../protocol/shape.js';
import type { ItemRow } from './change.js';
import { frameBytes } from './codec.js';
import { JsonWriter } from './json-writer.js';
import type { FrameRing, Place } from './ring.js';

/** Bounds per tenant and shape; the ring has one over all tenants of the process. */
export const RECENT_ROWS = 256;
export const RECENT_BYTES = 256 * 1024;

/** Where a frame is written before the ring has it. */
const written = new JsonWriter();

/** A change as a socket is told of it. */
export interface Frame {
  readonly id: string;
  readonly version: number;
  /** Whose change it was. */
  readonly changedBy: string | null;
  /** When its request came to this instance, ms of `performance.now()`; Infinity where it was made elsewhere. */
  readonly since: number;
  readonly place: Place;
  readonly length: number;
  /** A later frame of the same item is there: looked up for whoever asks first after it came. */
  superseded: boolean;
}

/**
 * Holds every change above `floor` up to the delivered version. A version that is missing in between was
 * superseded before it could be read, so whoever is at or above the floor can be served from here alone.
 */
export class Recent {
  private frames: Frame[] = [];
  private held = 0;
  /** The version up to which it is known which frames are superseded. */
  private judged = 0;

  constructor(
    private readonly shape: Shape,
    private floor: number,
    private readonly ring: FrameRing,
  ) {}

  /** Bytes of frames that are held. */
  get bytes(): number {
    this.dropLost();
    return this.held;
  }

  /** True when everything above this cursor is here. */
  covers(cursor: number): boolean {
    this.dropLost();
    return cursor >= this.floor;
  }

  /** Adds delivered changes in version order. They stay, whatever the bounds, until `trim`. */
  add(rows: readonly ItemRow[]): readonly Frame[] {
    const added: Frame[] = [];
    for (const row of rows) {
      written.restart();
      const frame = frameBytes(written, this.shape, row);
      const { id, version, changedBy, since } = row;
      const kept = {
        id,
        version,
        changedBy,
        since,
        place: this.ring.add(frame),
        length: frame.length,
        superseded: false,
      };
      this.held += kept.length;
      this.frames.push(kept);
      added.push(kept);
    }
    return added;
  }

  /** Drops the oldest beyond the bounds. */
  trim(): void {
    let drop = 0;
    for (let left = this.held; this.frames.length - drop > RECENT_ROWS || left > RECENT_BYTES; drop++)
      left -= this.frames[drop]?.length ?? left;
    this.drop(drop);
  }

  /** Changes above the cursor in version order, each item once in its latest state (WS-15). */
  above(cursor: number): Frame[] {
    this.dropLost();
    this.judge();
    const { frames } = this;
    let from = frames.length;
    while (from > 0 && (frames[from - 1]?.version ?? 0) > cursor) from--;
    const latest: Frame[] = [];
    for (; from < frames.length; from++) {
      const frame = frames[from];
      if (frame?.superseded === false) latest.push(frame);
    }
    return latest;
  }

  /** Says of each frame whether a later one supersedes it; once for all that ask before the next is added. */
  private judge(): void {
    const newest = this.frames.at(-1)?.version ?? 0;
    if (this.judged === newest) return;
    this.judged = newest;
    const seen = new Set<string>();
    for (let i = this.frames.length - 1; i >= 0; i--) {
      const frame = this.frames[i];
      if (frame === undefined) break;
      frame.superseded = seen.has(frame.id);
      if (!frame.superseded) seen.add(frame.id);
    }
  }

  /** The bytes of a frame: a view, good until the next change of any tenant. Undefined where other tenants' took its place. */
  view({ place, length }: Frame): Uint8Array | undefined {
    return this.ring.has(place) ? this.ring.view(place, length) : undefined;
  }

  /** Gives up all; the next reader below `delivered` goes to the database. */
  forget(delivered: number): void {
    this.frames = [];
    this.held = 0;
    this.floor = delivered;
  }

  /** Changes of other tenants took the place of these: the oldest go first. */
  private dropLost(): void {
    let lost = 0;
    for (const { place } of this.frames) {
      if (this.ring.has(place)) break;
      lost++;
    }
    this.drop(lost);
  }

  private drop(count: number): void {
    if (count === 0) return;
    for (const { length, version } of this.frames.splice(0, count)) {
      this.held -= length;
      this.floor = version;
    }
  }
}
