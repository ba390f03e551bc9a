/** A change from its request to its answer: checked, committed, checked again where the tenant changed meanwhile. */
import { ServiceError, unavailable } from '../protocol/errors.js';
import type { ItemWrite } from '../protocol/item.js';
import { onApplied, noticeHead } from './deliver.js';
import type { Ask, Effect, Message, Pending, Reply } from './messages.js';
import { Packed, PackedWrite } from './packed.js';
import type { Outcome, Verdict } from './ports.js';
import { onlyForBin, refuseCaller, refuseChange, withoutRevoked } from './rules.js';
import { requestReload } from './snapshot.js';
import type { TenantState } from './state.js';

/**
 * How often a change is checked anew before it is answered with `unavailable`. Each time needs the tenant's devices or
 * bins to change in the moment between check and commit; more than a few in a row is not a race but a fault.
 */
const RECHECKS_MAX = 5;

const APPLIED: ReadonlySet<Verdict> = new Set<Verdict>(['insert', 'replace', 'rewrap', 'delete', 'move']);

/** Checks a change by what is known and sends it to be committed. */
export function ask(state: TenantState, request: Ask, reply: Reply, rechecks = 0): Effect[] {
  const stranger = refuseCaller(state, request.deviceId);
  if (stranger !== null) return [{ kind: 'reject', reply, error: stranger }];
  const refusal = refuseChange(state, request);
  return [{ kind: 'commit', change: pendingOf(state, request, { reply, refusal, rechecks }) }];
}

/** Every field spelled out: the busiest object of the server, and spreading copies costs more than the checks. */
function pendingOf(
  state: TenantState,
  request: Ask,
  rest: { reply: Reply; refusal: ServiceError | null; rechecks: number },
): Pending {
  const write = request.kind === 'write' ? withoutRevoked(state.devices, request.write) : null;
  const packed = packedOf(request, write);
  return {
    kind: request.kind,
    tenantId: state.tenantId,
    generation: state.generation,
    id: request.kind === 'write' ? request.write.id : request.id,
    deviceId: request.deviceId,
    binId: request.kind === 'move' ? request.binId : (write?.binId ?? null),
    ifVersion: request.kind === 'move' ? request.version : (write?.ifVersion ?? null),
    refused: rest.refusal !== null,
    refusedForBin: rest.refusal !== null && onlyForBin(state, request),
    write: write && new PackedWrite(write, packed),
    type: write?.type ?? null,
    sig: packed.sig,
    packed,
    ask: keptOf(request),
    reply: rest.reply,
    refusal: rest.refusal,
    rechecks: rest.rechecks,
  };
}

/** The request as it is kept until it is answered. */
const keptOf = (request: Ask): Ask =>
  request.kind === 'write' ? { ...request, write: new PackedWrite(request.write, request.packed) } : request;

/** What is stored of a request: its bytes as they came, unless keys were dropped from them. */
function packedOf(request: Ask, write: ItemWrite | null): Packed {
  if (request.kind !== 'write') return Packed.tag(request.sig);
  return write === null || write === request.write ? request.packed : Packed.write(write, request.packed);
}

/** What one transaction decided about this tenant's changes. Pushes first, then the answers. */
export function onCommitted(state: TenantState, message: Extract<Message, { kind: 'committed' }>): Effect[] {
  const applied = message.outcomes.filter((outcome) => APPLIED.has(outcome.verdict));
  const effects =
    applied.length > 0 ? onApplied(state, applied, message.summary) : noticeHead(state, message.summary.version);
  for (const outcome of message.outcomes) {
    if (outcome.verdict === 'stale') state.waiting.push(outcome.change);
    else effects.push(answer(outcome));
  }
  if (applied.length > 0) {
    effects.push({ kind: 'announce', head: message.summary.version, generation: message.generation });
    if (applied.some((outcome) => outcome.change.kind === 'write')) effects.push(...startPurges(state));
  }
  if (message.generation > state.generation || state.waiting.length > 0) effects.push(...requestReload(state));
  return effects;
}

/** The answer to a change by its verdict (contract 5, order of decisions). */
function answer({ change, verdict, version, ts, at }: Outcome<Pending>): Effect {
  const { reply } = change;
  const refuse = (error: ServiceError): Effect => ({ kind: 'reject', reply, error });
  switch (verdict) {
    case 'conflict': {
      const details = { version: version ?? 0, ts };
      return refuse(new ServiceError('version_conflict', conflictMessage(change, version), details));
    }
    case 'missing':
      return refuse(new ServiceError('item_not_found'));
    case 'refused':
      return refuse(change.refusal ?? new ServiceError('forbidden'));
    case 'no_blob':
      return refuse(new ServiceError('blob_not_found'));
    case 'cap':
      return refuse(new ServiceError('storage_cap_exceeded'));
    case 'stale':
      return refuse(unavailable());
    default:
      if (version === null) return { kind: 'reject', reply, error: new Error(`verdict ${verdict} without a version`) };
      return { kind: 'resolve', reply, value: { id: change.id, version, serverTs: at } };
  }
}

function conflictMessage(change: Pending, version: number | null): string {
  if (version === null) return 'the item does not exist';
  if (change.ifVersion !== null && change.ifVersion !== version) {
    return `made against version ${change.ifVersion}, stored is ${version}`;
  }
  return 'the item was deleted, or other content with the same or a later ts is stored';
}

/** Changes whose fate is unknown or which were never tried: the client may send them again (guarantee 2). */
export function onFailed(changes: readonly Pending[], error: Error): Effect[] {
  return changes.map((change) => ({ kind: 'reject', reply: change.reply, error }));
}

/** The tenant was read anew: what waited for it is checked again. */
export function recheck(state: TenantState): Effect[] {
  const waiting = state.waiting;
  state.waiting = [];
  return waiting.flatMap((change): Effect[] => {
    if (change.rechecks >= RECHECKS_MAX) return [{ kind: 'reject', reply: change.reply, error: unavailable() }];
    return ask(state, change.ask, change.reply, change.rechecks + 1);
  });
}

/** The first item write after a revocation starts the purge of that device's entries (contract 5). */
function startPurges(state: TenantState): Effect[] {
  const effects: Effect[] = [];
  for (const device of state.devices.values()) {
    if (!device.revoked || device.keysPurged || state.purging.has(device.id)) continue;
    state.purging.add(device.id);
    effects.push({ kind: 'purge-keys', deviceId: device.id });
  }
  return effects;
}
