/** What every part of a server is made of; server.ts puts the parts together. */
import type { Logger } from 'pino';
import type { Config } from '../config/config.js';
import type { Metrics } from '../ops/metrics.js';
import type { Clock } from '../../protocol/clock.js';
import type { Database, Stop } from './database.js';

/** What every part is made of. */
export interface Parts {
  readonly log: Logger;
  readonly config: Config;
  readonly clock: Clock;
  readonly database: Database;
  readonly instanceId: string;
  readonly secret: Uint8Array;
  /** Signs the URLs of the local blob store. */
  readonly blobUrlSecret: string;
  /** Run in reverse when the server stops. */
  readonly stops: Stop[];
  readonly onFault: (error: unknown, tenantId?: string) => void;
  /** The one tenant of single mode; null in multi mode. */
  readonly tenantId: string | null;
  /** Undefined: METRICS_PORT is unset. */
  readonly meter: Metrics | undefined;
}
