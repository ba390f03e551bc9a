/**
 * The one gate between stored changes and live sockets (guarantee 1). Local commits and those of other instances both
 * pass through it; versions delivered before are dropped, and a gap is read before anything past it is delivered.
 *
 * The frames of each tenant's last changes are kept after they were pushed, so that replays after a short absence do
 * not reach the database: as bytes, in a few large buffers that all tenants of a process share, each preceded by the
 * fields that a replay needs. So a kept frame is neither an object nor a string. Those survive a collection or two and
 * then die, which made most of the garbage collector's work (bench S1, S3).
 */
import type { AckFrame, Piece } from '../../protocol/frames.js';
import type { Summary } from '../../protocol/item.js';
import { type ItemRow, asIs, frameBytes, JsonWriter, putAscii } from './codec.js';
import type { Effect } from './messages.js';
import type { FrameBytes, LogPage } from './ports.js';
import { beginReplay, type Live, type Session } from './session.js';
import type { Shape } from '../../protocol/shape.js';

/** Position of a frame in the ring: number of its segment times the segment size, plus its offset. Never reused. */
type FramePosition = number;

const SEGMENT_BYTES = 1024 * 1024;
/** Position of a frame that is not held. */
export const NOWHERE: FramePosition = -1;

// Fields before a frame, as offsets from its position; id and device follow, then the frame.
const VERSION_AT = 0;
/** From this version (excluded) to its own it is the only change; others were superseded before they were read. */
const FLOOR_AT = 8;
/** The tenant's previous frame, or `NOWHERE`. */
const BEFORE_AT = 16;
const LENGTH_AT = 24;
const ID_LENGTH_AT = 28;
const DEVICE_LENGTH_AT = 29;
const HEAD_BYTES = 30;

interface Segment {
  /** Never reused. */
  readonly number: number;
  readonly bytes: Buffer;
  readonly view: DataView;
  used: number;
  /** The step in which its last frame was added. */
  step: number;
}

/**
 * Frames in order of arrival; when full, the oldest are evicted a segment at a time. A tenant that has added more than a
 * replay gets from the ring continues in other segments, which only such tenants share: they evict each other's frames,
 * and of those of the others at most the older half (FAIR-47).
 */
export class FrameRing {
  private readonly segments = new Map<number, Segment>();
  /** In order, the newest last. */
  private readonly common: Segment[] = [];
  private readonly busy: Segment[] = [];
  private next = 0;
  private step = 0;
  private readonly most: number;

  /**
   * Holds at most `bytesMax`, but at least two segments of 1 MiB. A step that adds more evicts its own first frames. The
   * memory of those is not used again: it may have to be sent yet.
   */
  constructor(bytesMax: number) {
    this.most = Math.max(2, Math.floor(bytesMax / SEGMENT_BYTES));
  }

  /** The frames of the previous step, of whichever tenant, were sent. */
  beginStep(): void {
    this.step++;
  }

  /** Adds the frame of a tenant's change; `NOWHERE` if it is larger than a segment. */
  add(
    frame: Uint8Array,
    { id, version, changedBy }: Pick<ItemRow, 'id' | 'version' | 'changedBy'>,
    recent: Pick<RecentFrames, 'since' | 'bytes' | 'head' | 'newest'>,
  ): FramePosition {
    const device = changedBy ?? '';
    const size = HEAD_BYTES + id.length + device.length + frame.length;
    if (size > SEGMENT_BYTES) return NOWHERE;
    const segment = this.segmentFor(size, recent);
    const { bytes, view, used: at } = segment;
    segment.used += size;
    segment.step = this.step;
    view.setFloat64(at + VERSION_AT, version);
    view.setFloat64(at + FLOOR_AT, recent.head);
    view.setFloat64(at + BEFORE_AT, recent.newest);
    view.setUint32(at + LENGTH_AT, frame.length);
    bytes[at + ID_LENGTH_AT] = id.length;
    bytes[at + DEVICE_LENGTH_AT] = device.length;
    bytes.set(frame, putAscii(bytes, putAscii(bytes, at + HEAD_BYTES, id), device));
    return segment.number * SEGMENT_BYTES + at;
  }

  /** Whether the frame is still held. All methods below require that. */
  has(position: FramePosition): boolean {
    return this.segments.has(Math.floor(position / SEGMENT_BYTES));
  }

