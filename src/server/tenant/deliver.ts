/**
 * The one gate between stored changes and live sockets (guarantee 1). Local commits and those of other instances both
 * pass it; what was delivered before is dropped, and a gap is read before anything past it.
 *
 * The frames of each tenant's last changes are kept after they were pushed, so that replays after a short absence do
 * not reach the database: as bytes, in a few large buffers shared by all tenants of a process. As strings they would be
 * most of the garbage collector's work: each survives a collection or two and then dies (bench S1).
 */
import type { AckFrame, Piece } from '../../protocol/frames.js';
import type { Summary } from '../../protocol/item.js';
import { type ItemRow, asIs, frameBytes, JsonWriter } from './codec.js';
import type { Effect } from './messages.js';
import type { FrameBytes, LogPage } from './ports.js';
import type { Live, Replaying, Session } from './session.js';
import type { Shape } from '../../protocol/shape.js';

/** Position of a frame in the ring: number of its segment times the segment size, plus its offset. Never reused. */
export type FramePosition = number;

const SEGMENT_BYTES = 1024 * 1024;
/** Position of a frame that is not held. */
const NOWHERE: FramePosition = -1;

/** Frames in order of arrival; when full, the oldest are evicted a segment at a time. */
export class FrameRing {
  /** The newest last. */
  private readonly segments: Buffer[] = [];
  /** The number of the oldest segment. */
  private first = 0;
  private used = SEGMENT_BYTES;

  /**
   * Holds at most `bytesMax`, but at least one segment of 1 MiB. What one step delivers must fit, since it is sent
   * after the step.
   */
  constructor(private readonly bytesMax: number) {}

  /** Bytes of memory that it takes. */
  get bytes(): number {
    return this.segments.length * SEGMENT_BYTES;
  }

  /** Keeps a frame. One that is larger than a segment is evicted at once. */
  add(frame: Uint8Array): FramePosition {
    if (frame.length > SEGMENT_BYTES) return NOWHERE;
    if (this.used + frame.length > SEGMENT_BYTES) this.begin();
    const at = this.used;
    this.used += frame.length;
    this.segments.at(-1)?.set(frame, at);
    return (this.first + this.segments.length - 1) * SEGMENT_BYTES + at;
  }

  /** Whether the frame is still held. */
  has(place: FramePosition): boolean {
    return Math.floor(place / SEGMENT_BYTES) >= this.first;
  }

  /** The bytes of a frame that is held: a view, valid until the next `add`. */
  view(place: FramePosition, length: number): Buffer {
    const segment = this.segments[Math.floor(place / SEGMENT_BYTES) - this.first];
    if (segment === undefined) throw new Error('the frame is not in the ring any more');
    const at = place % SEGMENT_BYTES;
    return segment.subarray(at, at + length);
  }

  private begin(): void {
    let again: Buffer | undefined;
    while (this.segments.length > 0 && (this.segments.length + 1) * SEGMENT_BYTES > this.bytesMax) {
      again = this.segments.shift();
      this.first++;
    }
    this.segments.push(again ?? Buffer.allocUnsafeSlow(SEGMENT_BYTES));
    this.used = 0;
  }
}

/** Bounds per tenant and shape; the ring has one over all tenants of the process. */
export const RECENT_ROWS = 256;
export const RECENT_BYTES = 256 * 1024;

/** Where a frame is written before the ring has it. */
const written = new JsonWriter();

/** A change as it is pushed to sockets. */
export interface Frame {
  readonly id: string;
  readonly version: number;
  /** Whose change it was. */
  readonly changedBy: string | null;
  /** When its request came to this instance, ms of `performance.now()`; Infinity where it was made elsewhere. */
  readonly since: number;
  readonly place: FramePosition;
  readonly length: number;
  /** A later frame of the same item is held; computed by the first replay after it was added. */
  superseded: boolean;
}

/**
 * Holds every change above `floor` up to the delivered version. A version that is missing in between was
 * superseded before it could be read, so a session at or above the floor can be served from here alone.
 */
