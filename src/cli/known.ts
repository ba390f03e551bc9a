/**
 * What a device knows of its account beside items, for when the server is out of reach: the device list, so that it can
 * seal (each certificate is verified anew), and ids and slugs of bins. All of it is what the server knows too; names of
 * bins, which it does not, are left out.
 */
import { join } from 'node:path';
import type { BinView } from '../sdk/events.js';
import { array, count, nonEmpty, object } from '../sdk/reader.js';
import { readDevices, type DeviceEntry } from '../sdk/replies.js';
import { toBase64Url } from '../protocol/base64.js';
import type { Context, OpenDevice } from './context.js';
import { writePrivate } from '../files/private.js';
import { readPrivate } from './private-file.js';

const KNOWN_FILE = 'known.json';
const KNOWN_MAX_BYTES = 4 * 1024 * 1024;

/** See above. */
export interface Known {
  readonly devices: readonly DeviceEntry[] | undefined;
  readonly bins: readonly BinView[] | undefined;
}

const NOTHING: Known = { devices: undefined, bins: undefined };
const readBins = object({ bins: array(object({ id: nonEmpty, slug: nonEmpty, createdAt: count, updatedAt: count })) });

/** What was known last time; nothing where the file is missing or damaged: it is only a help. */
export async function readKnown(folder: string): Promise<Known> {
  const stored = await readPrivate(join(folder, KNOWN_FILE), KNOWN_MAX_BYTES, () => undefined);
  if (stored === undefined) return NOTHING;
  try {
    const value: unknown = JSON.parse(stored.toString('utf8'));
    const bins = readBins(value, KNOWN_FILE).bins.map((bin): BinView => ({
      ...bin,
      itemCount: null,
      label: null,
      readable: true,
    }));
    return { devices: readDevices(value, KNOWN_FILE), bins };
  } catch {
    // Not readable as what it should be, for whatever reason: the next reading of the server replaces it.
    return NOTHING;
  }
}

/** Keeps what was read; a part that was not read stays as it was, and all of it where it would be larger than is read. */
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
  // A server's list may be of any size. One that is not read again would stand in the way of every later command.
  if (bytes.length > KNOWN_MAX_BYTES) return;
  await writePrivate(join(folder, KNOWN_FILE), bytes);
}

/** The bins: of the server where it is in reach, else those known, of which only id and slug are. */
export async function binsOf(
  context: Context,
  { device, current }: Pick<OpenDevice, 'device' | 'current'>,
): Promise<readonly BinView[]> {
  if (current) return device.bins.list();
  return (await readKnown(context.profile.folder)).bins ?? [];
}
