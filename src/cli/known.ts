/**
 * What a device remembers of its account in addition to items, for use without the server: the device list, needed for
 * sealing (each certificate is verified again), and the bins, their names encrypted as they are on the server.
 */
import { join } from 'node:path';
import { writePrivate } from '../files/private.js';
import { decodeBase64 } from '../protocol/base64.js';
import { openLabel, sealLabel, type BinKeys } from '../sdk/bin-label.js';
import type { BinView } from '../sdk/events.js';
import { array, boolean, count, nonEmpty, nullable, object, string } from '../sdk/reader.js';
import { devicesJson, readDeviceList, type DeviceEntry } from '../sdk/replies.js';
import type { OpenDevice, Outside } from './context.js';
import { readPrivate } from './secrets.js';

const KNOWN_FILE = 'known.json';
const KNOWN_MAX_BYTES = 4 * 1024 * 1024;
const NO_BYTES = new Uint8Array(0);

/** A part is undefined where it was not read from the server. */
export interface Known {
  readonly devices?: readonly DeviceEntry[] | undefined;
  readonly bins?: readonly BinView[] | undefined;
}

const readBins = array(
  object({
    id: nonEmpty,
    slug: string,
    createdAt: count,
    updatedAt: count,
    meta: nullable(nonEmpty),
    readable: nullable(boolean),
  }),
);

const readParts = object({ devices: nullable(readDeviceList), bins: nullable(readBins) });

/**
 * What the last command stored; nothing where the file is missing or its content is damaged. Without `keys` bins have no
 * label, and those with an encrypted one are not `readable`. Throws `CommandError` where the file is unsafe or too long
 * (`readPrivate`).
 */
export async function readKnown(folder: string, keys?: BinKeys): Promise<Known> {
  const stored = await readPrivate(join(folder, KNOWN_FILE), KNOWN_MAX_BYTES, () => undefined);
  if (stored === undefined) return {};
  try {
    const { devices, bins } = readParts(JSON.parse(stored.toString('utf8')), KNOWN_FILE);
    const named = bins?.map(({ meta, readable, ...bin }) => {
      const label =
        keys === undefined || meta === null ? null : openLabel(keys, bin.id, decodeBase64(meta) ?? NO_BYTES);
      return { ...bin, itemCount: null, label, readable: readable !== false && (meta === null || label !== null) };
    });
    return { devices: devices ?? undefined, bins: named };
  } catch {
    // Damaged: the next read from the server replaces it.
    return {};
  }
}

/**
 * Stores the parts that were read, under the profile's lock; other parts stay as they were. Nothing is stored beyond
 * the size that `readKnown` accepts.
 */
export async function writeKnown(folder: string, known: Known, keys: BinKeys): Promise<void> {
  if (known.devices === undefined && known.bins === undefined) return;
  const before = await readKnown(folder, keys);
  const devices = known.devices ?? before.devices;
  const bins = known.bins ?? before.bins;
  const stored = {
    devices: devices && devicesJson(devices),
    bins: bins?.map(({ id, slug, createdAt, updatedAt, label, readable }) => {
      return { id, slug, createdAt, updatedAt, meta: label && sealLabel(keys, id, label), readable };
    }),
  };
  const bytes = Buffer.from(JSON.stringify(stored));
  // The server decides the length of its lists: a file that cannot be read again would fail every later command.
  if (bytes.length <= KNOWN_MAX_BYTES) await writePrivate(join(folder, KNOWN_FILE), bytes);
}

/** The bins from the server, or without it those of the last command that reached it. */
export async function binsOf({ platform, profile }: Outside, { device, identity, current }: OpenDevice) {
  if (current) return device.bins.list();
  return (await readKnown(profile.folder, { ...platform, masterKey: identity.masterKey })).bins ?? [];
}
