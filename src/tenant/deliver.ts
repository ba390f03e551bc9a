/**
 * The one gate between stored changes and live sockets (guarantee 1). Local commits and what other instances
 * committed both come through here; whatever was delivered before is dropped, and a gap is read before anything past it.
 */
import type { LiveItem, Summary } from '../protocol/item.js';
import type { Effect, Pending } from './messages.js';
import type { LogPage, LogRow, Outcome } from './ports.js';
import { Frame } from './recent.js';
import type { Live, Replaying, Session } from './session.js';
import type { TenantState } from './state.js';

/**
 * Most bytes handed to one socket in one step. A socket that would get more goes back to replay, which waits
 * for its buffer to empty: so a burst is bounded whatever was committed at once (guarantee 4).
 */
export const BURST_BYTES = 512 * 1024;

/** Notes that the history reaches at least `head`, and reads the gap when it is not delivered yet. */
export function noticeHead(state: TenantState, head: number): Effect[] {
  if (head > state.knownHead) state.knownHead = head;
  if (state.knownHead <= state.delivered || state.gapReading) return [];
  state.gapReading = true;
  state.gapFor = state.knownHead;
  return [{ kind: 'read-gap', since: state.delivered }];
}

/** Rows read from the database above `delivered`. */
export function onGap(state: TenantState, page: LogPage): Effect[] {
  state.gapReading = false;
  const fresh = page.rows.filter((row) => row.item.version > state.delivered);
  const last = fresh.at(-1)?.item.version ?? state.delivered;
  // With more to come, the page's sums are not those at its last row; they count only once the head is reached.
  const effects = page.more
    ? deliver(state, fresh, last)
    : deliver(state, fresh, Math.max(page.summary.version, state.delivered));
  if (!page.more && page.summary.version === state.delivered) state.summary = page.summary;
  // Whatever was heard of before this read is in it, or is not true. A hint too high would have the gap read for ever.
  if (!page.more && state.knownHead === state.gapFor) state.knownHead = state.delivered;
  return [...effects, ...noticeHead(state, page.summary.version)];
}

/**
 * The changes of one local transaction. Delivered at once when they are all there is between `delivered` and the head
 * they made: versions are gapless, so their number tells. Of another instance's changes, or of another actor's
 * (dropped, but with changes under way), nothing is known here: then the log is read.
 */
export function onApplied(state: TenantState, applied: readonly Outcome<Pending>[], summary: Summary): Effect[] {
  if (summary.version !== state.delivered + applied.length || state.gapReading)
    return noticeHead(state, summary.version);
  const rows: LogRow[] = [];
  for (const outcome of applied) {
    const row = rowOf(outcome);
    // A move or a re-wrap changes a stored row that is not known here.
    if (row === null) return noticeHead(state, summary.version);
    rows.push(row);
  }
  const effects = deliver(state, rows, summary.version);
  state.summary = summary;
  if (summary.version > state.knownHead) state.knownHead = summary.version;
  return effects;
}

/** The stored row that a change made, where the change alone tells it. */
function rowOf({ change, verdict, version, at }: Outcome<Pending>): LogRow | null {
  if (version === null) return null;
  if (verdict === 'delete') {
    const { id, sig, deviceId } = change;
    // The frame of a delete carries id, version and tag only; the rest of the row is not known here, nor needed.
    const gone = { binId: '', type: null, senderDevice: null, ts: null, deletedAt: at };
    return { item: { id, version, sig, ...gone }, changedBy: deviceId };
  }
  if (change.write === null || (verdict !== 'insert' && verdict !== 'replace')) return null;
  const { id, binId, type, ts, inline, blob, master, sig } = change.write;
  const item: LiveItem = {
    id,
    binId,
    type,
    ts,
    inline,
    blob,
    master,
    sig,
    version,
    senderDevice: change.deviceId,
    deletedAt: null,
  };
  return { item, changedBy: change.deviceId };
}

/** Moves `delivered` to `position` and sends the rows, which are all above it, to every live session. */
function deliver(state: TenantState, rows: readonly LogRow[], position: number): Effect[] {
  const frames = rows.map((row) => new Frame(row));
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
  batch: { frames: readonly Frame[]; position: number; effects: Effect[] },
): void {
  const out: string[] = [];
  let bytes = 0;
  for (const frame of batch.frames) {
    // A session that came out of replay ahead of `delivered` has this version already.
    if (frame.version <= phase.cursor) continue;
    const text = liveText(session, frame, phase.acks);
    if (text !== null) {
      bytes += text.length;
      if (bytes > BURST_BYTES && out.length > 0) {
        batch.effects.push(fallBehind(session, phase, out));
        return;
      }
      out.push(text);
    }
    phase.cursor = frame.version;
  }
  if (phase.cursor < batch.position) phase.cursor = batch.position;
  if (out.length > 0) batch.effects.push({ kind: 'send', session, frames: out });
}

/** Sends what fits and turns the session back to replay from there: silently, its client sees only rising versions. */
function fallBehind(session: Session, phase: Live, frames: readonly string[]): Effect {
  const { cursor, acks } = phase;
  const replaying: Replaying = { kind: 'replaying', cursor, acks, greeting: false, committed: null, draining: false };
  session.phase = replaying;
  return { kind: 'send', session, frames, phase: replaying };
}

/**
 * What a live session gets of a change: the frame; for its own change an `ack` where it asked for acks, else
 * nothing (specification, Fanout; contract 11, Cursor).
 */
export function liveText(session: Session, frame: Frame, acks: boolean): string | null {
  if (frame.changedBy !== session.deviceId) return frame.text(session.port.shape);
  return acks ? ackText(frame.item.id, frame.version) : null;
}

const ackText = (id: string, version: number): string => `{"type":"ack","id":"${id}","version":${version}}`;
