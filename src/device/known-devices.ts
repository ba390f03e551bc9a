/** The device list that a program stores for its later runs (CLIENT-62). */
import type { DeviceEntry } from '../sdk/replies.js';

/** Largest file with it. More than the longest list of `forSealing` takes, which is some 7 MB. */
export const KNOWN_MAX_BYTES = 8 * 1024 * 1024;
/** Characters of names and glyphs in it. */
const CUT_MAX = 16;

/**
 * What sealing needs of the list: this device and all that ever had a valid certificate. Without one of them that was
 * revoked, the server could list it as active to the next run; the server invents the others, in any number.
 */
export const forSealing = (devices: readonly DeviceEntry[]): readonly DeviceEntry[] =>
  devices
    .filter(({ wasCertified }) => wasCertified === true)
    .map((device) => ({ ...device, name: device.name.slice(0, CUT_MAX), glyph: device.glyph.slice(0, CUT_MAX) }));