  versionOf(position: FramePosition): number {
    return this.fieldsOf(position).getFloat64((position % SEGMENT_BYTES) + VERSION_AT);
  }

  floorOf(position: FramePosition): number {
    return this.fieldsOf(position).getFloat64((position % SEGMENT_BYTES) + FLOOR_AT);
  }

  beforeOf(position: FramePosition): FramePosition {
    return this.fieldsOf(position).getFloat64((position % SEGMENT_BYTES) + BEFORE_AT);
  }

  /** Length of the frame alone. */
  lengthOf(position: FramePosition): number {
    return this.fieldsOf(position).getUint32((position % SEGMENT_BYTES) + LENGTH_AT);
  }

  idOf(position: FramePosition): string {
    const { bytes } = this.segmentAt(position);
    const from = (position % SEGMENT_BYTES) + HEAD_BYTES;
    return bytes.toString('latin1', from, from + (bytes[from - HEAD_BYTES + ID_LENGTH_AT] ?? 0));
  }

  /** The device that made the change; '' if unknown. */
  deviceOf(position: FramePosition): string {
    const { bytes } = this.segmentAt(position);
    const at = position % SEGMENT_BYTES;
    const from = at + HEAD_BYTES + (bytes[at + ID_LENGTH_AT] ?? 0);
    return bytes.toString('latin1', from, from + (bytes[at + DEVICE_LENGTH_AT] ?? 0));
  }

  /** The bytes of the frame: a view, valid until the next `add`; if it was added in this step, until the next step. */
  frameOf(position: FramePosition): Buffer {
    const { bytes } = this.segmentAt(position);
    const at = position % SEGMENT_BYTES;
    const from = at + HEAD_BYTES + (bytes[at + ID_LENGTH_AT] ?? 0) + (bytes[at + DEVICE_LENGTH_AT] ?? 0);
    return bytes.subarray(from, from + this.lengthOf(position));
  }

  private segmentAt(position: FramePosition): Segment {
    const segment = this.segments.get(Math.floor(position / SEGMENT_BYTES));
    if (segment === undefined) throw new Error('the frame is not in the ring any more');
    return segment;
  }

  private fieldsOf(position: FramePosition): DataView {
    return this.segmentAt(position).view;
  }

  /** The segment with room for `size` bytes more of this tenant, which they are charged to. */
  private segmentFor(size: number, share: Pick<RecentFrames, 'since' | 'bytes'>): Segment {
    // What was counted is evicted, or about to be.
    const first = this.common[0]?.number ?? 0;
    if (share.since < first) {
      share.since = this.common.at(-1)?.number ?? first;
      share.bytes = 0;
    }
    const list = share.bytes + size > RECENT_BYTES ? this.busy : this.common;
    if (list === this.common) share.bytes += size;
    const newest = list.at(-1);
    return newest === undefined || newest.used + size > SEGMENT_BYTES ? this.begin(list) : newest;
  }

  /** The list whose oldest segment gives way to a new one of `list`; undefined if there is room. */
  private givingWay(list: Segment[]): Segment[] | undefined {
    const { busy, common } = this;
    if (list === busy && busy.length >= Math.floor(this.most / 2)) return busy;
    if (this.segments.size < this.most) return undefined;
    const isBusyOlder = (busy[0]?.number ?? Infinity) < (common[0]?.number ?? Infinity);
    return list === common && isBusyOlder ? busy : common;
  }

  /** Begins a segment; at the limit the oldest one is evicted and used again. */
  private begin(list: Segment[]): Segment {
    const evicted = this.givingWay(list)?.shift();
    if (evicted !== undefined) this.segments.delete(evicted.number);
    const free = evicted === undefined || evicted.step === this.step ? undefined : evicted.bytes;
    const bytes = free ?? Buffer.allocUnsafeSlow(SEGMENT_BYTES);
    const segment = { number: this.next++, bytes, view: new DataView(bytes.buffer), used: 0, step: 0 };
    this.segments.set(segment.number, segment);
    list.push(segment);
    return segment;
  }
}

/** Limits of what one replay gets from the ring, whose own limit is shared by all tenants of the process. */
export const RECENT_ROWS = 256;
export const RECENT_BYTES = 256 * 1024;

/** Buffer in which a frame is encoded before it is added to the ring. */
const written = new JsonWriter();

