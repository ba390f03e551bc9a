/**
 * What a device remembers of its account in addition to items, for use without the server: the device list, needed for
 * sealing (each certificate is verified again), and the bins, their names encrypted as they are on the server.
 */
import { join } from 'node:path';
import { forSealing, KNOWN_MAX_BYTES } from '../device/known-devices.js';
import { writePrivate } from '../files/private.js';
import { decodeBase64 } from '../protocol/base64.js';
import { openLabel, sealLabel, type BinKeys } from '../sdk/bin-label.js';
import type { BinView } from '../sdk/events.js';
import { array, boolean, count, nonEmpty, nullable, object, string } from '../sdk/reader.js';
import { devicesJson, readDeviceList, type DeviceEntry } from '../sdk/replies.js';
import type { Context, OpenDevice } from './context.js';
import { readPrivate } from './secrets.js';

const CACHE_FILE = 'known.json';
const NO_BYTES = new Uint8Array(0);

/** A part is undefined where it was not read from the server. */
export interface AccountCache {
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
export async function readAccountCache(folder: string, keys?: BinKeys): Promise<AccountCache> {
  const stored = await readPrivate(join(folder, CACHE_FILE), KNOWN_MAX_BYTES, () => undefined);
  if (stored === undefined) return {};
  try {
    const { devices, bins } = readParts(JSON.parse(stored.toString('utf8')), CACHE_FILE);
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
 * Stores the parts that were read, under the profile's lock; other parts stay as they were. The server decides the
 * length of both, and a file that cannot be read again would fail every later command: of what is too long, the bins
 * stay as they were, or are dropped, and of the devices those are stored that `forSealing` names.
 */
export async function writeAccountCache(folder: string, read: AccountCache, keys: BinKeys): Promise<void> {
  if (read.devices === undefined && read.bins === undefined) return;
  const before = await readAccountCache(folder, keys);
  const devices = read.devices ?? before.devices;
  const bins = read.bins ?? before.bins;
  const certified = devices && forSealing(devices);
  const choices = [
    { devices, bins },
    { devices, bins: before.bins },
    { devices: certified, bins: before.bins },
    { devices: certified },
  ];
  for (const choice of choices) {
    const bytes = storedBytes(choice, keys);
    if (bytes.length <= KNOWN_MAX_BYTES) return writePrivate(join(folder, CACHE_FILE), bytes);
  }
}

function storedBytes({ devices, bins }: AccountCache, keys: BinKeys): Buffer {
  const stored = {
    devices: devices && devicesJson(devices),
    bins: bins?.map(({ id, slug, createdAt, updatedAt, label, readable }) => {
      return { id, slug, createdAt, updatedAt, meta: label && sealLabel(keys, id, label), readable };
    }),
  };
  return Buffer.from(JSON.stringify(stored));
}

/** The bins from the server, or without it those of the last command that reached it. */
export async function binsOf({ platform, profile }: Context, { device, identity, current }: OpenDevice) {
  if (current) return device.bins.list();
  return (await readAccountCache(profile.folder, { ...platform, masterKey: identity.masterKey })).bins ?? [];
}
