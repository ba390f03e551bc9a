/** What the commands of `service-device` receive, and the types that they are registered with. */
import { SERVICE_NAME } from '../protocol/limits.js';
import type { Device } from '../sdk/device.js';
import type { Identity } from '../sdk/identity.js';
import type { Platform } from '../sdk/platform.js';
import type { Store } from '../sdk/store/store.js';
import type { ProgramCommand } from '../terminal/program.js';
import type { Terminal } from '../terminal/terminal.js';

/** The program's name, as it is typed. */
export const PROGRAM_NAME = `${SERVICE_NAME}-device`;

/** The program, or one of its commands. */
export type DeviceCommand = ProgramCommand<Context>;

/**
 * The files of one device on this machine: a folder with the encrypted identity (`secrets.ts`) and the local copy.
 * Default `~/.config/service/device/<profile>` (see `configFolder`), mode 0700.
 */
export interface Profile {
  readonly name: string;
  readonly folder: string;
  /** This and the next two: `read`, `keep` and `renew` of `Secrets`. */
  identity(): Promise<Identity | undefined>;
  keep(identity: Identity): Promise<void>;
  renew(identity: Identity): Promise<boolean>;
  /** Removes identity, key and local copy. */
  forget(): Promise<void>;
}

/**
 * How a command opens its device. `catch up`: pulls before the command runs; without a server the command uses the local
 * copy and notifies the user. `local`: sends no request. `later`: the command begins at once and calls `catchUp` itself;
 * its writes before that are queued in the outbox.
 */
export type Sync = 'catch up' | 'local' | 'later';

/** The device of this profile, opened for one command. */
export interface OpenDevice {
  readonly device: Device;
  readonly identity: Identity;
  /** The local copy that `device` works on. */
  readonly store: Store;
  /** False: the server was not reached or not contacted yet, and the local copy may be out of date. */
  readonly current: boolean;
  /**
   * Brings the local copy up to date and sends the outbox, once per command. True: the server was reached. False: the
   * user is notified, and writes stay in the outbox. Rejects with errors that are not transient, such as a revocation.
   * `brief`: the command's result is stored already, so the rest may take 20 s at most.
   */
  readonly catchUp: (brief?: 'brief') => Promise<boolean>;
}

export interface Context {
  readonly terminal: Terminal;
  readonly platform: Platform;
  readonly profile: Profile;
  /**
   * Runs `work` with the device of the profile, under the profile's lock: commands that write run one after another.
   * Device and lock are released also when `work` throws. Throws `CommandError` `notFound` where there is no device yet.
   * `sync`: by default `catch up`.
   */
  readonly withDevice: <T>(work: (open: OpenDevice) => Promise<T>, sync?: Sync) => Promise<T>;
}