/**
 * The last changes of a tenant in one shape: those up to the delivered version that the ring still holds. A missing
 * version in between was superseded before it could be read.
 */
export class RecentFrames {
  newest = NOWHERE;
  /** What it has added to the segments that all tenants share since that of this number was begun; set by the ring. */
  since = NOWHERE;
  bytes = 0;

  constructor(
    private readonly shape: Shape,
    /** Up to this version each change was added, or must be read from the log. */
    public head: number,
    readonly ring: FrameRing,
  ) {}

  /** True if everything above this cursor is held. */
  covers(cursor: number): boolean {
    return this.collect(cursor) <= cursor;
  }

  /** Adds a delivered change; calls must be in version order. */
  add(row: ItemRow): FramePosition {
    written.restart();
    this.newest = this.ring.add(frameBytes(written, this.shape, row), row, this);
    this.head = row.version;
    return this.newest;
  }

  /** Changes above the cursor in version order, each item once in its latest state (WS-15). */
  above(cursor: number): FramePosition[] {
    const positions: FramePosition[] = [];
    this.collect(cursor, positions);
    const latest = new Map<string, FramePosition>();
    for (const position of positions) {
      const id = this.ring.idOf(position);
      if (!latest.has(id)) latest.set(id, position);
    }
    return [...latest.values()].reverse();
  }

  /** The bytes of a frame: a view, as of `FrameRing.frameOf`. Undefined if it is no longer held. */
  frame(position: FramePosition): Uint8Array | undefined {
    return this.ring.has(position) ? this.ring.frameOf(position) : undefined;
  }

  /** Like `frame`, for each of them; null if one is no longer held. */
  frames(positions: readonly FramePosition[]): readonly FrameBytes[] | null {
    if (!positions.every((position) => this.ring.has(position))) return null;
    return positions.map((position) => this.ring.frameOf(position));
  }

  /** Drops all frames; sessions below `head` are served from the database. */
  forget(head: number): void {
    this.newest = NOWHERE;
    this.head = head;
  }

  /**
   * Walks back from the newest frame to the cursor, within the bounds, and collects the positions above it. Returns the
   * version above which every change was found: higher than the cursor if not all of them are held.
   */
  private collect(cursor: number, positions?: FramePosition[]): number {
    const { ring } = this;
    let floor = this.head;
    let bytes = 0;
    let rows = 0;
    for (let position = this.newest; floor > cursor && ring.has(position); position = ring.beforeOf(position)) {
      bytes += ring.lengthOf(position);
      if (++rows > RECENT_ROWS || bytes > RECENT_BYTES) break;
      positions?.push(position);
      floor = ring.floorOf(position);
    }
    return floor;
  }
}

/** The part of a tenant's state that delivery uses: position, sessions, recent frames. */
export class Delivery {
  /** Every version up to this one went through `deliver`, exactly once and in order. */
  delivered: number;
  /** The highest head announced. Above `delivered`, a gap is being read or about to be. */
  knownHead: number;
  gapReading = false;
  /** Rows committed here while a gap was read, in version order, and (`heldSummary`) the sums at the last of them. */
  held: readonly ItemRow[] = NONE_HELD;
  heldSummary: Summary | null = null;
  /** `knownHead` when the read of the current, or last, gap began. */
  headAtGapRead: number;
  /**
   * The head of the last page of a gap that had more. What was delivered below it may lack a state that this head has
   * superseded, so `summary` counts an item there that no frame in memory has: no `caught_up` is sent below it.
   */
  gapHead = 0;

  readonly sessions = new Set<Session>();
  /** The frames of the last changes. Those in shape B exist only once a socket of that shape was opened. */
  readonly recent: { readonly a: RecentFrames; b: RecentFrames | null };

  constructor(
    /** Count and version sum at `summary.version`; exact for `delivered` when the two are equal. */
    public summary: Summary,
    readonly ring: FrameRing,
  ) {
    this.delivered = this.knownHead = this.headAtGapRead = summary.version;
    this.recent = { a: new RecentFrames('a', summary.version, ring), b: null };
  }
}

/** The last changes in a shape. Those in shape B are kept from the first socket of that shape on. */
export function recentFramesOf({ recent, delivered, ring }: Delivery, shape: Shape): RecentFrames {
  return shape === 'a' ? recent.a : (recent.b ??= new RecentFrames('b', delivered, ring));
}

