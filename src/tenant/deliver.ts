/**
 * The one gate between stored changes and live sockets (guarantee 1). Local commits and what other instances
 * committed both come through here; whatever was delivered before is dropped, and a gap is read before anything past it.
 */
import { asIs, type AckFrame, type Piece } from '../protocol/frames.js';
import type { Summary } from '../protocol/item.js';
import type { Effect, Pending } from './messages.js';
import { PackedItem } from './packed.js';
import type { LogPage, LogRow, Outcome } from './ports.js';
import { FramedChange } from './recent.js';
import type { Live, Replaying, Session } from './session.js';
import type { TenantState } from './state.js';

/**
 * Most bytes handed to one socket in one step. A socket that would get more goes back to replay, which waits
 * for its buffer to empty: so a burst is bounded whatever was committed at once (guarantee 4).
 */
export const BURST_BYTES = 256 * 1024;

/** Notes that the history reaches at least `head`, and reads the gap when it is not delivered yet. */
export function noticeHead(state: TenantState, head: number): Effect[] {
  if (head > state.knownHead) state.knownHead = head;
  if (state.knownHead <= state.delivered || state.gapReading) return [];
  state.gapReading = true;
  state.gapFor = state.knownHead;
  return [{ kind: 'read-gap', since: state.delivered }];
}

/**
 * Rows read from the database above `delivered`. They show each item's latest state only; what was committed here while
 * they were read is put between them, so that no version of this instance's own is passed over.
 */
export function onGap(state: TenantState, page: LogPage): Effect[] {
  state.gapReading = false;
  const found = page.rows.filter((row) => row.item.version > state.delivered);
  const last = found.at(-1)?.item.version ?? state.delivered;
  // With more to come, the page's sums are not those at its last row; they count only once the head is reached.
  const position = page.more ? last : Math.max(page.summary.version, state.delivered);
  const effects = deliver(state, merge(found, takeHeld(state, position)), position);
  if (!page.more && page.summary.version === state.delivered) state.summary = page.summary;
  // Whatever was heard of before this read is in it, or is not true. A hint too high would have the gap read for ever.
  if (!page.more && state.knownHead === state.gapFor) state.knownHead = state.delivered;
  if (!page.more) effects.push(...deliverHeld(state));
  return [...effects, ...noticeHead(state, page.summary.version)];
}

/** Both in version order; a version that is in both comes once. */
function merge(found: readonly LogRow[], held: readonly LogRow[]): LogRow[] {
  if (held.length === 0) return [...found];
  const byVersion = new Map([...held, ...found].map((row) => [row.item.version, row]));
  return [...byVersion.values()].sort((a, b) => a.item.version - b.item.version);
}

/** Takes what is held up to a version that is above `delivered`. */
function takeHeld(state: TenantState, position: number): LogRow[] {
  const taken = state.held.filter(({ item }) => item.version > state.delivered && item.version <= position);
  state.held = state.held.filter(({ item }) => item.version > position);
  return taken;
}

/** Delivers what is held when it follows without a gap; else the next read finds it. */
function deliverHeld(state: TenantState): Effect[] {
  const { held, heldSummary } = state;
  state.held = [];
  state.heldSummary = null;
  if (held.length === 0 || heldSummary?.version !== state.delivered + held.length) return [];
  const effects = deliver(state, held, heldSummary.version);
  state.summary = heldSummary;
  return effects;
}

/** Rows held while a gap is read, at most. */
const HELD_MAX = 1_000;

/**
 * The changes of one local transaction. Delivered at once when they are all there is between `delivered` and the head
 * they made: versions are gapless, so their number tells. Of another instance's changes, or of another actor's
 * (dropped, but with changes under way), nothing is known here: then the log is read, and these are held meanwhile.
 */
