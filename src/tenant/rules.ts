/** What a change is checked against before it goes to the database (contract 5). Pure. */
import { invalid, ServiceError } from '../protocol/errors.js';
import type { ItemWrite, SealedKeys } from '../protocol/item.js';
import type { Ask } from './messages.js';
import type { DeviceStanding } from './ports.js';
import type { TenantState } from './state.js';

type Known = Pick<TenantState, 'standing' | 'devices' | 'bins'>;

/**
 * Why this caller may change nothing at all, or null. Checked before anything is asked of the database:
 * a revoked device does not even learn whether its write is stored.
 */
export function refuseCaller(state: Known, deviceId: string): ServiceError | null {
  const device = state.devices.get(deviceId);
  if (device === undefined) return new ServiceError('bad_token');
  if (device.revoked) return new ServiceError('device_revoked');
  return null;
}

/**
 * Why this change is refused, or null. A refusal does not end it: a retry of what is stored already must succeed
 * whatever has changed since (contract 5, decision 1), so the commit is asked all the same and only it knows.
 */
export function refuseChange(state: Known, ask: Ask): ServiceError | null {
  const standing = refuseStanding(state);
  if (standing !== null || ask.kind === 'delete') return standing;
  const binId = ask.kind === 'write' ? ask.write.binId : ask.binId;
  if (!state.bins.has(binId)) return new ServiceError('bin_not_found', undefined, { binId });
  return ask.kind === 'write' ? refuseKeys(state.devices, ask.write) : null;
}

/** Whether a refused change would be let in if it named another bin. */
export const onlyForBin = (state: Known, ask: Ask): boolean =>
  ask.kind === 'write' &&
  refuseStanding(state) === null &&
  !state.bins.has(ask.write.binId) &&
  refuseKeys(state.devices, ask.write) === null;

function refuseStanding({ standing }: Known): ServiceError | null {
  if (standing === 'suspended') return new ServiceError('tenant_suspended');
  if (standing === 'inactive' || standing === 'pending') return new ServiceError('payment_required');
  return null;
}

function refuseKeys(devices: ReadonlyMap<string, DeviceStanding>, write: ItemWrite): ServiceError | null {
  // Every device must be able to read the item: inline through `keys`, a blob without metadata through `blobKeys`.
  const path = write.inline === null ? 'blobKeys' : 'payloadEnc.keys';
  const keys = write.inline?.keys ?? write.blob?.keys;
  const missing: string[] = [];
  for (const device of devices.values()) {
    if (!device.revoked && keys?.has(device.id) !== true) missing.push(device.id);
  }
  if (missing.length > 0) {
    return invalid(path, 'every device that is not revoked needs a key', { missingDevices: missing });
  }
  return unknownKeys(devices, write);
}

function unknownKeys(devices: ReadonlyMap<string, DeviceStanding>, write: ItemWrite): ServiceError | null {
  for (const id of write.inline?.keys.keys() ?? []) {
    if (!devices.has(id)) return invalid(`payloadEnc.keys.${id}`, 'no such device');
  }
  for (const id of write.blob?.keys.keys() ?? []) {
    const device = devices.get(id);
    if (device === undefined) return invalid(`blobKeys.${id}`, 'no such device');
    // `sig` covers blobKeys: they are stored as sent or not at all (contract 5).
    if (device.revoked) return invalid(`blobKeys.${id}`, 'device is revoked');
  }
  return null;
}

/** The write as it is stored: keys of revoked devices dropped from the inline keys, which no tag covers. */
export function withoutRevoked(devices: ReadonlyMap<string, DeviceStanding>, write: ItemWrite): ItemWrite {
  // By name: a write that is kept packed has its parts as getters, which a spread leaves out.
  const { id, binId, type, ts, ifVersion, inline, blob, master, sig } = write;
  if (inline === null) return write;
  let revoked = 0;
  for (const device of inline.keys.keys()) if (devices.get(device)?.revoked === true) revoked++;
  if (revoked === 0) return write;
  const keys: SealedKeys = new Map([...inline.keys].filter(([device]) => devices.get(device)?.revoked !== true));
  return { id, binId, type, ts, ifVersion, inline: { ...inline, keys }, blob, master, sig };
}
