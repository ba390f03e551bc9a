/**
 * The tenant actor's rules: one message in, effects out. No clock, no network, no database; the same messages always
 * yield the same effects, so a test can state any interleaving. The state is changed in place, since its only owner is
 * the actor's mailbox loop, and copying it would cost more than the rules.
 *
 * A change is checked against the known state and sent to be committed. If the tenant changed in between, the commit
 * function returns it undecided, and it is checked again after a reload. Then it is answered.
 */
import { invalid, ServiceError, unavailable, type ErrorName } from '../../protocol/errors.js';
import { TS_AHEAD_MAX_MS } from '../../protocol/limits.js';
import { stateRefusal, type Change, type NotStored, type Verdict } from './change.js';
import { ENTRY_HEAD, HAS, ULID_CHARS, type ItemRow } from './codec.js';
import { noticeHead, onGap, onRows, recentFramesOf } from './deliver.js';
import type { Effect, Message, MessageOf } from './messages.js';
import type { DeviceState, SocketPort } from './ports.js';
import { resume, onCongested, onDrained, onHead, onHello, onPage, onReplayFailed, onSent } from './replay.js';
import { CLOSED, Session } from './session.js';
import { onReloaded, requestReload } from './reload.js';
import type { TenantState } from './state.js';

const RULES: { readonly [K in Message['kind']]: (state: TenantState, message: MessageOf<K>) => Effect[] } = {
  change: (state, { change }) => onChange(state, change),
  committed: onCommitted,
  failed: (_, { changes, error }) => onFailed(changes, error),
  reloaded: (state, { update }) => [...onReloaded(state, update), ...recheck(state)],
  'reload-failed': (state, { error }) => onReloadFailed(state, error),
  'head-hint': (state, { head, generation }) => onHeadHint(state, head, generation),
  published: onPublished,
  gap: (state, { page }) => onGap(state, page),
  'gap-failed': (state) => {
    // The next head hint or comparison retries.
    state.gapReading = false;
    return [];
  },
  hello: onHello,
  head: onHead,
  page: onPage,
  'replay-failed': onReplayFailed,
  sent: onSent,
  congested: (_, { session }) => onCongested(session),
  drained: (state, { session }) => onDrained(state, session),
  closed: (state, { session }) => {
    session.phase = CLOSED;
    state.sessions.delete(session);
    return [];
  },
};

/** Applies one message. `now` is in ms. */
export function step(state: TenantState, message: Message, now: number): Effect[] {
  state.now = now;
  state.ring.beginStep();
  const rule = RULES[message.kind] as (state: TenantState, message: Message) => Effect[];
  return rule(state, message);
}

function onHeadHint(state: TenantState, head: number, generation: number): Effect[] {
  const reload = generation > state.generation ? requestReload(state) : [];
  return [...noticeHead(state, head), ...resume(state), ...reload];
}

/**
 * Rows committed under a newer generation are handled as a hint: read from the log, in parallel with a reload that may
 * find a device revoked.
 */
function onPublished(state: TenantState, { rows, generation, summary }: MessageOf<'published'>): Effect[] {
  if (generation > state.generation) return onHeadHint(state, rows.at(-1)?.version ?? 0, generation);
  return [...onRows(state, rows, summary), ...resume(state)];
}

/**
 * Registers a socket, or returns why not. Device and epoch are checked in the same step that registers, so that no
 * socket escapes a revocation, which closes all registered ones (reference, HTTP, Tokens).
 */
export function admit(state: TenantState, port: SocketPort): Session | ErrorName {
  const device = state.devices.get(port.deviceId);
  if (device === undefined) return 'bad_token';
  if (device.revoked || device.tokenEpoch !== port.tokenEpoch) return 'device_revoked';
  const session = new Session(port);
  state.sessions.add(session);
  recentFramesOf(state, port.shape);
  return session;
}

function onReloadFailed(state: TenantState, error: Error): Effect[] {
  state.reloading = false;
  state.reloadAgain = false;
  return onFailed(state.waiting.splice(0), error);
}

/**
 * How often a change is checked again before it fails with `unavailable`. Each time requires the tenant's devices or
 * bins to change between check and commit; more than a few in a row is not a race but a fault.
 */
const RECHECKS_MAX = 5;

const APPLIED: ReadonlySet<Verdict> = new Set<Verdict>(['insert', 'replace', 'rewrap', 'delete', 'move']);
const applies = ({ verdict }: Change): boolean => APPLIED.has(verdict);

