/**
 * What a start without a server needs in addition to the store: the device list, for which writes are sealed (each
 * certificate is verified again), and the bins with their names. Kept in the vault, encrypted.
 */
import type { BinView } from '../../sdk/events.js';
import { array, count, nonEmpty, nullable, object, string } from '../../sdk/reader.js';
import { devicesJson, readDeviceList, type DeviceEntry } from '../../sdk/replies.js';
import type { Vault } from './vault.js';

/** `devices` undefined: never read from the server. */
export interface Remembered {
  readonly devices?: readonly DeviceEntry[];
  readonly bins: readonly BinView[];
}

const label = object({ name: string, emoji: nullable(string) });
const readParts = object({
  devices: readDeviceList,
  bins: array(object({ id: nonEmpty, slug: string, createdAt: count, updatedAt: count, label: nullable(label) })),
});

/** Empty if nothing was kept, or another version wrote it in another format: the server has all of it. */
export async function readRemembered(vault: Pick<Vault, 'remembered'>): Promise<Remembered> {
  try {
    const { devices, bins } = readParts(await vault.remembered(), '');
    const named = bins.map(({ label, ...bin }): BinView => ({
      ...{ ...bin, itemCount: null, readable: true },
      label: label && { name: label.name, emoji: label.emoji ?? '' },
    }));
    return { devices, bins: named };
  } catch {
    return { bins: [] };
  }
}

/** Stores the values, encrypted. */
export const writeRemembered = (vault: Pick<Vault, 'remember'>, { devices = [], bins }: Remembered): Promise<void> =>
  vault.remember({ devices: devicesJson(devices), bins });