export class RecentFrames {
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
    return rows.map((row) => {
      written.restart();
      const frame = frameBytes(written, this.shape, row);
      const { id, version, changedBy, since } = row;
      const { length } = frame;
      const kept = { id, version, changedBy, since, place: this.ring.add(frame), length, superseded: false };
      this.held += length;
      this.frames.push(kept);
      return kept;
    });
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

  /** Marks superseded frames; computed once until the next frame is added. */
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

  /**
   * The bytes of a frame: a view, valid until the next change of any tenant. Undefined where it was evicted by other
   * tenants' frames.
   */
  view({ place, length }: Frame): Uint8Array | undefined {
    return this.ring.has(place) ? this.ring.view(place, length) : undefined;
  }

  /** As `view`, of each of them; null where one is not held. */
  views(frames: readonly Frame[]): readonly FrameBytes[] | null {
    if (!frames.every(({ place }) => this.ring.has(place))) return null;
    return frames.map(({ place, length }) => this.ring.view(place, length));
  }

  /** Drops all frames; sessions below `delivered` are served from the database. */
  forget(delivered: number): void {
    this.frames = [];
    this.held = 0;
    this.floor = delivered;
  }

  /** Drops the frames that other tenants' changes evicted from the ring. */
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

/** The part of a tenant's state that delivery works on: position, sessions, recent frames. */
export interface Delivery {
  /** Everything up to here went through `deliver`, exactly once and in order. */
  delivered: number;
  /** Count and version sum at `summary.version`; exact for `delivered` when the two are equal. */
  summary: Summary;
  /** The highest head hinted at. Above `delivered`, a gap is being read or about to be. */
  knownHead: number;
  gapReading: boolean;
  /** Committed here while a gap was read, in version order, and the sums at the last of them. */
  held: readonly ItemRow[];
  heldSummary: Summary | null;
  /** `knownHead` at the time when the read of the current, or last, gap began. */
  headAtGapRead: number;