/** Checks a change against the known state and sends it to be committed. */
function onChange(state: TenantState, change: Change): Effect[] {
  const device = state.devices.get(change.deviceId);
  // Before the database is used: a revoked device must not learn whether its write is stored.
  if (device === undefined) return [{ kind: 'refused', change, error: new ServiceError('bad_token') }];
  if (device.revoked) return [{ kind: 'refused', change, error: new ServiceError('device_revoked') }];
  check(state, change);
  return [{ kind: 'commit', change }];
}

/**
 * Sets the change's refusal, if there is one. It is committed nevertheless: a retry of a stored change must succeed
 * whatever has changed since (RETRY-11), and only the commit function knows what is stored.
 */
function check(state: TenantState, change: Change): void {
  const { binId, kind } = change;
  change.generation = state.generation;
  const unpaid = stateRefusal(state.billingState, 'write');
  const bin =
    kind === 'delete' || state.bins.has(binId) ? null : new ServiceError('bin_not_found', undefined, { binId });
  const time = kind === 'write' ? checkTime(state, change) : null;
  const keys = kind === 'write' ? checkKeys(state, change) : null;
  change.refusal = unpaid === undefined ? (bin ?? time ?? keys) : new ServiceError(unpaid);
  const some = kind === 'write' && unpaid === undefined && keys === null;
  change.refusedFor = some ? (bin === null ? 'content' : 'bin') : 'all';
}

/** The client corrects its clock by the server's time, and writes again (ITEM-43). */
const checkTime = ({ now }: TenantState, { ts }: Change): ServiceError | null =>
  (ts ?? 0) > now + TS_AHEAD_MAX_MS
    ? invalid('ts', "at most 24 hours after the server's clock", { serverTime: now })
    : null;

/**
 * Every device must be able to read the item: inline through `keys`, a blob without metadata through `blobKeys`.
 * Entries of revoked devices are dropped from the inline keys, which no tag covers (ITEM-29).
 */
function checkKeys(state: TenantState, change: Change): ServiceError | null {
  const inline = (change.has & HAS.inline) !== 0;
  const path = inline ? 'payloadEnc.keys' : 'blobKeys';
  const [from, length] = inline ? [change.keysAt, change.keysBytes] : [change.blobKeysAt, change.blobKeysBytes];
  let covered = 0;
  let revoked = 0;
  let unknown: ServiceError | null = null;
  // Clients mostly list the devices in stored order: then nothing has to be looked up.
  const inOrder = state.devices.values();
  for (let at = from; at < from + length; at = nextEntry(change, at)) {
    const next = inOrder.next().value;
    const device = next !== undefined && isAt(change, at, next.id) ? next : deviceAt(state.devices, change, at);
    if (device === undefined) unknown ??= noSuchDevice(path, change, at);
    else if (device.revoked) revoked++;
    else covered++;
  }
  const missing = covered < state.activeDevices ? missingKeys(state, change, { path, from, length }) : null;
  const blobs = checkBlobKeys(state, change);
  if (inline && revoked > 0) dropRevoked(state, change);
  return missing ?? unknown ?? blobs;
}

const nextEntry = ({ bytes }: Change, at: number): number => at + ENTRY_HEAD + bytes.readUInt16BE(at + ULID_CHARS);

const idAt = ({ bytes }: Change, at: number): string => bytes.toString('latin1', at, at + ULID_CHARS);

/** Like `idAt(change, at) === id`, without a new string. */
function isAt({ bytes }: Change, at: number, id: string): boolean {
  for (let i = 0; i < ULID_CHARS; i++) if (bytes[at + i] !== id.charCodeAt(i)) return false;
  return id.length === ULID_CHARS;
}

const deviceAt = (devices: ReadonlyMap<string, DeviceState>, change: Change, at: number) =>
  devices.get(idAt(change, at));

const noSuchDevice = (path: string, change: Change, at: number): ServiceError =>
  invalid(`${path}.${idAt(change, at)}`, 'no such device');

function missingKeys(
  state: TenantState,
  change: Change,
  { path, from, length }: { readonly path: string; readonly from: number; readonly length: number },
): ServiceError {
  const named = new Set<string>();
  for (let at = from; at < from + length; at = nextEntry(change, at)) named.add(idAt(change, at));
  const missingDevices = [...state.devices.values()]
    .filter((device) => !device.revoked && !named.has(device.id))
    .map((device) => device.id);
  return invalid(path, 'every device that is not revoked needs a key', { missingDevices });
}

