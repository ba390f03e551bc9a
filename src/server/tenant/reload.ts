/**
 * Compares devices, bins and pairings as read from the database with the known state, and sends the difference to the
 * sockets. A lost notification costs only time, since the next reload finds the same difference.
 */
import { CLOSE } from '../../protocol/close-codes.js';
import type { PlainFrame } from '../../protocol/frames.js';
import { stateRefusal } from './change.js';
import { noticeHead } from './deliver.js';
import type { Effect } from './messages.js';
import type { TenantUpdate } from './ports.js';
import { sendPlain } from './replay.js';
import type { Session } from './session.js';
import { binsOf, devicesOf, dismiss, type TenantState } from './state.js';

/** Reloads the tenant. If a reload is under way, it is repeated afterwards, since it may read the older state. */
export function requestReload(state: TenantState): Effect[] {
  if (state.reloading) {
    state.reloadAgain = true;
    return [];
  }
  state.reloading = true;
  return [{ kind: 'reload' }];
}

/** Applies what was read and notifies the sockets of the difference. The caller then rechecks the waiting changes. */
export function onReloaded(state: TenantState, update: TenantUpdate): Effect[] {
  state.reloading = false;
  const effects: Effect[] = [];
  if (update.generation > state.generation) {
    const found = devicesOf(update);
    effects.push(...deviceChanges(state, update, found.devices), ...binChanges(state, update));
    effects.push(...pairChanges(state, update));
    state.generation = update.generation;
    if (!isReadable(update.state) && isReadable(state.billingState)) effects.push(...dismissAll(state));
    state.billingState = update.state;
    Object.assign(state, found);
    state.bins = binsOf(update);
    state.pairRequests = update.pairRequests;
  }
  effects.push(...noticeHead(state, update.summary.version));
  if (state.reloadAgain) {
    state.reloadAgain = false;
    effects.push(...requestReload(state));
  }
  return effects;
}

const isReadable = (billingState: string): boolean => stateRefusal(billingState, 'read') === undefined;

/** Sockets are for reading, which is refused in this state: a reconnecting device gets 402. */
const dismissAll = (state: TenantState): Effect[] =>
  [...state.sessions].map((session) => dismiss(state, session, { code: CLOSE.restart, reason: 'payment required' }));

function deviceChanges(state: TenantState, update: TenantUpdate, now: TenantState['devices']): Effect[] {
  const effects: Effect[] = [];
  for (const known of state.devices.values()) {
    const current = now.get(known.id);
    if (known.revoked || (current !== undefined && current.tokenEpoch === known.tokenEpoch && !current.revoked))
      continue;
    effects.push(...dismissDevice(state, known.id));
    effects.push(...sendToAll(state, { type: 'device_revoked', id: known.id }));
  }
  for (const device of update.devices) {
    if (device.revoked || state.devices.has(device.id)) continue;
    effects.push(...sendToAll(state, { type: 'device_joined', device: device.view }));
  }
  return effects;
}

/** A revoked device's sockets close on every instance (reference, HTTP, Tokens). */
function dismissDevice(state: TenantState, deviceId: string): Effect[] {
  return [...state.sessions]
    .filter((session) => session.deviceId === deviceId)
    .map((session) => dismiss(state, session, { code: CLOSE.revoked, reason: 'device revoked' }));
}

function binChanges(state: TenantState, update: TenantUpdate): Effect[] {
  return update.bins
    .filter((bin) => bin.changedAtGeneration > state.generation && (bin.open || bin.deletedAt !== null))
    .flatMap((bin) =>
      sendToAll(
        state,
        bin.deletedAt === null ? { type: 'bin', bin: bin.view } : { type: 'bin', id: bin.id, deletedAt: bin.deletedAt },
      ),
    );
}

function pairChanges(state: TenantState, update: TenantUpdate): Effect[] {
  const known = new Set(state.pairRequests.map(({ frame }) => frame.lookupId));
  return update.pairRequests
    .filter(({ frame }) => !known.has(frame.lookupId))
    .flatMap((request) =>
      greeted(state)
        .filter((session) => session.deviceId === request.existingDevice && !awaitsCaughtUp(session))
        .map((session) => sendPlain(session, request.frame)),
    );
}

/** Pending pairings are sent after `caught_up`, which is still owed: sent now, they would arrive twice. */
const awaitsCaughtUp = ({ phase }: Session): boolean => phase.kind === 'replaying' && phase.greeting;

const greeted = (state: TenantState): Session[] => [...state.sessions].filter((session) => session.greeted);

function sendToAll(state: TenantState, frame: PlainFrame): Effect[] {
  return greeted(state).map((session) => sendPlain(session, frame));
}
