/**
 * The one gate between stored changes and live sockets (guarantee 1). Local commits and what other instances
 * committed both come through here; whatever was delivered before is dropped, and a gap is read before anything past it.
 */
import { asIs, type AckFrame, type Piece } from '../protocol/frames.js';
import type { Summary } from '../protocol/item.js';
import type { ItemRow } from './change.js';
import { frameText } from './codec.js';
import type { Effect } from './messages.js';
import type { FrameBytes, LogPage } from './ports.js';
import type { Frame, Recent } from './recent.js';
import type { Live, Replaying, Session } from './session.js';
import { NONE_HELD, recentOf, type TenantState } from './state.js';

/**
 * Most bytes handed to one socket in one step. A socket that would get more goes back to replay, which waits
 * for its buffer to empty: so a burst is bounded whatever was committed at once (guarantee 4).
 */
export const BURST_BYTES = 256 * 1024;

/**
 * Notes that the history reaches at least `head`, and reads the gap when it is not delivered yet. Without a socket nobody waits
 * for it: a `hello` asks for the head.
 */
export function noticeHead(state: TenantState, head: number): Effect[] {
  if (head > state.knownHead) state.knownHead = head;
  if (state.knownHead <= state.delivered || state.gapReading || state.sessions.size === 0) return [];
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
  const found = page.rows.filter((row) => row.version > state.delivered);
  const last = found.at(-1)?.version ?? state.delivered;
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
function merge(found: readonly ItemRow[], held: readonly ItemRow[]): ItemRow[] {
  if (held.length === 0) return [...found];
  const byVersion = new Map([...held, ...found].map((row) => [row.version, row]));
  return [...byVersion.values()].sort((a, b) => a.version - b.version);
}

/** Takes what is held up to a version that is above `delivered`. */
function takeHeld(state: TenantState, position: number): ItemRow[] {
  const taken = state.held.filter(({ version }) => version > state.delivered && version <= position);
  state.held = state.held.filter(({ version }) => version > position);
  return taken;
}

/** Delivers of what is held what follows without a gap; of the rest, the next read finds what lies before it. */
function deliverHeld(state: TenantState): Effect[] {
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

/** Rows held while a gap is read, at most. */
const HELD_MAX = 1_000;

/**
 * What one transaction made, here or on another instance, in version order. Delivered at once where it follows what was
 * delivered, without a gap: of another instance's changes, or of another actor's (dropped, but with changes under way), nothing
 * may be known here. Then the log is read, and these are held meanwhile. A tenant without sockets has nobody to tell: it goes
 * on from here, and who asks for what lies before reads the log.
 */
export function onRows(state: TenantState, given: readonly ItemRow[], summary: Summary | null): Effect[] {
  const rows = given.filter(({ version }) => version > state.delivered);
  const last = rows.at(-1);
  if (last === undefined) return [];
  const effects: Effect[] = [];
  if (last.version === state.delivered + rows.length) effects.push(...deliver(state, rows, last.version));
  else if (state.sessions.size > 0) hold(state, rows, summary);
  else skipTo(state, last.version);
  if (summary !== null && last.version === state.delivered) state.summary = summary;
  return [...effects, ...deliverHeld(state), ...noticeHead(state, last.version)];
}

/** Passes over versions that are not known here. */
function skipTo(state: TenantState, version: number): void {
  state.delivered = version;
  state.recent.a.forget(version);
  state.recent.b?.forget(version);
}

/** Copies: the bytes of a change belong to the arena, which takes them back when it is answered. */
function hold(state: TenantState, rows: readonly ItemRow[], summary: Summary | null): void {
  if (state.held.length + rows.length > HELD_MAX) return;
  state.held = [...state.held, ...rows.map((row) => row.copy())];
  if (summary !== null && summary.version > (state.heldSummary?.version ?? 0)) state.heldSummary = summary;
}

/** Moves `delivered` to `position` and sends the rows, which are all above it, to every live session. */
function deliver(state: TenantState, rows: readonly ItemRow[], position: number): Effect[] {
  const { a, b } = state.recent;
  const [framesA, framesB] = [a.add(rows), b?.add(rows) ?? []];
  const effects: Effect[] = [];
  state.delivered = position;
  for (const session of state.sessions) {
    if (session.phase.kind !== 'live') continue;
    const frames = session.port.shape === 'a' ? framesA : framesB;
    pushTo(session, session.phase, { frames, recent: recentOf(state, session.port.shape), position, effects });
  }
  a.trim();
  b?.trim();
  return effects;
}

function pushTo(
  session: Session,
  phase: Live,
  batch: { frames: readonly Frame[]; recent: Recent; position: number; effects: Effect[] },
): void {
  const out: FrameBytes[] = [];
  let bytes = 0;
  let since = Infinity;
  for (const frame of batch.frames) {
    // A session that came out of replay ahead of `delivered` has this version already.
    if (frame.version <= phase.cursor) continue;
    const sent = liveFrame(session, frame, { acks: phase.acks, recent: batch.recent });
    if (sent !== null) {
      bytes += sent?.length ?? 0;
      // More than a ring holds was committed at once: the first of it are overwritten already.
      if (sent === undefined || (bytes > BURST_BYTES && out.length > 0)) {
        batch.effects.push({ ...fallBehind(session, phase, out), since });
        return;
      }
      out.push(sent);
      // An `ack` tells the writer's own device: that is no push.
      if (frame.changedBy !== session.deviceId && frame.since < since) since = frame.since;
    }
    phase.cursor = frame.version;
  }
  if (phase.cursor < batch.position) phase.cursor = batch.position;
  if (out.length > 0) batch.effects.push({ kind: 'send', session, frames: out, since });
}

/** Sends what fits and turns the session back to replay from there: silently, its client sees only rising versions. */
function fallBehind(session: Session, phase: Live, frames: readonly FrameBytes[]): Extract<Effect, { kind: 'send' }> {
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
 * What a live session gets of a change: the frame; of its own change an `ack` where it asked for acks, else null (WS-03,
 * WS-08). Undefined: the frame is not in memory any more.
 */
export function liveFrame(
  session: Session,
  frame: Frame,
  { acks, recent }: { readonly acks: boolean; readonly recent: Recent },
): FrameBytes | null | undefined {
  if (frame.changedBy !== session.deviceId) return recent.view(frame);
  return acks ? ackText(frame.id, frame.version) : null;
}

/** As `liveFrame`, of a stored row that was just read. */
export function liveRow(session: Session, row: ItemRow, acks: boolean): string | null {
  if (row.changedBy !== session.deviceId) return frameText(session.port.shape, row);
  return acks ? ackText(row.id, row.version) : null;
}

const ackPiece: Piece<AckFrame> = asIs;
const ackText = (id: string, version: number): string => ackPiece(`{"type":"ack","id":"${id}","version":${version}}`);
