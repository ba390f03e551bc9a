/**
 * What a device remembers of its account beside items, for use without the server: the device list, needed for sealing
 * (each certificate is verified again), and ids and slugs of bins. The server knows all of it; names of bins, which it
 * must not know, are left out.
 */
import { join } from 'node:path';
import { writePrivate } from '../files/private.js';
import { toBase64Url } from '../protocol/base64.js';
import type { BinView } from '../sdk/events.js';
import { array, count, nonEmpty, object } from '../sdk/reader.js';
import { readDevices, type DeviceEntry } from '../sdk/replies.js';
import type { Context, OpenDevice } from './context.js';
import { readPrivate } from './secrets.js';

const KNOWN_FILE = 'known.json';
const KNOWN_MAX_BYTES = 4 * 1024 * 1024;

/** A part is undefined where it was not read from the server. */
interface Known {
  readonly devices: readonly DeviceEntry[] | undefined;
  readonly bins: readonly BinView[] | undefined;
}

/** The state before anything was read. */
export const NOTHING_KNOWN: Known = { devices: undefined, bins: undefined };
const readBins = object({ bins: array(object({ id: nonEmpty, slug: nonEmpty, createdAt: count, updatedAt: count })) });

/** What the last command stored; nothing where the file is missing or damaged. */
export async function readKnown(folder: string): Promise<Known> {
  const stored = await readPrivate(join(folder, KNOWN_FILE), KNOWN_MAX_BYTES, () => undefined);
  if (stored === undefined) return NOTHING_KNOWN;
  try {
    const value: unknown = JSON.parse(stored.toString('utf8'));
    const { bins } = readBins(value, KNOWN_FILE);
    const unnamed = { itemCount: null, label: null, readable: true };
    return { devices: readDevices(value, KNOWN_FILE), bins: bins.map((bin) => ({ ...bin, ...unnamed })) };
  } catch {
    // Damaged: the next read from the server replaces it.
    return NOTHING_KNOWN;
  }
}

/** Stores what was read; the other part stays as it was. Nothing is stored beyond the size that `readKnown` accepts. */
export async function writeKnown(folder: string, known: Known): Promise<void> {
  if (known.devices === undefined && known.bins === undefined) return;
  const before = await readKnown(folder);
  const devices = known.devices ?? before.devices ?? [];
  const bins = known.bins ?? before.bins ?? [];
  const stored = {
    devices: devices.map((device) => ({
      ...device,
      pubkey: toBase64Url(device.pubkey),
      cert: device.cert === null ? null : toBase64Url(device.cert),
    })),
    bins: bins.map(({ id, slug, createdAt, updatedAt }) => ({ id, slug, createdAt, updatedAt })),
  };
  const bytes = Buffer.from(JSON.stringify(stored));
  // The server decides the length of its lists: a file that cannot be read again would fail every later command.
  if (bytes.length <= KNOWN_MAX_BYTES) await writePrivate(join(folder, KNOWN_FILE), bytes);
}

/** The bins from the server, or without it those that are known by id and slug. */
export async function binsOf(
  context: Context,
  { device, current }: Pick<OpenDevice, 'device' | 'current'>,
): Promise<readonly BinView[]> {
  if (current) return device.bins.list();
  return (await readKnown(context.profile.folder)).bins ?? [];
}
