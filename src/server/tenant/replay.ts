/**
 * Brings one session to the actor's position: from the frames in memory if they reach back far enough, else page by
 * page from the database, each page only after the socket has taken the previous one (guarantees 1 and 4).
 */
import { CLOSE } from '../../protocol/close-codes.js';
import { encode, type Shape } from '../../protocol/shape.js';
import type { PlainFrame } from '../../protocol/frames.js';
import type { Summary } from '../../protocol/item.js';
import { HELLO_INTERVAL_MS } from '../../protocol/limits.js';
import { type ItemRow, frameBytes, JsonWriter } from './codec.js';
import { noticeHead, ownFrame, type RecentFrames, recentFramesOf } from './deliver.js';
import type { Effect, MessageOf } from './messages.js';
import type { FrameBytes } from './ports.js';
import { beginReplay, LIVE, LIVE_WITH_ACKS, type Replaying, type Session } from './session.js';
import { dismiss, type TenantState } from './state.js';

/** A frame that is not an item, as JSON text in a shape. */
export const plainFrame = (shape: Shape, frame: PlainFrame): string => JSON.stringify(encode(shape, frame));

export const sendPlain = (session: Session, frame: PlainFrame): Effect => ({
  kind: 'send',
  session,
  frames: [plainFrame(session.port.shape, frame)],
});

/** `hello`: starts a replay above `since`, which ends an earlier one of the same socket (reference, Sockets). */
export function onHello(state: TenantState, hello: MessageOf<'hello'>): Effect[] {
  const { session } = hello;
  const { now } = state;
  if (session.phase.kind === 'closed') return [];
  if (session.helloAt !== undefined && (now - session.helloAt) >>> 0 < HELLO_INTERVAL_MS) return refuseHello(session);
  session.helloAt = now | 0;
  const rewound = hello.epoch !== null && hello.epoch !== state.epoch;
  // It is the socket's buffer that must empty, whichever replay filled it.
  const draining = isDraining(session);
  const phase = beginReplay({ cursor: rewound ? 0 : hello.since, acks: hello.acks, greeting: true, draining });
  session.phase = phase;
  const reset = rewound ? [sendPlain(session, { type: 'reset', epoch: state.epoch })] : [];
  return draining ? reset : [...reset, ...advance(state, session, phase)];
}

const isDraining = ({ phase }: Session): boolean => phase.kind === 'replaying' && phase.draining;

function refuseHello(session: Session): Effect[] {
  // A peer that sends `hello` repeatedly without reading must not pile up replies.
  if (session.port.shape === 'b' || isDraining(session)) return [];
  const message = 'one hello per 5 seconds and socket';
  return [sendPlain(session, { type: 'error', code: 'rate_limited', message })];
}

/** The cursor is beyond the head, so it belongs to another history: replays from 0 (reference, Sockets, Reset). */
function rewind(state: TenantState, session: Session, phase: Replaying): Effect[] {
  const fresh: Replaying = { ...phase, cursor: 0, greeting: true, committed: null, stalled: false };
  session.phase = fresh;
  return [sendPlain(session, { type: 'reset', epoch: state.epoch }), { kind: 'read-page', session, phase: fresh }];
}

/** The next step of a replay. Reads the head, since `caught_up` must not be below the head committed before `hello`. */
function advance(state: TenantState, session: Session, phase: Replaying): Effect[] {
  if (!inMemory(state, session, phase)) return [{ kind: 'read-page', session, phase }];
  if (phase.greeting && phase.committed === null) return [{ kind: 'read-head', session, phase }];
  return finish(state, session, phase);
}

/** Whether memory holds everything from the cursor to the head known to be committed. */
function inMemory(state: TenantState, session: Session, phase: Replaying): boolean {
  if (!recentFor(state, session).covers(phase.cursor) || phase.cursor > state.delivered) return false;
  if (!phase.greeting) return true;
  // `caught_up` needs the sums at exactly the delivered version, and not below the head that was read after `hello`.
  const head = Math.max(phase.committed ?? 0, state.gapHead);
  return state.summary.version === state.delivered && state.delivered >= head;
}

/** The database's head, read because this session can be served from memory. */
export function onHead(state: TenantState, { session, phase, summary }: MessageOf<'head'>): Effect[] {
  if (session.phase !== phase) return [];
  if (summary.version < phase.cursor) return rewind(state, session, phase);
  phase.committed = summary.version;
  if (inMemory(state, session, phase)) return finish(state, session, phase);
  // Other instances committed versions that are not delivered here yet: this session reads them now, the others with
  // the gap.
  return [{ kind: 'read-page', session, phase }, ...noticeHead(state, summary.version)];
}

export function onPage(state: TenantState, { session, phase, page }: MessageOf<'page'>): Effect[] {
  if (session.phase !== phase) return [];
  if (page.summary.version < phase.cursor) return rewind(state, session, phase);
  const frames = ofRows(session, phase, page.rows);
  const last = page.rows.at(-1)?.version ?? phase.cursor;
  phase.cursor = page.more ? last : page.summary.version;
  phase.committed = page.summary.version;
  if (page.more) phase.rowBytes = page.rows.reduce((sum, { counted }) => sum + counted, 0) / page.rows.length;
  const ahead = noticeHead(state, page.summary.version);
  if (!page.more && phase.cursor >= state.delivered)
    return [...goLive(state, session, { phase, frames, at: page.summary }), ...ahead];
  // The log has more, or more was delivered meanwhile: continue from memory or with another page.
  return [{ kind: 'send', session, frames, phase }, ...ahead];
}