export function onApplied(state: TenantState, applied: readonly Outcome<Pending>[], summary: Summary): Effect[] {
  const rows = applied.map(rowOf).filter((row) => row !== null);
  const complete = rows.length === applied.length;
  if (!complete || state.gapReading || summary.version !== state.delivered + applied.length) {
    if (complete) hold(state, rows, summary);
    return noticeHead(state, summary.version);
  }
  const effects = deliver(state, rows, summary.version);
  state.summary = summary;
  if (summary.version > state.knownHead) state.knownHead = summary.version;
  return effects;
}

function hold(state: TenantState, rows: readonly LogRow[], summary: Summary): void {
  if (state.held.length + rows.length > HELD_MAX) return;
  state.held = [...state.held, ...rows];
  state.heldSummary = summary;
}

/** The stored row that a change made, where the change or its outcome tells it. */
function rowOf({ change, verdict, version, at, stored }: Outcome<Pending>): LogRow | null {
  if (version === null) return null;
  const { since } = change.reply;
  if (stored !== null && stored !== undefined) return { ...stored, since };
  if (verdict === 'delete') {
    const { id, sig, deviceId } = change;
    // The frame of a delete carries id, version and tag only; the rest of the row is not known here, nor needed.
    const gone = { binId: '', type: null, senderDevice: null, ts: null, deletedAt: at };
    return { item: { id, version, sig, ...gone }, changedBy: deviceId, since };
  }
  if (change.write === null || (verdict !== 'insert' && verdict !== 'replace')) return null;
  const item = new PackedItem(change.write, change.packed, version, change.deviceId);
  return { item, changedBy: change.deviceId, since };
}

/** Moves `delivered` to `position` and sends the rows, which are all above it, to every live session. */
function deliver(state: TenantState, rows: readonly LogRow[], position: number): Effect[] {
  const frames = rows.map((row) => new FramedChange(row));
  const effects: Effect[] = [];
  state.recent.add(frames);
  state.delivered = position;
  for (const session of state.sessions) {
    if (session.phase.kind === 'live') pushTo(session, session.phase, { frames, position, effects });
  }
  return effects;
}

function pushTo(
  session: Session,
  phase: Live,
  batch: { frames: readonly FramedChange[]; position: number; effects: Effect[] },
): void {
  const out: string[] = [];
  let bytes = 0;
  let since = Infinity;
  for (const frame of batch.frames) {
    // A session that came out of replay ahead of `delivered` has this version already.
    if (frame.version <= phase.cursor) continue;
    const text = liveText(session, frame, phase.acks);
    if (text !== null) {
      bytes += text.length;
      if (bytes > BURST_BYTES && out.length > 0) {
        batch.effects.push({ ...fallBehind(session, phase, out), since });
        return;
      }
      out.push(text);
      // An `ack` tells the writer's own device: that is no push.
      if (frame.changedBy !== session.deviceId && frame.since < since) since = frame.since;
    }
    phase.cursor = frame.version;
  }
  if (phase.cursor < batch.position) phase.cursor = batch.position;
  if (out.length > 0) batch.effects.push({ kind: 'send', session, frames: out, since });
}

/** Sends what fits and turns the session back to replay from there: silently, its client sees only rising versions. */
function fallBehind(session: Session, phase: Live, frames: readonly string[]): Extract<Effect, { kind: 'send' }> {
  const { cursor, acks } = phase;
  const replaying: Replaying = {
    kind: 'replaying',
    cursor,
    acks,
    greeting: false,
    committed: null,
    draining: false,
    stalled: false,
  };
  session.phase = replaying;
  return { kind: 'send', session, frames, phase: replaying };
}

/**
 * What a live session gets of a change: the frame; for its own change an `ack` where it asked for acks, else
 * nothing (specification, Fanout; contract 11, Cursor).
 */
export function liveText(session: Session, frame: FramedChange, acks: boolean): string | null {
  if (frame.changedBy !== session.deviceId) return frame.text(session.port.shape);
  return acks ? ackText(frame.item.id, frame.version) : null;
}

const ackPiece: Piece<AckFrame> = asIs;
const ackText = (id: string, version: number): string => ackPiece(`{"type":"ack","id":"${id}","version":${version}}`);
