/**
 * The tenant actor's rules: one message in, effects out. No clock, no network, no database; the same messages always
 * give the same effects, so every interleaving can be tested by writing it down. The state is changed in place, because a
 * tenant has one owner, the mailbox loop, and copies would be the larger part of the work.
 */
import type { ErrorName } from '../protocol/errors.js';
import { onChange, onCommitted, onFailed, recheck } from './changes.js';
import { noticeHead, onGap, onRows } from './deliver.js';
import type { Effect, Message } from './messages.js';
import type { HintedGeneration, SocketPort } from './ports.js';
import { goOn, onCongested, onDrained, onHead, onHello, onPage, onReplayFailed, onSent } from './replay.js';
import { CLOSED, Session } from './session.js';
import { onSnapshot, requestReload } from './snapshot.js';
import { recentOf, type TenantState } from './state.js';

/** Applies one message. `now` is in ms. */
export function step(state: TenantState, message: Message, now: number): Effect[] {
  state.now = now;
  switch (message.kind) {
    case 'change':
      return onChange(state, message.change);
    case 'committed':
      return onCommitted(state, message);
    case 'failed':
      return onFailed(message.changes, message.error);
    case 'snapshot':
      return [...onSnapshot(state, message.snapshot), ...recheck(state)];
    case 'snapshot-failed':
      return onSnapshotFailed(state, message.error);
    case 'nudge':
      return onNudge(state, message.head, message.generation);
    case 'published':
      return onPublished(state, message);
    case 'gap':
      return onGap(state, message.page);
    case 'gap-failed':
      // The next nudge or head comparison, at most 5 s away, tries again.
      state.gapReading = false;
      return [];
    case 'hello':
      return onHello(state, message);
    case 'head':
      return onHead(state, message);
    case 'page':
      return onPage(state, message);
    case 'replay-failed':
      return onReplayFailed(state, message);
    case 'sent':
      return onSent(state, message);
    case 'congested':
      return onCongested(message.session);
    case 'drained':
      return onDrained(state, message.session);
    case 'closed':
      message.session.phase = CLOSED;
      state.sessions.delete(message.session);
      return [];
  }
}

function onNudge(state: TenantState, head: number, generation: HintedGeneration): Effect[] {
  const behind = generation === 'newer' || generation > state.generation;
  return [...noticeHead(state, head), ...goOn(state), ...(behind ? requestReload(state) : [])];
}

/**
 * What was written where more was known of the tenant than here goes the way of a hint: read from the log, beside a reload
 * that may find a device revoked.
 */
function onPublished(
  state: TenantState,
  { rows, generation, summary }: Extract<Message, { kind: 'published' }>,
): Effect[] {
  if (generation > state.generation) return onNudge(state, rows.at(-1)?.version ?? 0, generation);
  return [...onRows(state, rows, summary), ...goOn(state)];
}

/**
 * Registers a socket, or says why not. Device and epoch are checked in the same step that registers, so that no socket
 * slips past a revocation: whoever is registered will be found by it (contract 4).
 */
export function admit(state: TenantState, port: SocketPort): Session | ErrorName {
  const device = state.devices.get(port.deviceId);
  if (device === undefined) return 'bad_token';
  if (device.revoked || device.tokenEpoch !== port.tokenEpoch) return 'device_revoked';
  const session = new Session(port);
  state.sessions.add(session);
  recentOf(state, port.shape);
  return session;
}

function onSnapshotFailed(state: TenantState, error: Error): Effect[] {
  state.reloading = false;
  state.reloadAgain = false;
  const waiting = state.waiting;
  state.waiting = [];
  return onFailed(waiting, error);
}
