/**
 * The device list of earlier runs, beside the pairing: a device that was revoked gets no keys in a later run either,
 * whatever the server lists then (CLIENT-62).
 */
import { join } from 'node:path';
import { forSealing, KNOWN_MAX_BYTES } from '../device/known-devices.js';
import { readPrivateJson, removePrivate, writePrivate } from '../files/private.js';
import { text } from '../protocol/bytes.js';
import { object, ulidText } from '../sdk/reader.js';
import { devicesJson, readDeviceList, type DeviceEntry } from '../sdk/replies.js';
import type { Paths } from './context.js';

type Folder = Pick<Paths, 'folder'>;

const readKnown = object({ deviceId: ulidText, devices: readDeviceList });

const pathOf = ({ folder }: Folder): string => join(folder, 'mcp-devices.json');

/** The list that this device stored last; undefined where there is none, or it is damaged or unsafe. */
export async function readKnownDevices(paths: Folder, deviceId: string): Promise<readonly DeviceEntry[] | undefined> {
  const known = await readPrivateJson(pathOf(paths), KNOWN_MAX_BYTES, readKnown);
  return known?.deviceId === deviceId ? known.devices : undefined;
}

/** The file's content, without what changes from one moment to the next. */
export const knownDevicesText = (deviceId: string, devices: readonly DeviceEntry[]): string => {
  const known = forSealing(devices).map((device) => ({ ...device, lastSeenAt: null, online: false }));
  return JSON.stringify({ deviceId, devices: devicesJson(known) });
};

/** Stores a text of `knownDevicesText`. */
export const keepKnownDevices = (paths: Folder, known: string): Promise<void> =>
  writePrivate(pathOf(paths), text(known));

/** Removes the list; not an error if there is none. */
export const forgetKnownDevices = (paths: Folder): Promise<void> => removePrivate(pathOf(paths));
