/** The dependencies shared by the parts of a device. Each part declares the subset that it uses. */
import type { Reader } from '../crypto/item.js';
import type { DeviceApi } from './api.js';
import type { Emit } from './events.js';
import type { Identity } from './identity.js';
import type { Outbox } from './outbox.js';
import type { Platform } from './platform.js';
import type { Store } from './store/store.js';

/** The shared dependencies. */
export interface Core extends Platform {
  readonly identity: Identity;
  /** Decrypts items: the master key and this device's own keys. */
  readonly reader: Reader;
  readonly store: Store;
  readonly outbox: Outbox;
  readonly api: DeviceApi;
  readonly emit: Emit;
  /** Receives errors of background work that continues. */
  readonly onProblem: (error: Error) => void;
  /** Aborted when the device is closed or revoked; the reason is the `ClientError` for callers. */
  readonly lifetime: AbortSignal;
  /** Address of the server. */
  readonly baseUrl: string;
  /** See `Http.clockOffset`. */
  readonly clockOffset: () => number | null;
  /** See `Http.admissible`. */
  readonly admissible: (ts: number) => number;
}