/** A replay's frames were handed to the socket. Continues, or waits for the socket's buffer to empty. */
export function onSent(state: TenantState, { session, phase, congested }: MessageOf<'sent'>): Effect[] {
  if (session.phase !== phase) return [];
  phase.draining = congested;
  return congested || phase.stalled ? [] : advance(state, session, phase);
}

/**
 * The log cannot be read. While the database is unreachable the socket stays open: it gets the frames in memory above
 * its cursor, and `caught_up`, which must not be below the unknown head, once the database answers. Any other error
 * would recur, so the socket is closed; its client's cursor has not moved.
 */
export function onReplayFailed(state: TenantState, { session, phase, away }: MessageOf<'replay-failed'>): Effect[] {
  if (session.phase !== phase) return [];
  if (!away) return [dismiss(state, session, { code: CLOSE.overloaded, reason: 'try again' })];
  phase.stalled = true;
  const recent = recentFor(state, session);
  if (!recent.covers(phase.cursor) || phase.cursor >= state.delivered) return [];
  const frames = fromMemory(session, phase, recent);
  phase.cursor = state.delivered;
  return frames.length === 0 ? [] : [{ kind: 'send', session, frames, phase }];
}

/** The database answers again: stalled replays continue. */
export function resume(state: TenantState): Effect[] {
  const effects: Effect[] = [];
  for (const session of state.sessions) {
    const { phase } = session;
    if (phase.kind !== 'replaying' || !phase.stalled) continue;
    phase.stalled = false;
    if (!phase.draining) effects.push(...advance(state, session, phase));
  }
  return effects;
}

/** A live session's buffer is too full: it returns to replay from its cursor once the buffer has emptied. */
export function onCongested(session: Session): Effect[] {
  const { phase } = session;
  if (phase.kind !== 'live') return [];
  session.phase = beginReplay({ cursor: session.cursor, acks: phase.acks, greeting: false, draining: true });
  return [];
}

export function onDrained(state: TenantState, session: Session): Effect[] {
  const { phase } = session;
  if (phase.kind !== 'replaying' || !phase.draining) return [];
  phase.draining = false;
  return phase.stalled ? [] : advance(state, session, phase);
}

/** Serves the rest from memory and goes live. */
function finish(state: TenantState, session: Session, phase: Replaying): Effect[] {
  const frames = fromMemory(session, phase, recentFor(state, session));
  phase.cursor = Math.max(phase.cursor, state.delivered);
  return goLive(state, session, { phase, frames, at: state.summary });
}

/** Sends the last frames of a replay, with `caught_up` if it is owed; then every version is sent as it is delivered. */
function goLive(
  state: TenantState,
  session: Session,
  { phase, frames, at }: { phase: Replaying; frames: FrameBytes[]; at: Summary },
): Effect[] {
  const { cursor, acks, greeting } = phase;
  if (greeting) {
    const { version, itemCount, versionSum } = at;
    const { epoch } = state;
    frames.push(plainFrame(session.port.shape, { type: 'caught_up', version, epoch, itemCount, versionSum }));
    for (const { existingDevice, frame } of state.pairRequests) {
      const pending = existingDevice === session.deviceId && frame.expiresAt > state.now;
      if (pending) frames.push(plainFrame(session.port.shape, frame));
    }
  }
  session.phase = acks ? LIVE_WITH_ACKS : LIVE;
  session.cursor = cursor;
  return frames.length === 0 ? [] : [{ kind: 'send', session, frames }];
}

const recentFor = (state: TenantState, session: Session): RecentFrames => recentFramesOf(state, session.port.shape);

// After `hello` every row is sent. A silent replay replaces live pushes, so for the device's own changes it sends what a
// live socket gets (`ownFrame`).

/** Buffer for one page's frames: they are sent before those of any tenant's next page are written. */
const written = new JsonWriter(512 * 1024);

function ofRows(session: Session, phase: Replaying, rows: readonly ItemRow[]): FrameBytes[] {
  const out: FrameBytes[] = [];
  written.restart();
  for (const row of rows) {
    const own = !phase.greeting && row.changedBy === session.deviceId;
    const sent = own ? ownFrame(phase.acks, row.id, row.version) : frameBytes(written, session.port.shape, row);
    if (sent !== null) out.push(sent);
  }
  return out;
}

/** `recent` covers the phase's cursor, so every frame is there. */
function fromMemory(session: Session, phase: Replaying, recent: RecentFrames): FrameBytes[] {
  const { ring } = recent;
  const out: FrameBytes[] = [];
  for (const position of recent.above(phase.cursor)) {
    const own = !phase.greeting && ring.deviceOf(position) === session.deviceId;
    const sent = own ? ownFrame(phase.acks, ring.idOf(position), ring.versionOf(position)) : ring.frameOf(position);
    if (sent !== null) out.push(sent);
  }
  return out;
}
