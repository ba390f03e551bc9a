/** What every command of `service-device` is given. */
import type { Device } from '../sdk/device.js';
import type { Identity } from '../sdk/identity.js';
import type { Platform } from '../sdk/platform.js';
import type { Store } from '../sdk/store/store.js';
import type { Terminal } from '../terminal/terminal.js';

/**
 * A device's place on this machine: a folder with the identity (encrypted, see `secrets`) and the local copy.
 * Default `~/.config/service/device/<profile>` (`XDG_CONFIG_HOME`, `%APPDATA%` respected), mode 0700.
 */
export interface Profile {
  readonly name: string;
  readonly folder: string;
  /** The stored identity, or undefined where there is none yet. Throws `CommandError` where it cannot be decrypted. */
  identity(): Promise<Identity | undefined>;
  /** Stores the identity: encrypted, atomically, durable when it resolves. */
  keep(identity: Identity): Promise<void>;
  /** Stores a renewed token; false where the profile is no longer this device's. Rejects as `keep`, and changes nothing then. */
  renew(identity: Identity): Promise<boolean>;
  /** Removes identity, key and local copy. */
  forget(): Promise<void>;
}

/** See `OpenOptions`. */
export type Sync = 'catch up' | 'local' | 'later';

/** How a command opens its device. */
export interface OpenOptions {
  /**
   * `catch up` (default): pulls before the command runs; where the server is out of reach the command goes on with what
   * is here and says so. `local`: asks the server nothing. `later`: the command begins at once, and calls `catchUp` when
   * it may; what it writes before is kept in the outbox, and sent by then.
   */
  readonly sync?: Sync;
}

/** The device of this profile, opened for one command. */
export interface OpenDevice {
  readonly device: Device;
  readonly identity: Identity;
  /** The local copy that `device` works on. */
  readonly store: Store;
  /** False: the server could not be reached, or was not asked yet, and what is shown may be old. */
  readonly current: boolean;
  /**
   * Brings the local copy up to date and sends what waits, once a command; true: the server is in reach. Where it is
   * not, says so, and what is written waits. Rejects with what does not pass by itself, such as a revocation. `brief`:
   * something is kept already, and all that is left of the command shall not be waited for longer than 20 s.
   */
  readonly catchUp: (brief?: 'brief') => Promise<boolean>;
}

/** See above. */
export interface Context {
  readonly terminal: Terminal;
  readonly platform: Platform;
  readonly profile: Profile;
  /**
   * Runs a command's work with the device. The profile is locked meanwhile: one process writes at a time, others wait
   * a few seconds for it. Afterwards the device is closed and the lock released, also when `work` throws.
   * Throws `CommandError` `notFound` where nobody has claimed or paired here.
   */
  withDevice<T>(work: (open: OpenDevice) => Promise<T>, options?: OpenOptions): Promise<T>;
}
