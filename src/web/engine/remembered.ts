/**
 * What a start without a server needs in addition to the store: the device list, for which writes are sealed (each
 * certificate is verified again), and the bins with their names. Kept in the vault, encrypted.
 */
import type { BinView } from '../../sdk/events.js';
import { array, count, nonEmpty, nullable, object, string } from '../../sdk/reader.js';
import { devicesJson, readDevices, type DeviceEntry } from '../../sdk/replies.js';
import type { Vault } from './vault.js';

/** `devices` undefined: never read from the server. */
export interface Remembered {
  readonly devices?: readonly DeviceEntry[];
  readonly bins: readonly BinView[];
}

const label = object({ name: string, emoji: nullable(string) });
const readBins = object({
  bins: array(object({ id: nonEmpty, slug: nonEmpty, createdAt: count, updatedAt: count, label: nullable(label) })),
});

/** Empty if nothing was kept, or another version wrote it in another format: the server has all of it. */
export async function readRemembered(vault: Vault): Promise<Remembered> {
  try {
    const value = await vault.remembered();
    const bins = readBins(value, '').bins.map((bin): BinView => {
      const named = bin.label === null ? null : { name: bin.label.name, emoji: bin.label.emoji ?? '' };
      return { ...bin, label: named, itemCount: null, readable: true };
    });
    return { devices: readDevices(value, ''), bins };
  } catch {
    return { bins: [] };
  }
}

/** Stores the values, encrypted. */
export const writeRemembered = (vault: Vault, { devices, bins }: Remembered): Promise<void> =>
  vault.remember({
    devices: devicesJson(devices ?? []),
    bins: bins.map(({ id, slug, createdAt, updatedAt, label: named }) => ({
      ...{ id, slug, createdAt, updatedAt },
      label: named === null ? null : { name: named.name, emoji: named.emoji ?? null },
    })),
  });