  readonly sessions: Set<Session>;
  /** The frames of the last changes. In shape B only once a socket of that shape was there. */
  readonly recent: { readonly a: RecentFrames; b: RecentFrames | null };
  readonly ring: FrameRing;
}

/** The last changes in a shape. Those in shape B are kept from the first socket of that shape on. */
export function recentFramesOf({ recent, delivered, ring }: Delivery, shape: Shape): RecentFrames {
  return shape === 'a' ? recent.a : (recent.b ??= new RecentFrames('b', delivered, ring));
}

/**
 * Most bytes handed to one socket in one step. A socket that would get more goes back to replay, which waits
 * for its buffer to empty: so a burst is bounded whatever was committed at once (guarantee 4).
 */
export const BURST_BYTES = 256 * 1024;

/**
 * Notes that the history reaches at least `head`, and reads the gap when it is not delivered yet. Without a socket
 * nothing is read: the next `hello` reads the head.
 */
export function noticeHead(state: Delivery, head: number): Effect[] {
  if (head > state.knownHead) state.knownHead = head;
  if (state.knownHead <= state.delivered || state.gapReading || state.sessions.size === 0) return [];
  state.gapReading = true;
  state.headAtGapRead = state.knownHead;
  return [{ kind: 'read-gap', since: state.delivered }];
}

/**
 * Rows read from the database above `delivered`. They show each item's latest state only; what was committed here while
 * they were read is merged with them, so that none of this instance's own versions is skipped.
 */
export function onGap(state: Delivery, page: LogPage): Effect[] {
  state.gapReading = false;
  const found = page.rows.filter((row) => row.version > state.delivered);
  const last = found.at(-1)?.version ?? state.delivered;
  // With more to come, the page's sums are not those at its last row; they count only once the head is reached.
  const position = page.more ? last : Math.max(page.summary.version, state.delivered);
  const effects = deliver(state, merge(found, takeHeld(state, position)), position);
  if (!page.more && page.summary.version === state.delivered) state.summary = page.summary;
  // A head hinted at before this read is covered by it, or was wrong. A hint that is too high would repeat the read for
  // ever.
  if (!page.more && state.knownHead === state.headAtGapRead) state.knownHead = state.delivered;
  if (!page.more) effects.push(...deliverHeld(state));
  return [...effects, ...noticeHead(state, page.summary.version)];
}

/** Both in version order; a version that is in both comes once. */
function merge(found: readonly ItemRow[], held: readonly ItemRow[]): ItemRow[] {
  if (held.length === 0) return [...found];
  const byVersion = new Map([...held, ...found].map((row) => [row.version, row]));
  return [...byVersion.values()].sort((a, b) => a.version - b.version);
}

/** Removes and returns held rows up to `position`, which is above `delivered`. */
function takeHeld(state: Delivery, position: number): ItemRow[] {
  const taken = state.held.filter(({ version }) => version > state.delivered && version <= position);
  state.held = state.held.filter(({ version }) => version > position);
  return taken;
}

/** Delivers the held rows that follow without a gap; the next read finds what lies before the rest. */
function deliverHeld(state: Delivery): Effect[] {
  if (state.held.length === 0) return [];
  const held = merge(takeHeld(state, Infinity), []);
  const next = state.delivered + 1;
  const gap = held.findIndex(({ version }, n) => version !== next + n);
  const rows = gap < 0 ? held : held.slice(0, gap);
  state.held = gap < 0 ? NONE_HELD : held.slice(gap);
  const last = rows.at(-1);
  if (last === undefined) return [];
  const effects = deliver(state, rows, last.version);
  if (state.heldSummary?.version === state.delivered) state.summary = state.heldSummary;
  return effects;
}

export const NONE_HELD: readonly ItemRow[] = [];
/**
 * Most rows, and bytes, held while a gap is read: what one step delivers has to stay in the ring until it is sent. Rows
 * beyond that are read from the log.
 */
const HELD_MAX = 1_000;
const HELD_BYTES_MAX = 1024 * 1024;

/**
 * The rows of one transaction, of this instance or another, in version order. Delivered at once where they follow
 * without a gap. A gap arises from changes of another instance, or of a dropped actor with changes under way, that are
 * not known here: then the log is read, and these rows are held meanwhile. A tenant without sockets skips the gap;
 * later replays read it from the log.
 */
export function onRows(state: Delivery, given: readonly ItemRow[], summary: Summary | null): Effect[] {
  const known = (given[0]?.version ?? 0) <= state.delivered;
  const rows = known ? given.filter(({ version }) => version > state.delivered) : given;
  const last = rows.at(-1);
  if (last === undefined) return [];
  const follow = last.version === state.delivered + rows.length;
  const effects = follow ? deliver(state, rows, last.version) : [];
  if (!follow && state.sessions.size > 0) hold(state, rows, summary);
  else if (!follow) skipTo(state, last.version);
  if (summary !== null && last.version === state.delivered) state.summary = summary;
  effects.push(...deliverHeld(state), ...noticeHead(state, last.version));
  return effects;
}

/** Skips versions that are not known here. */
function skipTo(state: Delivery, version: number): void {
  state.delivered = version;
  state.held = NONE_HELD;
  state.recent.a.forget(version);
  state.recent.b?.forget(version);
}

/** Copies the rows: a change's bytes return to the arena when it is answered, and a notification's are overwritten by the next. */
function hold(state: Delivery, rows: readonly ItemRow[], summary: Summary | null): void {
  if (state.held.length + rows.length > HELD_MAX) return;
  const bytes = (sum: number, row: ItemRow): number => sum + row.end - row.at;
  if (rows.reduce(bytes, state.held.reduce(bytes, 0)) > HELD_BYTES_MAX) return;
  state.held = [...state.held, ...rows.map((row) => row.copy())];
  if (summary !== null && summary.version > (state.heldSummary?.version ?? 0)) state.heldSummary = summary;
}

/** What one step delivers in one shape. Most sockets get the same of it, and share it. */
interface Batch {
  readonly frames: readonly Frame[];
  readonly recent: RecentFrames;
  /**
   * All of them as they are sent; null where they are more than one socket is handed in one step, or are not in memory
   * any more.
   */
  readonly whole: readonly FrameBytes[] | null;
  /** When the oldest of the changes came that were made here. */
  readonly since: number;
  readonly position: number;
  /** Those that get all of it. */
  readonly sessions: Session[];
}

function batchOf(recent: RecentFrames, rows: readonly ItemRow[], position: number): Batch {
  const frames = recent.add(rows);
  let bytes = 0;
  let since = Infinity;
  for (const frame of frames) {
    bytes += frame.length;
    if (frame.since < since) since = frame.since;
  }
  const whole = bytes <= BURST_BYTES ? recent.views(frames) : null;
  return { frames, recent, whole, since, position, sessions: [] };
}

/** Moves `delivered` to `position` and sends the rows, which are all above it, to every live session. */
function deliver(state: Delivery, rows: readonly ItemRow[], position: number): Effect[] {
  const { a, b } = state.recent;
  const batchA = batchOf(a, rows, position);
  const batchB = b === null ? batchA : batchOf(b, rows, position);
  const effects: Effect[] = [];
  const before = state.delivered;
  state.delivered = position;
  for (const session of state.sessions) {
    const { phase, port } = session;
    if (phase.kind !== 'live') continue;
    const batch = port.shape === 'a' ? batchA : batchB;
    // Of none of them its own, and none of them seen already: the same as for any other such socket.
    if (
      batch.whole !== null &&
      session.cursor <= before &&
      !batch.frames.some((frame) => frame.changedBy === port.deviceId)
    ) {
      session.cursor = position;
      batch.sessions.push(session);
    } else pushTo(session, phase, batch, effects);
  }
  pushWhole(batchA, effects);
  if (batchB !== batchA) pushWhole(batchB, effects);
  a.trim();
  b?.trim();
  return effects;
}

function pushWhole({ whole, sessions, since }: Batch, effects: Effect[]): void {
  if (whole !== null && whole.length > 0 && sessions.length > 0)
    effects.push({ kind: 'push', sessions, frames: whole, since });
}

function pushTo(session: Session, phase: Live, batch: Batch, effects: Effect[]): void {
  const out: FrameBytes[] = [];
  let bytes = 0;
  let since = Infinity;
  for (const frame of batch.frames) {
    // A session that came out of replay ahead of `delivered` has this version already.
    if (frame.version <= session.cursor) continue;
    const sent = liveFrame(session, frame, { acks: phase.acks, recent: batch.recent });
    if (sent !== null) {
      bytes += sent?.length ?? 0;
      // More than a ring holds was committed at once: the first of it are overwritten already.
      if (sent === undefined || (bytes > BURST_BYTES && out.length > 0)) {
        effects.push({ ...fallBehind(session, phase, out), since });
        return;
      }
      out.push(sent);
      // An `ack` tells the writer's own device: that is no push.
      if (frame.changedBy !== session.port.deviceId && frame.since < since) since = frame.since;
    }
    session.cursor = frame.version;
  }
  if (session.cursor < batch.position) session.cursor = batch.position;
  if (out.length > 0) effects.push({ kind: 'send', session, frames: out, since });
}

/** Sends what fits and turns the session back to replay from there: silently, its client sees only rising versions. */
function fallBehind(session: Session, phase: Live, frames: readonly FrameBytes[]): Extract<Effect, { kind: 'send' }> {
  const replaying: Replaying = {
    kind: 'replaying',
    cursor: session.cursor,
    acks: phase.acks,
    greeting: false,
    committed: null,
    draining: false,
    stalled: false,
  };
  session.phase = replaying;
  return { kind: 'send', session, frames, phase: replaying };
}

/**
 * What a live session gets of a change: the frame; of its own change an `ack` where it asked for acks, else null
 * (WS-03, WS-08). Undefined: the frame is not in memory any more.
 */
export function liveFrame(
  session: Session,
  frame: Frame,
  { acks, recent }: { readonly acks: boolean; readonly recent: RecentFrames },
): FrameBytes | null | undefined {
  if (frame.changedBy !== session.port.deviceId) return recent.view(frame);
  return acks ? ackText(frame.id, frame.version) : null;
}

const ackPiece: Piece<AckFrame> = asIs;
/** Tells the writer's own device of its change. */
export const ackText = (id: string, version: number): string =>
  ackPiece(`{"type":"ack","id":"${id}","version":${version}}`);