/** `sig` covers blobKeys: they are stored as sent or not at all (ITEM-31). */
function checkBlobKeys(state: TenantState, change: Change): ServiceError | null {
  for (let at = change.blobKeysAt; at < change.end; at = nextEntry(change, at)) {
    const device = deviceAt(state.devices, change, at);
    if (device === undefined) return noSuchDevice('blobKeys', change, at);
    if (device.revoked) return invalid(`blobKeys.${device.id}`, 'device is revoked');
  }
  return null;
}

function dropRevoked(state: TenantState, change: Change): void {
  const { bytes, keysAt, blobKeysAt, end } = change;
  let to = keysAt;
  for (let at = keysAt; at < blobKeysAt;) {
    const next = nextEntry(change, at);
    if (deviceAt(state.devices, change, at)?.revoked !== true) {
      bytes.copyWithin(to, at, next);
      to += next - at;
    }
    at = next;
  }
  bytes.copyWithin(to, blobKeysAt, end);
  change.keysBytes = to - keysAt;
}

/** The decisions of one transaction on this tenant's changes. Pushes first, then the answers. */
function onCommitted(state: TenantState, message: MessageOf<'committed'>): Effect[] {
  const { changes, summary } = message;
  const applied = changes.every(applies) ? changes : changes.filter(applies);
  const rows = applied.map(rowOf);
  // A dropped actor may have committed changes after these.
  const effects = onRows(state, rows, summary);
  effects.push(...noticeHead(state, summary.version));
  // Before the replies, which release the rows' bytes. Also for `same`: the earlier commit, whose answer was lost, may
  // not have been announced.
  if (rows.length > 0 || changes.some(({ verdict }) => verdict === 'same'))
    effects.push({ kind: 'publish', rows, position: { summary, generation: message.generation } });
  for (const change of changes) {
    if (change.verdict === 'stale') state.waiting.push(change);
    else effects.push(answer(change));
  }
  if (state.unpurged && applied.some(({ kind }) => kind === 'write')) effects.push(...startPurges(state));
  if (message.generation > state.generation || state.waiting.length > 0) effects.push(...requestReload(state));
  return effects;
}

/** The stored row that a change made. A write is its own row. */
function rowOf(change: Change): ItemRow {
  if (change.stored !== null) return change.stored;
  // The frame of a delete contains only id, version and tag; the rest of the row is not known here, and not needed.
  if (change.verdict === 'delete') change.deletedAt = change.decidedAt;
  return change;
}

/** The refusals by their verdicts (RETRY). */
const REFUSALS: Readonly<Partial<Record<Verdict, (change: Change) => ServiceError>>> = {
  stale: () => unavailable(),
  conflict: conflictOf,
  missing: () => new ServiceError('item_not_found'),
  refused: ({ refusal }) => refusal ?? new ServiceError('forbidden'),
  no_blob: () => new ServiceError('blob_not_found'),
  cap: () => new ServiceError('storage_cap_exceeded'),
} satisfies Record<NotStored, (change: Change) => ServiceError>;

function answer(change: Change): Effect {
  const refusal = REFUSALS[change.verdict];
  return refusal === undefined ? { kind: 'stored', change } : { kind: 'refused', change, error: refusal(change) };
}

function conflictOf({ version, ifVersion, storedTs: ts }: Change): ServiceError {
  let message = 'the item was deleted, or other content with the same or a later ts is stored';
  if (version === 0) message = 'the item does not exist';
  else if (ifVersion !== null && ifVersion !== version)
    message = `made against version ${ifVersion}, stored is ${version}`;
  return new ServiceError('version_conflict', message, { version, ts });
}

/** Changes whose outcome is unknown or that were never attempted: the client may retry (guarantee 2). */
function onFailed(changes: readonly Change[], error: Error): Effect[] {
  return changes.map((change) => ({ kind: 'refused', change, error }));
}

/** The tenant was reloaded: the waiting changes are checked again. */
function recheck(state: TenantState): Effect[] {
  return state.waiting.splice(0).flatMap((change): Effect[] => {
    if (change.rechecks++ >= RECHECKS_MAX) return [{ kind: 'refused', change, error: unavailable() }];
    return onChange(state, change);
  });
}

/** The first item write after a revocation starts the purge of that device's entries (ITEM-32). */
function startPurges(state: TenantState): Effect[] {
  const effects: Effect[] = [];
  for (const device of state.devices.values()) {
    if (!device.revoked || device.keysPurged || state.purging?.has(device.id) === true) continue;
    (state.purging ??= new Set()).add(device.id);
    effects.push({ kind: 'purge-keys', deviceId: device.id });
  }
  return effects;
}