/**
 * Maximum of bytes sent to one socket in one step. A socket that would get more returns to replay, which waits for its
 * buffer to empty: so a burst is bounded however much was committed at once (guarantee 4).
 */
export const BURST_BYTES = 256 * 1024;

/**
 * Notes that the history reaches at least `head`, and reads the gap if it is not delivered yet. Without a socket
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
 * Rows read from the database above `delivered`. They contain each item's latest state only; rows committed here during
 * the read are merged with them, so that none of this instance's own versions is skipped.
 */
export function onGap(state: Delivery, page: LogPage): Effect[] {
  state.gapReading = false;
  const found = page.rows.filter((row) => row.version > state.delivered);
  const last = found.at(-1)?.version ?? state.delivered;
  // If there is more, the page's sums are not those at its last row; they apply only once the head is reached.
  const upTo = page.more ? last : Math.max(page.summary.version, state.delivered);
  if (page.more) state.gapHead = page.summary.version;
  const effects = deliver(state, merge(found, takeHeld(state, upTo)), upTo);
  if (!page.more && page.summary.version === state.delivered) state.summary = page.summary;
  // A head announced before this read is covered by it, or was wrong. A hint that is too high would repeat the read for
  // ever.
  if (!page.more && state.knownHead === state.headAtGapRead) state.knownHead = state.delivered;
  if (!page.more) effects.push(...deliverHeld(state));
  return [...effects, ...noticeHead(state, page.summary.version)];
}

/** Both are in version order; a version in both is included once. */
function merge(found: readonly ItemRow[], held: readonly ItemRow[]): ItemRow[] {
  if (held.length === 0) return [...found];
  const byVersion = new Map([...held, ...found].map((row) => [row.version, row]));
  return [...byVersion.values()].sort((a, b) => a.version - b.version);
}

/** Removes and returns the held rows above `delivered`, up to the version `upTo`. */
function takeHeld(state: Delivery, upTo: number): ItemRow[] {
  const taken = state.held.filter(({ version }) => version > state.delivered && version <= upTo);
  state.held = state.held.filter(({ version }) => version > upTo);
  return taken;
}

/** Delivers the held rows that follow without a gap; the next read finds the versions missing before the rest. */
function deliverHeld(state: Delivery): Effect[] {
  if (state.held.length === 0) return [];
  const held = takeHeld(state, Infinity);
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

const NONE_HELD: readonly ItemRow[] = [];
/** Maximum of rows, and bytes, held while a gap is read. Rows beyond that are read from the log. */
const HELD_MAX = 1_000;
const HELD_BYTES_MAX = 1024 * 1024;

/**
 * The rows of one transaction, of this instance or another, in version order. Delivered at once if they follow without
 * a gap. A gap arises from changes that are not known here, of another instance or of a dropped actor with changes
 * under way: then the log is read, and these rows are held meanwhile. A tenant without sockets skips the gap; later
 * replays read it from the log.
 */
export function onRows(state: Delivery, given: readonly ItemRow[], summary: Summary | null): Effect[] {
  const known = (given[0]?.version ?? 0) <= state.delivered;
  const rows = known ? given.filter(({ version }) => version > state.delivered) : given;
  const last = rows.at(-1);
  if (last === undefined) return [];
  const contiguous = last.version === state.delivered + rows.length;
  const effects = contiguous ? deliver(state, rows, last.version) : [];
  if (!contiguous && state.sessions.size > 0) hold(state, rows, summary);
  else if (!contiguous) skipTo(state, last.version);
  if (summary !== null && last.version === state.delivered) state.summary = summary;
  effects.push(...deliverHeld(state), ...noticeHead(state, last.version));
  return effects;
}

/** Skips versions that are unknown here. */
function skipTo(state: Delivery, version: number): void {
  state.delivered = version;
  state.held = NONE_HELD;
  state.recent.a.forget(version);
  state.recent.b?.forget(version);
}

/**
 * Copies the rows: a change's bytes return to the arena with its answer, and the next notification overwrites the last.
 */
function hold(state: Delivery, rows: readonly ItemRow[], summary: Summary | null): void {
  if (state.held.length + rows.length > HELD_MAX) return;
  const bytes = (sum: number, row: ItemRow): number => sum + row.end - row.at;
  if (rows.reduce(bytes, state.held.reduce(bytes, 0)) > HELD_BYTES_MAX) return;
  state.held = [...state.held, ...rows.map((row) => row.copy())];
  if (summary !== null && summary.version > (state.heldSummary?.version ?? 0)) state.heldSummary = summary;
}

/** The delivery of one step in one shape. Most sockets get the same frames, and share them. */
interface Batch {
  readonly rows: readonly ItemRow[];
  /** The position of each row's frame. */
  readonly positions: readonly FramePosition[];
  readonly recent: RecentFrames;
  /**
   * All frames; null if they exceed what one socket may be sent in one step, or are no longer in memory.
   */
  readonly whole: readonly FrameBytes[] | null;
  /** Arrival time of the oldest of the changes made on this instance. */
  readonly since: number;
  /** The version up to which the batch delivers: at least that of the last row. */
  readonly upTo: number;
  /** The sessions that get all of it. */
  readonly sessions: Session[];
}

function batchOf(recent: RecentFrames, rows: readonly ItemRow[], upTo: number): Batch {
  const positions = rows.map((row) => recent.add(row));
  const frames = recent.frames(positions);
  let bytes = 0;
  for (const frame of frames ?? []) bytes += frame.length;
  let since = Infinity;
  for (const row of rows) if (row.since < since) since = row.since;
  return { rows, positions, recent, whole: bytes <= BURST_BYTES ? frames : null, since, upTo, sessions: [] };
}

/** Moves `delivered` to `upTo` and sends the rows, which are all above it, to every live session. */
function deliver(state: Delivery, rows: readonly ItemRow[], upTo: number): Effect[] {
  const { a, b } = state.recent;
  const batchA = batchOf(a, rows, upTo);
  const batchB = b === null ? batchA : batchOf(b, rows, upTo);
  const effects: Effect[] = [];
  const before = state.delivered;
  state.delivered = upTo;
  for (const session of state.sessions) {
    const { phase, port } = session;
    if (phase.kind !== 'live') continue;
    const batch = port.shape === 'a' ? batchA : batchB;
    // None of the rows is the device's own, and none was sent already: the frames are the same as for other sockets.
    if (
      batch.whole !== null &&
      session.cursor <= before &&
      !rows.some(({ changedBy }) => changedBy === port.deviceId)
    ) {
      session.cursor = upTo;
      batch.sessions.push(session);
    } else pushTo(session, phase, batch, effects);
  }
  pushWhole(batchA, effects);
  if (batchB !== batchA) pushWhole(batchB, effects);
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
  for (const [n, row] of batch.rows.entries()) {
    const { id, version } = row;
    // A session that left replay ahead of `delivered` has this version already.
    if (version <= session.cursor) continue;
    const own = row.changedBy === session.port.deviceId;
    const sent = own ? ownFrame(phase.acks, id, version) : batch.recent.frame(batch.positions[n] ?? NOWHERE);
    if (sent !== null) {
      bytes += sent?.length ?? 0;
      // More was committed at once than a ring holds: the first frames are already evicted.
      if (sent === undefined || (bytes > BURST_BYTES && out.length > 0)) {
        effects.push({ ...fallBehind(session, phase, out), since });
        return;
      }
      out.push(sent);
      // An `ack` to the writer's own device is not a push.
      if (!own && row.since < since) since = row.since;
    }
    session.cursor = version;
  }
  if (session.cursor < batch.upTo) session.cursor = batch.upTo;
  if (out.length > 0) effects.push({ kind: 'send', session, frames: out, since });
}

/**
 * Sends what fits and returns the session to replay from there: silently, since its client only sees rising versions.
 */
function fallBehind(session: Session, phase: Live, frames: readonly FrameBytes[]): Extract<Effect, { kind: 'send' }> {
  const replaying = beginReplay({ cursor: session.cursor, acks: phase.acks, greeting: false, draining: false });
  session.phase = replaying;
  return { kind: 'send', session, frames, phase: replaying };
}

const ackPiece: Piece<AckFrame> = asIs;

/** The frame that a device's live socket gets for its own change: an `ack` if it requested acks (WS-03, WS-08). */
export const ownFrame = (acks: boolean, id: string, version: number): string | null =>
  acks ? ackPiece(`{"type":"ack","id":"${id}","version":${version}}`) : null;
